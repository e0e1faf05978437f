"""HAMi's rules in rows, some of which docs/choosing.md shows, and the cards that they are asked of: a node for each."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from launcher.choosing.cluster import Cluster, cluster_of
from launcher.vm.cards.annotations import Selection, read_selection
from launcher.vm.cards.claims import Entry, EntryKind
from tests.processes import ROOT

_ROW = re.compile(
    r"^\| `(nvidia\.com/[a-z-]+): (.*?)`(?:, `(nvidia\.com/[a-z-]+): (.*?)`)? \| (.+?) \| .*\|$", re.MULTILINE
)


def _uuid(number: int) -> str:
    return f"GPU-8dcd427f-0000-4000-8000-{number:012}"


#: By node: products, UUIDs and NUMA nodes of its cards.
CARDS: Mapping[str, tuple[tuple[str, str, int | None], ...]] = {
    "a10": (("NVIDIA A10", _uuid(1), 0),),
    "a100": (("NVIDIA A100 SXM4 40GB", _uuid(2), 0), ("NVIDIA A100 SXM4 40GB", _uuid(3), 0)),
    "h100": (("NVIDIA H100 PCIe", _uuid(4), 0), ("NVIDIA H100 PCIe", _uuid(5), 1)),
    "l40s": (("NVIDIA L40S", _uuid(6), None), ("NVIDIA L40S", _uuid(7), None)),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One or two annotations, and the nodes whose cards they take."""

    annotations: tuple[tuple[str, str], ...]
    nodes: tuple[str, ...]

    @property
    def cards_wanted(self) -> int:
        """Two where it is about where they are."""
        return 2 if any(name.endswith("numa-bind") for name, _ in self.annotations) else 1

    @property
    def written(self) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
        return self.annotations, self.nodes

    def __str__(self) -> str:
        return ", ".join(f"{name.partition('/')[2]}: {value!r}" for name, value in self.annotations)


def _row(nodes: str, **annotations: str) -> Row:
    return Row(
        tuple((f"nvidia.com/{name.replace('_', '-')}", value) for name, value in annotations.items()),
        tuple(nodes.split()),
    )


ROWS = (
    _row("a10 a100", use_gputype="A10"),
    _row("a100 h100", use_gputype="a100,H100"),
    _row("a100 h100", use_gputype=" a100 , h100 ,"),
    _row("a10 a100 h100 l40s", use_gputype="NVIDIA"),
    _row("a100", use_gputype="A100-SXM4"),
    _row("a100", use_gputype="NVIDIA-A100-SXM4-40GB"),
    _row("a10 a100 h100 l40s", use_gputype=""),
    _row("", use_gputype=","),
    _row("h100 l40s", nouse_gputype="A10"),
    _row("a10 l40s", nouse_gputype="a100,H100,"),
    _row("a10 a100 h100 l40s", nouse_gputype=","),
    _row("a10", use_gputype="A10", nouse_gputype="A100"),
    _row("h100", use_gpuuuid=_uuid(4)),
    _row("a10 l40s", use_gpuuuid=f"{_uuid(1)}, {_uuid(6)}"),
    _row("a10 a100 h100 l40s", use_gpuuuid=""),
    _row("a100 h100 l40s", nouse_gpuuuid=_uuid(1)),
    _row("", use_gpuuuid=_uuid(1), nouse_gpuuuid=_uuid(1)),
    _row("a100", numa_bind="true"),
    _row("a100", numa_bind="1"),
    _row("a100 h100 l40s", numa_bind="yes"),
)


def _table() -> list[tuple[tuple[tuple[str, str], ...], tuple[str, ...]]]:
    rows = []
    for match in _ROW.finditer((ROOT / "docs" / "choosing.md").read_text()):
        one, first, other, second, nodes = match.groups()
        pairs = [(one, first.strip('"')), *([(other, second.strip('"'))] if other else [])]
        rows.append((tuple(pairs), () if nodes == "none" else tuple(nodes.split(", "))))
    return rows


TABLE = _table()


def entries(number: int) -> tuple[Entry, ...]:
    return tuple(Entry(kind=EntryKind.GPU, name=f"gpu{each}", wants="nvidia.com/gpu") for each in range(number))


def selection_of(row: Row) -> Selection:
    return read_selection(dict(row.annotations))


def slices_of_cards(cards: Mapping[str, Iterable[tuple[str, str, int | None]]]) -> list[dict[str, Any]]:
    """Their ResourceSlices, with what these rules ask for alone."""
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": f"{node}-slice"},
            "spec": {
                "driver": "gpu-launcher.dev",
                "nodeName": node,
                "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
                "devices": [
                    {
                        "name": f"card-{number}",
                        "attributes": {
                            "type": {"string": "card"},
                            "vendor": {"string": "10de"},
                            "productName": {"string": product},
                            "nvmlUUID": {"string": uuid},
                            **({"resource.kubernetes.io/numaNode": {"int": numa}} if numa is not None else {}),
                        },
                    }
                    for number, (product, uuid, numa) in enumerate(its)
                ],
            },
        }
        for node, its in cards.items()
    ]


def cluster_of_cards(cards: Mapping[str, Iterable[tuple[str, str, int | None]]]) -> Cluster:
    return cluster_of(slices_of_cards(cards))
