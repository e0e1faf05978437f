"""The Fabric Manager's partitions, as values."""

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, order=True)
class Partition:
    """A set of GPUs that may have NVLink among themselves. `modules` are their module IDs, ascending."""

    id: int
    modules: tuple[int, ...]
    is_active: bool = False

    def overlaps(self, other: "Partition") -> bool:
        return not set(self.modules).isdisjoint(other.modules)


@dataclass(frozen=True, slots=True)
class Table:
    """All partitions that the manager can activate, and broken GPUs, switches and partitions.

    `failed` names GPUs and switches with broken NVLinks; `unsupported` are the IDs of partitions that the manager took
    off the table for that. Both are always empty from H100 on, where the manager does not tell of broken links.
    """

    partitions: tuple[Partition, ...]
    failed: tuple[str, ...] = ()
    unsupported: tuple[int, ...] = ()

    @property
    def modules(self) -> frozenset[int]:
        """All GPUs of the table, by module ID."""
        return frozenset(module for each in self.partitions for module in each.modules)

    @property
    def active(self) -> tuple[Partition, ...]:
        return tuple(each for each in self.partitions if each.is_active)

    def with_state(self, partition_id: int, *, is_active: bool) -> "Table":
        """Return the table with one partition marked active or inactive."""
        partitions = (
            replace(each, is_active=is_active) if each.id == partition_id else each for each in self.partitions
        )
        return replace(self, partitions=tuple(partitions))

    def by_id(self, partition_id: int) -> Partition | None:
        return next((each for each in self.partitions if each.id == partition_id), None)

    def by_modules(self, modules: Iterable[int]) -> Partition | None:
        """Return the partition of exactly these GPUs, if any. IDs do not show them: boards number differently."""
        return next((each for each in self.partitions if each.modules == tuple(sorted(modules))), None)
