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
      hostWay, guestWay  the same by nvidia-smi's classes: PIX, PXB, PHB, NODE, SYS; several switches in a row (PXB) do
                    not differ from one
    partitions      of GPUs with NVSwitches, as gpu-plugin says; empty where it says nothing
      partition     the Fabric Manager's number of it
      gpus          their addresses on the host
      entries       the names of those that have them
      missing       of the addresses those that the guest does not have
    leftOver        what the pod holds and nobody asked for
      variable, devices
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import permutations
from textwrap import wrap
from typing import NotRequired, TypedDict

from launcher.claims import Claim, DeviceID, LeftOver, Request, VirtualFunctionOf
from launcher.guest_pci.addresses import HostDev, Layout
from launcher.guest_pci.locations import LocatedCard, Pair, pairs, what
from launcher.hostdevs import GuestCard, Missing, function_of, mediated
from pci.address import PCIAddress
from pci.distance import WORDS, Way
from pci.host import Host
from pci.resource import USBAddress
from program.output import aligned
from program.terminal import COLUMNS

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
    missing: Missing | None
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
    hostWay: Way | None
    guestWay: Way


class Linked(TypedDict):
    partition: int
    gpus: list[str]
    entries: list[str]
    missing: list[str]


class Explanation(TypedDict):
    entries: list[Explained]
    distances: list[Between]
    partitions: list[Linked]
    leftOver: list[Left]


def explanation(
    cards: tuple[GuestCard, ...],
    layout: Layout,
    placed: tuple[LocatedCard, ...],
    left_over: tuple[LeftOver, ...],
    host: Host | None,
    partitions: Mapping[int, tuple[PCIAddress, ...]],
) -> Explanation:
    """The stages' results by entry, with what `host` says of each device where it is known; `partitions` are those that
    the pod's variables name."""
    first = {card.claim: card for card in reversed(cards)}
    seen = layout.seen()
    return {
        "entries": [
            _entry(card, _sources(card.claim, cards), layout, seen, host) for card in cards if first[card.claim] is card
        ],
        "distances": [_between(pair) for pair in pairs(placed)],
        "partitions": [
            linked for number, gpus in partitions.items() if (linked := _linked(number, gpus, cards))["entries"]
        ],
        "leftOver": [{"variable": left.variable, "devices": list(map(str, left.devices))} for left in left_over],
    }


def as_json(explanation: Explanation) -> str:
    return json.dumps(explanation, indent=2, default=str) + "\n"


def table(explanation: Explanation, columns: int = COLUMNS) -> str:
    """A row for everything that is passed on, below a row of headings, and what that is from; the distances of cards,
    where there are several; then a line for each thing that is amiss.

    Texts go on in the next line at so many columns.
    """
    rows = [("ENTRY", "HOST", "IS", "GUEST", "GROUP", "NUMA", "ALIAS")]
    for entry in explanation["entries"]:
        place = _or_dash(entry["iommuGroup"]), _or_dash(entry["numaNode"])
        named, alias = f"{entry['kind']} {entry['name']}", entry["alias"]
        for passed in entry["passed"]:
            rows.append((named, passed["host"], _or_dash(passed["is"]), _or_dash(passed["guest"]), *place, alias))
            named = alias = ""
    lines = aligned(rows) if explanation["entries"] else ["The manifest has no gpus and no hostDevices."]
    lines += [line for names, origin in _origins(explanation) for line in _wrapped(f"{names}: ", origin, columns)]
    if explanation["distances"]:
        lines += ["", *_distances(explanation["distances"], columns), ""]
    for names, words in _links(explanation["partitions"]):
        lines += _wrapped(f"{names}: ", words, columns)
    for names, missing in _incomplete(explanation):
        lines += _wrapped("may not be whole: ", f"{names}: {missing}", columns)
    lines += [
        f"one card: {entry['kind']} {entry['name']} is on the slot of {entry['onSlotOf']}"
        for entry in explanation["entries"]
        if "onSlotOf" in entry
    ]
    for left in explanation["leftOver"]:
        lines += _wrapped("left over: ", f"{', '.join(left['devices'])} of {left['variable']}", columns)
    return "\n".join(lines).rstrip("\n") + "\n"


def _sources(claim: Claim, cards: tuple[GuestCard, ...]) -> frozenset[DeviceID]:
    """What the guest gets for a claim."""
    return frozenset(
        device for card in cards if card.claim == claim for device in card.functions or (card.claim.device,)
    )


