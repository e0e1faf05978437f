"""The boxes of the picture: each device's state, the number of its reason, and a few lines."""

import textwrap
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeVar

from drawing.boxes import Colours, Line
from pci.cards import part_of
from pci.functions import what
from pci.host import Function, Host
from plugin.cards.inventory import Device
from plugin.fabric import status as fabric
from plugin.node.snapshot import DeviceState, Snapshot
from program.problem import one_line

_LETTERS = 54  # of the longest line


class Style(Enum):
    """The look of a state: its word, its meaning, and colours that the colour-blind can tell apart (Okabe and Ito)."""

    FREE = DeviceState.FREE, "on offer, and no pod has it", "#009e73", "#e5f5ef"
    ON_OFFER = DeviceState.ON_OFFER, "the kubelet may hand it out", "#009e73", "#e5f5ef"
    IN_USE = DeviceState.IN_USE, "a pod has it", "#0072b2", "#e3eff8"
    CORDONED = DeviceState.CORDONED, "out of service, by whom and since when that number says", "#e69f00", "#fdf4e0"
    UNHEALTHY = (
        DeviceState.UNHEALTHY,
        "on offer, but handed out to nobody, for the reason of that number",
        "#d55e00",
        "#fcecdf",
    )
    WITHHELD = DeviceState.WITHHELD, "not on offer, for the reason of that number", "#777777", "#ececec"
    NEIGHBOUR = "neighbour", "no device of the plugin's, but in the IOMMU group of one", "#cc79a7", "#faf0f6"

    def __init__(self, word: str, meaning: str, edge: str, box: str) -> None:
        self.word = word
        self.meaning = meaning
        self.colours = Colours(box=box, edge=edge, strip=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A card, or the virtual functions or mediated devices of one parent that are all alike.

    `ids` have their IOMMU groups, ascending. `addition` goes after the style's word; `details` has a line each; `at` is
    the function whose place on the bus the box takes. `plural` is the word for several devices, None if each gets a
    box.
    """

    ids: tuple[tuple[str, int | None], ...]
    style: Style
    addition: str = ""
    reason: str | None = None
    details: tuple[str, ...]
    at: Function
    plural: str | None = None

    @property
    def group(self) -> int | None:
        return self.ids[0][1]


def node_boxes(snapshot: Snapshot) -> list[Box]:
    """Return a box for each card of each device, and for the other members of their IOMMU groups; by address."""
    host, devices = snapshot.host, snapshot.inventory.devices
    places = fabric.places(snapshot.partitions, snapshot.inventory)
    cards = [(device, card) for device in devices for card in _by_card(host, device.functions)]
    boxes = [_pci(snapshot, device, card, places.get(device.id)) for device, card in cards]
    boxes += [_mdev(snapshot, device) for device in devices if device.mdev is not None]
    ours = {function.address for _, card in cards for function in card}
    members = {member.address for device in devices for member in device.members}
    others = (host.functions[address] for address in sorted(members - ours))
    boxes += map(_neighbour, _by_card(host, (function for function in others if not function.is_bridge)))
    return _alike_together(sorted(boxes, key=lambda box: (box.at.address, box.ids)))


def shared_groups(boxes: Iterable[Box]) -> Mapping[int, int]:
    """Return the IOMMU groups that several boxes share, each with the number of boxes."""
    count = Counter(box.group for box in boxes)
    return {group: number for group, number in count.items() if group is not None and number > 1}


def lines(box: Box, numbers: Mapping[str, int]) -> list[Line]:
    """Return the text of a box; `numbers` are the numbers of the reasons."""
    name = box.ids[0][0] if len(box.ids) == 1 else f"{len(box.ids)} {box.plural}"
    number = "" if box.reason is None else f" ({numbers[box.reason]})"
    if len(box.ids) == 1:
        ids = [_group_words(box.group)]
    else:
        ids = [f"{name}, {_group_words(group)}" for name, group in box.ids]
    head = wrapped(f"{name}: {box.style.word}{number}{box.addition}", _LETTERS)
    rest = (line for text in (*box.details, *ids) for line in wrapped(text, _LETTERS))
    return [*(Line(line, strong=True) for line in head), *map(Line, rest)]


def title(snapshot: Snapshot) -> str:
    """Return a title: the number of devices, and of the devices in each state."""
    devices = snapshot.inventory.devices
    if not devices:
        return "This node has no GPU, and no device that the config offers"
    count = Counter(snapshot.state(device) for device in devices)
    listed = len(devices) - count[DeviceState.WITHHELD]
    counts = [
        f"{count[state]} {state}"
        for state in (DeviceState.FREE, DeviceState.IN_USE, DeviceState.CORDONED, DeviceState.UNHEALTHY)
        if count[state]
    ]
    of_them = f" ({', '.join(counts)})" if counts else ""
    withheld = f", {count[DeviceState.WITHHELD]} withheld" if count[DeviceState.WITHHELD] else ""
    return f"{len(devices)} device{'s' if len(devices) > 1 else ''}: {listed} on offer{of_them}{withheld}"


def _pci(snapshot: Snapshot, device: Device, card: tuple[Function, ...], place: str | None) -> Box:
    first = card[0]
    is_first = first.address == device.functions[0].address
    style, addition, reason = _style(snapshot, device)
    return Box(
        ids=((str(first.address), first.iommu_group),),
        style=style,
        addition=addition if is_first else f", one device with {device.id}",
        reason=reason,
        details=(
            *((device.model, *_resource(device)) if is_first else ()),
            *((place,) if is_first and place is not None else ()),
            *((f"virtual function of {first.physical_function}",) if first.is_virtual else ()),
            _drivers(card),
            *_ats(snapshot, first),
        ),
        at=device.lead if device.lead in card else first,
        plural="virtual functions" if first.is_virtual else None,
    )


def _mdev(snapshot: Snapshot, device: Device) -> Box:
    style, addition, reason = _style(snapshot, device)
    return Box(
        ids=((device.id, device.iommu_group),),
        style=style,
        addition=addition,
        reason=reason,
        details=(device.model, *_resource(device), f"mediated device of {device.lead.address}"),
        at=device.lead,
        plural="mediated devices",
    )


def _neighbour(card: tuple[Function, ...]) -> Box:
    return Box(
        ids=((what(card[0]), card[0].iommu_group),),
        style=Style.NEIGHBOUR,
        details=(*map(what, card[1:]), _drivers(card)),
        at=card[0],
    )


def _style(snapshot: Snapshot, device: Device) -> tuple[Style, str, str | None]:
    """Return the device's style, the addition to its word, and the reason."""
    style = Style[snapshot.state(device).name]
    reason, user = snapshot.reason(device), snapshot.user(device)
    addition = "" if user is None else f" by {user}" if style is Style.IN_USE else f", in use by {user}"
    return style, addition, None if reason is None else str(reason)


def _resource(device: Device) -> tuple[str, ...]:
    if device.resource is None:
        return ()
    return (f"{'as' if device.withheld is None else 'would be'} {device.resource}",)


def _drivers(card: tuple[Function, ...]) -> str:
    """Return `on vfio-pci`, or which function is on which driver: `.0 .2 on vfio-pci, .1 on snd_hda_intel`."""
    if len(card) == 1:
        return f"on {card[0].driver or 'no driver'}"
    drivers = by(card, lambda function: function.driver or "no driver")
    return ", ".join(
        f"{' '.join(f'.{function.address.function}' for function in functions)} on {driver}"
        for driver, functions in drivers.items()
    )


def _ats(snapshot: Snapshot, function: Function) -> tuple[str, ...]:
    """Return a line on whether the function's Address Translation Services are on; () if it has none or they were not
    read."""
    read = snapshot.inspection.peer_to_peer.get(function.address)
    return () if read is None or read.ats is None else (f"ATS {'on' if read.ats else 'off'}",)


def _by_card(host: Host, functions: Iterable[Function]) -> Iterable[tuple[Function, ...]]:
    return map(tuple, by(functions, lambda function: part_of(host, function.address)[0].address).values())


def _alike_together(boxes: list[Box]) -> list[Box]:
    """Join boxes that differ only in address and group: a GPU may have dozens of virtual functions."""
    shared = shared_groups(boxes)
    together: dict[Hashable, Box] = {}
    for box in boxes:
        if box.plural is None or box.group in shared:
            together[box.ids] = box
            continue
        alike = (box.at.root, box.at.bridges, box.at.numa_node, box.style, box.addition, box.reason, box.details)
        first = together.get(alike)
        together[alike] = box if first is None else replace(first, ids=(*first.ids, *box.ids))
    return list(together.values())


def _group_words(group: int | None) -> str:
    return "no IOMMU group" if group is None else f"IOMMU group {group}"


def wrapped(text: str, letters: int) -> list[str]:
    """Return a text in lines of at most so many letters; a longer word is broken."""
    # one_line() escapes characters that XML cannot have. SVG draws one blank for several.
    return textwrap.wrap(one_line(" ".join(text.split())), letters, break_on_hyphens=False) or [""]


Value = TypeVar("Value")
Key = TypeVar("Key", bound=Hashable)


def by(values: Iterable[Value], key: Callable[[Value], Key]) -> dict[Key, list[Value]]:
    """Return the values by their keys, in order of first appearance."""
    groups: dict[Key, list[Value]] = {}
    for value in values:
        groups.setdefault(key(value), []).append(value)
    return groups
