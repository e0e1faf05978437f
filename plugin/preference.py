from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pci.address import PCIAddress


class Policy(StrEnum):
    PACK = "pack"
    SPREAD = "spread"


@dataclass(frozen=True, slots=True)
class Place:
    id: str
    numa_node: int | None
    root: str
    bridges: tuple[PCIAddress, ...]


def preferred(
    available: Sequence[Place], must_include: Sequence[str], size: int, policy: Policy | None = None
) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*must_include, *(p.id for p in available)]))[:size]
