"""What the Fabric Manager says of its partitions, as values."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True, order=True)
class Partition:
    """A set of GPUs that may have NVLink among themselves.

    `modules` are their physical IDs, which nvidia-smi calls module IDs, ascending.
    """

    id: int
    modules: tuple[int, ...]
    is_active: bool = False

    def overlaps(self, other: "Partition") -> bool:
        return not set(self.modules).isdisjoint(other.modules)


@dataclass(frozen=True, slots=True)
class Table:
    """All partitions of the node that the manager would activate, by its own ID, and what is broken.

    Sets are looked up as sets: IDs begin at 0 on some boards and at 1 on others, and a GPU may be in several partitions
    of one size. `failed` names GPUs and switches with broken NVLinks; `unsupported` are partitions that the manager
    took off the table for that. Both are always empty from H100 on, where broken links are not told.
    """

    partitions: tuple[Partition, ...]
    failed: tuple[str, ...] = ()
    unsupported: tuple[int, ...] = ()
    by_modules: Mapping[frozenset[int], Partition] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_modules", {frozenset(each.modules): each for each in self.partitions})

    @property
    def modules(self) -> frozenset[int]:
        """All GPUs of the table, by module ID."""
        return frozenset(module for each in self.partitions for module in each.modules)

    @property
    def active(self) -> tuple[Partition, ...]:
        return tuple(each for each in self.partitions if each.is_active)

    def having(self, partition_id: int, *, is_active: bool) -> "Table":
        """Return the table with a partition that has become active, or inactive."""
        partitions = (
            replace(each, is_active=is_active) if each.id == partition_id else each for each in self.partitions
        )
        return Table(tuple(partitions), self.failed, self.unsupported)

    def by_id(self, partition_id: int) -> Partition | None:
        return next((each for each in self.partitions if each.id == partition_id), None)