def _entry(
    card: GuestCard, sources: frozenset[DeviceID], layout: Layout, seen: Mapping[HostDev, PCIAddress], host: Host | None
) -> Explained:
    claim, wants = card.claim, card.claim.entry.wants
    group, node = _place(claim.device, host)
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
    if card.joins is not None:
        together = {claim, card.joins}
        if any(together <= {device.claim for device in seat.hostdevs} for seat in layout.seats):
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
        "hostWay": pair.ways[0],
        "guestWay": pair.ways[1],
    }


def _linked(number: int, gpus: tuple[PCIAddress, ...], cards: tuple[GuestCard, ...]) -> Linked:
    its = {card: {*gpus}.intersection(card.functions) for card in cards}
    return {
        "partition": number,
        "gpus": list(map(str, gpus)),
        "entries": list(dict.fromkeys(card.claim.entry.name for card in cards if its[card])),
        "missing": list(map(str, sorted({*gpus}.difference(*its.values())))),
    }


def _links(partitions: list[Linked]) -> Iterator[tuple[str, str]]:
    """Yield which entries are a partition, and what that means."""
    for linked in partitions:
        number, names = linked["partition"], ", ".join(linked["entries"])
        if linked["missing"]:
            missing = ", ".join(linked["missing"])
            yield names, f"a part of partition {number} of the Fabric Manager; the guest does not have {missing}"
        elif len(linked["gpus"]) > 1:
            yield names, f"partition {number} of the Fabric Manager, with NVLink to each other"
        else:
            yield names, f"partition {number} of the Fabric Manager, by itself"


def _distances(distances: list[Between], columns: int) -> list[str]:
    """A matrix of the host's, and one of the guest's in which is marked what differs; how it differs; and a legend."""
    names = list(dict.fromkeys(name for each in distances for name in each["between"]))
    ways = {(one, other): each for each in distances for one, other in permutations(each["between"])}
    host = {way: _or_dash(each["hostWay"]) for way, each in ways.items()}
    guest = {way: each["guestWay"] + (" *" if each["differs"] else "") for way, each in ways.items()}
    differing = Counter((each["hostWay"], each["guestWay"]) for each in distances if each["differs"])
    lines = [
        f"* {pairs} pair{'s' if pairs > 1 else ''}: {there} on the host, {here} in the guest"
        for (there, here), pairs in differing.items()
    ]
    if not differing and all(each["host"] for each in distances):
        lines = ["In the guest the cards are as far apart as on the host."]
    there = {each[side] for each in distances for side in ("hostWay", "guestWay")}
    legend = "; ".join(f"{way} {words}" for way, words in WORDS.items() if way in there)
    return [
        *_matrix("HOST", names, host),
        "",
        *_matrix("GUEST", names, guest),
        *lines,
        *_wrapped("", legend, columns),
    ]


def _matrix(heading: str, names: list[str], cells: Mapping[tuple[str, str], str]) -> list[str]:
    return aligned([(heading, *names), *((one, *(cells.get((one, other), "X") for other in names)) for one in names)])


def _incomplete(explanation: Explanation) -> list[tuple[str, str]]:
    """Return whose functions may not be all, each with the reason; of several cards a reason is said once."""
    reasons: dict[str, list[Explained]] = {}
    for entry in explanation["entries"]:
        if (missing := entry["missing"]) is not None:
            reasons.setdefault(str(missing) if missing.where else missing.wrong, []).append(entry)
    return [
        (
            ", ".join(f"{entry['kind']} {entry['name']}" for entry in entries),
            reason if len(entries) > 1 else str(entries[0]["missing"]),
        )
        for reason, entries in reasons.items()
    ]


def _origins(explanation: Explanation) -> list[tuple[str, str]]:
    """Return what devices are from, each once: the names of its entries, and the resource or request."""
    entries: dict[str, list[str]] = {}
    for entry in explanation["entries"]:
        entries.setdefault(_origin(entry), []).append(f"{entry['kind']} {entry['name']}")
    return [(", ".join(names), origin) for origin, names in entries.items()]


def _wrapped(label: str, words: str, columns: int) -> list[str]:
    return wrap(f"{label}{words}", columns, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _origin(entry: Explained) -> str:
    if entry["network"] is not None:
        return f"from network {entry['network']}, by Multus"
    if entry["resource"] is None:
        return f"from request {entry['request']} of claim {entry['claim']}"
    return f"from {entry['resource']}, by {entry['variable']}"


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)
