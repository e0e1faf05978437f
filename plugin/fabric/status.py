"""The status of the partitions at one moment, and its text, table and JSON."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from plugin.cards.inventory import Device, Inventory
from plugin.fabric.abi import Code
from plugin.fabric.activations import Owners
from plugin.fabric.board import MAKE_KNOWN, Board
from plugin.fabric.fabric_manager import ManagerError, NoLibrary
from plugin.fabric.partitions import Partition
from plugin.state_files import Broken
from program.errors import Refusal
from program.problem import Problem


@dataclass(frozen=True, slots=True)
class FabricStatus:
    """The status of the partitions at one moment. `board` is None if the manager gave no table; `trouble` says why.
    `is_awaited`: there is no table yet, and the node gives out no GPUs without one. `lacks_owners`: our file cannot be
    read, so the owners of partitions are unknown."""

    board: Board | None = None
    owners: Owners = field(default_factory=Owners)
    trouble: Problem | None = None
    is_awaited: bool = False
    lacks_owners: bool = False

    @classmethod
    def without_owners(cls, error: Broken) -> Self:
        return cls(trouble=error.problem, lacks_owners=True)

    @property
    def is_unknown(self) -> bool:
        """Whether the owners of partitions are unknown."""
        return self.is_awaited or self.lacks_owners

    @property
    def others(self) -> tuple[Partition, ...]:
        """The active partitions whose owner is not known."""
        active = () if self.board is None else self.board.table.active
        return tuple(each for each in active if self.owners.of(each.id) is None)


def serves_without(error: Refusal, owners: Owners | None) -> bool:
    """Whether cards are served without partitions after the manager gave `error` instead of a table: it supports none
    here, or it is away and the node never had any (no `owners`). Otherwise the cards wait for the manager."""
    if not isinstance(error, NoLibrary | ManagerError):
        return False
    code = error.code if isinstance(error, ManagerError) else None
    return code == Code.NOT_SUPPORTED or (code in (None, Code.CONNECTION_NOT_VALID) and owners is None)


def state(sight: FabricStatus, partition: Partition) -> str:
    """Return the state of a partition in words: `active for pod default/vm`, `free`."""
    activation = sight.owners.of(partition.id)
    if activation is not None:
        return f"{'active' if partition.is_active else 'not active'} for {activation.owner}"
    if partition.is_active:
        return "active, and nobody knows for whom"
    active = () if sight.board is None else sight.board.table.active
    overlapping = [str(each.id) for each in active if each.overlaps(partition)]
    return f"overlaps {', '.join(overlapping)}" if overlapping else "free"


def unknown(sight: FabricStatus, inventory: Inventory) -> tuple[Device, ...]:
    """Return the devices that may be on the board but have no known module ID."""
    board = sight.board
    return () if board is None else tuple(each for each in inventory.devices if board.is_unknown(each))


def places(sight: FabricStatus | None, inventory: Inventory) -> Mapping[str, str]:
    """Return the text of a picture for each device on the board, by device ID: its modules, their active partition and
    its owner."""
    board = None if sight is None else sight.board
    if sight is None or board is None:
        return {}
    words = {}
    for device in inventory.devices:
        modules = board.modules(device)
        active = [each for each in board.table.active if modules.intersection(each.modules)]
        its = f"module {', '.join(map(str, sorted(modules)))}" if modules else "module ID not known"
        if modules or board.is_unknown(device):
            words[device.id] = "; ".join([its, *(f"partition {each.id}: {state(sight, each)}" for each in active)])
    return words


def rows(sight: FabricStatus) -> Iterator[tuple[str, str, str, str]]:
    """Yield the rows of a table of partitions, the headings first; nothing without a board."""
    if sight.board is None:
        return
    yield ("PARTITION", "MODULES", "STATE", "CARDS")
    for partition in sight.board.table.partitions:
        addresses = sight.board.addresses(partition.modules)
        cards = (str(addresses.get(module, "?")) for module in partition.modules)
        yield (str(partition.id), ",".join(map(str, partition.modules)), state(sight, partition), " ".join(cards))


def notes(sight: FabricStatus, inventory: Inventory) -> Iterator[str]:
    """Yield a line for each reason why cards cannot be given out as partitions."""
    if sight.trouble is not None:
        yield f"no partitions: {sight.trouble}"
    for device in unknown(sight, inventory):
        yield f"{device.id}: its module ID is not known, so it is for guests of one GPU only; {MAKE_KNOWN}"
    if sight.board is not None:
        yield from sight.board.ids.faults


def as_json(sight: FabricStatus, inventory: Inventory) -> dict[str, Any]:
    """Return the partitions and their faults as JSON for programs; its keys are stable."""
    board = sight.board
    return {
        "trouble": None if sight.trouble is None else sight.trouble.as_json(),
        "partitions": []
        if board is None
        else [
            {
                "id": each.id,
                "modules": list(each.modules),
                "devices": [
                    None if (address := board.addresses([module]).get(module)) is None else str(address)
                    for module in each.modules
                ],
                "active": each.is_active,
                "state": state(sight, each),
            }
            for each in board.table.partitions
        ],
        "unknownModules": [device.id for device in unknown(sight, inventory)],
        "faults": [] if board is None else list(board.ids.faults),
    }
