"""What became of each gpus and hostDevices entry: `gpu-launcher explain`, as a table and as JSON.

The JSON's keys stay; new ones may come. null is for what is not known or is not there.

    entries         in the manifest's order, gpus first
      kind, name    gpu, hostdevice, or sriov for an interface; the entry's name
      resource      deviceName
      claim, request  or claimName and requestName
      network       or the network whose virtual function it is
      variable      the variable that the device is from
      alias         the device's in the domain: for virsh, and for the guest's log
      iommuGroup, numaNode  the device's on the host; a mediated device's node is its parent's
      missing       why the card may not be whole
      onSlotOf      only where another entry before has functions of the same card: its name; they are on one slot
      passed        what the guest gets for it: the functions of the card, then those of its unit's other cards
        host        a PCI address, a mediated device's UUID, or a USB device's bus:number
        is          GPU, audio, USB, ...; a mediated device's type
        guest       its PCI address in the guest; null for a USB device
    distances       each pair of cards that are not USB's, in the order of the guest's seats
      between       their entries' names; that of a unit's further card has its address behind it
      host, guest   same switch, same root, same node, other node; the host's is null for what sysfs does not show
      differs       whether the guest's is another one than the host's
    leftOver        what the pod holds and nobody asked for
      variable, devices
"""

import json
from collections import Counter
from collections.abc import Mapping
from itertools import permutations
from typing import NotRequired, TypedDict

from launcher.claims import Claim, DeviceID, LeftOver, Request, VirtualFunctionOf
from launcher.guest_pci.addresses import HostDev, Layout
from launcher.guest_pci.locations import LocatedCard, Pair, pairs, what
from launcher.hostdevs import Card, function_of, mediated
from pci.address import PCIAddress
from pci.host import Host
from pci.resource import USBAddress
from program.output import aligned

# A call, since one of the keys is a word of Python's.
Passed = TypedDict("Passed", {"host": str, "is": str | None, "guest": str | None})


class Explained(TypedDict):
    kind: str
    name: str
    resource: str | None
    claim: str | None
    request: str | None
    network: str | None
    variable: str | None
    alias: str
    iommuGroup: int | None
    numaNode: int | None
    missing: str | None
    onSlotOf: NotRequired[str]
    passed: list[Passed]


class Left(TypedDict):
    variable: str
    devices: list[str]


class Between(TypedDict):
    between: list[str]
    host: str | None
    guest: str
    differs: bool


class Explanation(TypedDict):
    entries: list[Explained]
    distances: list[Between]
    leftOver: list[Left]


def explanation(
    cards: tuple[Card, ...],
    layout: Layout,
    placed: tuple[LocatedCard, ...],
    left_over: tuple[LeftOver, ...],
    host: Host | None,
) -> Explanation:
    """The stages' results by entry, with what `host` says of each device where it is known."""
    first = {card.claim: card for card in reversed(cards)}
    seen = layout.seen()
    return {
        "entries": [
            _entry(card, _sources(card.claim, cards), layout, seen, host) for card in cards if first[card.claim] is card
        ],
        "distances": [_between(pair) for pair in pairs(placed)],
        "leftOver": [{"variable": left.variable, "devices": list(map(str, left.devices))} for left in left_over],
    }


def as_json(explanation: Explanation) -> str:
    return json.dumps(explanation, indent=2) + "\n"


def table(explanation: Explanation) -> str:
    """A row for everything that is passed on, below a row of headings; the distances of cards, where there are several;
    then a line for each thing that is amiss."""
    rows = [("ENTRY", "HOST", "IS", "GUEST", "GROUP", "NUMA", "ALIAS", "FROM")]
    for entry in explanation["entries"]:
        place = _or_dash(entry["iommuGroup"]), _or_dash(entry["numaNode"])
        named, alias, origin = f"{entry['kind']} {entry['name']}", entry["alias"], _origin(entry)
        for passed in entry["passed"]:
            rows.append(
                (named, passed["host"], _or_dash(passed["is"]), _or_dash(passed["guest"]), *place, alias, origin)
            )
            named = alias = origin = ""
    lines = aligned(rows) if explanation["entries"] else ["The manifest has no gpus and no hostDevices."]
    if explanation["distances"]:
        lines += ["", *_distances(explanation["distances"]), ""]
    lines += [
        f"may not be whole: {entry['kind']} {entry['name']}: {entry['missing']}"
        for entry in explanation["entries"]
        if entry["missing"]
    ]
    lines += [
        f"one card: {entry['kind']} {entry['name']} is on the slot of {entry['onSlotOf']}"
        for entry in explanation["entries"]
        if "onSlotOf" in entry
    ]
    lines += [f"left over: {', '.join(left['devices'])} of {left['variable']}" for left in explanation["leftOver"]]
    return "\n".join(lines).rstrip("\n") + "\n"


