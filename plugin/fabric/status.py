"""All that is known of the partitions at one moment, and how it is shown."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from plugin.cards.inventory import Device, Inventory
from plugin.fabric.activations import Book
from plugin.fabric.board import MAKE_KNOWN, Board
from plugin.fabric.partitions import Partition
from program.problem import Problem


@dataclass(frozen=True, slots=True)
class Status:
    """What is known of the partitions at one moment. `board` is None where there is nothing to go by; `trouble` says
    why the manager could not be asked."""

    board: Board | None = None
    book: Book = field(default_factory=Book)
    trouble: Problem | None = None

    @property
    def others(self) -> tuple[Partition, ...]:
        """Return the partitions that are active for nobody known."""
        active = () if self.board is None else self.board.table.active
        return tuple(each for each in active if self.book.of(each.id) is None)


def state(sight: Status, partition: Partition) -> str:
    """Return who has a partition, or whether it could be had: `active for pod default/vm`, `free`."""
    activation = sight.book.of(partition.id)
    if activation is not None:
        return f"{'active' if partition.is_active else 'not active'} for {activation.owner}"
    if partition.is_active:
        return "active, and nobody knows for whom"
    active = () if sight.board is None else sight.board.table.active
    overlapping = [str(each.id) for each in active if each.overlaps(partition)]
    return f"overlaps {', '.join(overlapping)}" if overlapping else "free"


def unknown(sight: Status, inventory: Inventory) -> tuple[Device, ...]:
    """Return the devices whose module IDs are not known, and may be on the board."""
    board = sight.board
    return () if board is None else tuple(each for each in inventory.devices if board.is_unknown(each))


def places(sight: Status | None, inventory: Inventory) -> Mapping[str, str]:
    """Return what a picture says of a device's place on the board, by its ID: its modules, the active partition that
    they are in, and for whom that is."""
    board = None if sight is None else sight.board
    if sight is None or board is None:
        return {}
    told = {}
    for device in inventory.devices:
        modules = board.modules(device)
        active = [each for each in board.table.active if modules.intersection(each.modules)]
        its = f"module {', '.join(map(str, sorted(modules)))}" if modules else "module ID not known"
        if modules or board.is_unknown(device):
            told[device.id] = "; ".join([its, *(f"partition {each.id}: {state(sight, each)}" for each in active)])
    return told


def rows(sight: Status) -> Iterator[tuple[str, str, str, str]]:
    """Yield a table of the partitions, beginning with its heads; nothing where there are none."""
    if sight.board is None:
        return
    yield ("PARTITION", "MODULES", "STATE", "CARDS")
    for partition in sight.board.table.partitions:
        addresses = sight.board.addresses(partition.modules)
        cards = (str(addresses.get(module, "?")) for module in partition.modules)
        yield (str(partition.id), ",".join(map(str, partition.modules)), state(sight, partition), " ".join(cards))


def notes(sight: Status, inventory: Inventory) -> Iterator[str]:
    """Yield what keeps cards from being given out as partitions, a line each."""
    if sight.trouble is not None:
        yield f"no partitions: {sight.trouble}"
    for device in unknown(sight, inventory):
        yield f"{device.id}: its module ID is not known, so it is for guests of one GPU only; {MAKE_KNOWN}"
    if sight.board is not None:
        yield from sight.board.ids.faults


def as_json(sight: Status, inventory: Inventory) -> dict[str, Any]:
    """Return the same for programs; its keys stay."""
    board = sight.board
    return {
        "trouble": None if sight.trouble is None else str(sight.trouble),
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