def _sources(claim: Claim, cards: tuple[Card, ...]) -> frozenset[DeviceID]:
    """What the guest gets for a claim."""
    return frozenset(
        device for card in cards if card.claim == claim for device in card.functions or (card.claim.device,)
    )


def _entry(
    card: Card, sources: frozenset[DeviceID], layout: Layout, seen: Mapping[HostDev, PCIAddress], host: Host | None
) -> Explained:
    claim, wants = card.claim, card.claim.entry.wants
    group, node = _place(claim.device, host)
    on_one_slot = any(
        {claim, card.joins} <= {device.claim for device in seat.hostdevs} for seat in layout.seats if card.joins
    )
    entry: Explained = {
        "kind": str(claim.entry.kind),
        "name": claim.entry.name,
        "resource": wants if isinstance(wants, str) else None,
        "claim": wants.claim if isinstance(wants, Request) else None,
        "request": wants.name if isinstance(wants, Request) else None,
        "network": wants.network if isinstance(wants, VirtualFunctionOf) else None,
        "variable": claim.variable,
        "alias": claim.alias,
        "iommuGroup": group,
        "numaNode": node,
        "missing": card.missing,
        "passed": _passed(claim, sources, layout, seen, host),
    }
    if on_one_slot and card.joins is not None:
        entry["onSlotOf"] = card.joins.entry.name
    return entry


def _passed(
    claim: Claim,
    sources: frozenset[DeviceID],
    layout: Layout,
    seen: Mapping[HostDev, PCIAddress],
    host: Host | None,
) -> list[Passed]:
    if isinstance(claim.device, USBAddress):
        return [{"host": str(claim.device), "is": "USB device", "guest": None}]
    return [
        {"host": str(device.source), "is": what(device.source, host), "guest": str(seen[device])}
        for seat in layout.seats
        for device in seat.hostdevs
        if device.source in sources
    ]


def _place(device: DeviceID, host: Host | None) -> tuple[int | None, int | None]:
    """IOMMU group and NUMA node."""
    function, mdev = function_of(device, host), mediated(device, host)
    if function is None:
        return None, None
    return mdev.iommu_group if mdev is not None else function.iommu_group, function.numa_node


def _between(pair: Pair) -> Between:
    return {
        "between": [pair.one.name, pair.other.name],
        "host": pair.host,
        "guest": pair.guest,
        "differs": pair.differs,
    }


def _distances(distances: list[Between]) -> list[str]:
    """A matrix of the host's, and one of the guest's in which is marked what differs; and how it differs."""
    names = list(dict.fromkeys(name for each in distances for name in each["between"]))
    ways = {(one, other): each for each in distances for one, other in permutations(each["between"])}
    host = {way: _or_dash(each["host"]) for way, each in ways.items()}
    guest = {way: each["guest"] + (" *" if each["differs"] else "") for way, each in ways.items()}
    differing = Counter((each["host"], each["guest"]) for each in distances if each["differs"])
    lines = [
        f"* {pairs} pair{'s' if pairs > 1 else ''}: {there} on the host, {here} in the guest"
        for (there, here), pairs in differing.items()
    ]
    if not differing and all(each["host"] for each in distances):
        lines = ["In the guest the cards are as far apart as on the host."]
    return [*_matrix("HOST", names, host), "", *_matrix("GUEST", names, guest), *lines]


def _matrix(heading: str, names: list[str], cells: Mapping[tuple[str, str], str]) -> list[str]:
    return aligned([(heading, *names), *((one, *(cells.get((one, other), "X") for other in names)) for one in names)])


def _origin(entry: Explained) -> str:
    if entry["network"] is not None:
        return f"network {entry['network']}, by Multus"
    if entry["resource"] is None:
        return f"request {entry['request']} of claim {entry['claim']}"
    return f"{entry['resource']}, {entry['variable']}"


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)
