"""What became of each gpus and hostDevices entry: `gpu-launcher explain`, as a table and as JSON.

The TypedDicts below are the JSON. Its keys stay; new ones may come. null is for what is unknown or does not exist.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import permutations
from textwrap import wrap
from types import MappingProxyType
from typing import NotRequired, TypedDict

from launcher.vm.cards.claims import Claim, LeftOver, Request, VirtualFunctionOf
from launcher.vm.cards.guest import GuestCard, Missing, function_of, mediated
from launcher.vm.guest import VFIO
from launcher.vm.guest_pci.addresses import HostDev, Layout
from launcher.vm.guest_pci.locations import LocatedCard, Pair, pairs, what
from launcher.vm.memory.guest import MemoryAllocation, says
from pci.address import PCIAddress
from pci.distance import WORDS, Way
from pci.host import Host
from pci.resource import USBAddress
from program.output import aligned
from program.problem import Problem
from program.terminal import COLUMNS

#: What the guest gets for an entry. `host`: a PCI address, a mediated device's UUID, or a USB device's bus:number.
#: `is`: GPU, audio, ..., or a mediated device's type. `guest`: its PCI address in the guest, null for a USB device.
#: `iommuGroup`: if it is another than the entry's.
# A call, since one of the keys is a word of Python's.
Passed = TypedDict(
    "Passed", {"host": str, "is": str | None, "guest": str | None, "iommuGroup": NotRequired[int | None]}
)


class Explained(TypedDict):
    """An entry: `kind` is gpu, hostdevice, or sriov for an interface; it has a `resource` (deviceName), a `claim` and
    its `request`, or the `network` of its virtual function. `variable`: where its device was read. `alias`: the
    device's in the domain, for virsh and the guest's log. A mediated device's `numaNode` is its parent's. `missing`:
    why the card may not be whole. `leftBehind`: what of the card, or of its slot, the guest does not get, as findings.
    `onSlotOf`: the name of an earlier entry with functions of the same card; both are on one slot. `passed`: the
    functions of the card, then those of other slots that come along."""

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
    leftBehind: NotRequired[list[dict[str, str]]]
    onSlotOf: NotRequired[str]
    passed: list[Passed]


class Left(TypedDict):
    """Devices that the pod holds and no entry asks for."""

    variable: str
    devices: list[str]


class Between(TypedDict):
    """Two cards, by their entries' names; a unit's further card has its address behind the name. `host` and `guest`:
    same switch, same root, same node, other node; the host's is null if sysfs does not show a card. `hostWay` and
    `guestWay`: the same in nvidia-smi's classes, PIX, PXB, PHB, NODE, SYS. One switch or
    several in a row (PXB) between two cards make no difference."""

    between: list[str]
    host: str | None
    guest: str
    differs: bool
    hostWay: Way | None
    guestWay: Way


class Linked(TypedDict):
    """A partition of GPUs with NVSwitches, by the Fabric Manager's number, as gpu-plugin names it: the `gpus` by their
    addresses on the host, the `entries` that have them by name, and the addresses of those that the guest lacks
    (`missing`)."""

    partition: int
    gpus: list[str]
    entries: list[str]
    missing: list[str]


class Clique(TypedDict):
    """The names of the `entries` whose GPUs may write to each other's memory, by the annotation
    gpu-launcher.dev/p2p; one alone has no peer."""

    clique: int
    entries: list[str]


class Backend(TypedDict):
    """How QEMU gets the cards from VFIO: `by` their groups or IOMMUFD, and why so."""

    by: str
    why: str


class ExplainedMemory(TypedDict):
    """How the guest's memory is allocated before its first instruction: its `bytes`, by pages of `page` bytes, by so
    many `threads`, and about how many `seconds` that takes on this node."""

    bytes: int
    page: int
    threads: int
    seconds: float


class Explanation(TypedDict):
    """`entries`: in the manifest's order, gpus first. `vfio`: null without a device of VFIO's. `distances`: of each
    pair of cards except USB devices, in the order of the guest's seats. `memory`: null if no card pins it, or if sysfs
    does not tell of its pages."""

    entries: list[Explained]
    vfio: Backend | None
    distances: list[Between]
    partitions: list[Linked]
    cliques: list[Clique]
    leftOver: list[Left]
    memory: ExplainedMemory | None


def explanation(
    cards: tuple[GuestCard, ...],
    layout: Layout,
    placed: tuple[LocatedCard, ...],
    left_over: tuple[LeftOver, ...],
    host: Host | None,
    partitions: Mapping[int, tuple[PCIAddress, ...]],
    memory: MemoryAllocation | None = None,
    *,
    cliques: Mapping[str, int] = MappingProxyType({}),
    by_iommufd: bool = False,
    is_confidential: bool = False,
) -> Explanation:
    """Return the stages' results by entry, with what `host` says of each device; `partitions` are those that the pod's
    variables name, and `memory` is the guest's; `cliques` has the number of a GPU's clique, by its alias; `by_iommufd`:
    it has its functions that way; `is_confidential`: it is kept from the host."""
    first = {card.claim: card for card in reversed(cards)}
    seen = layout.guest_addresses()
    return {
        "entries": [_entry(card, cards, layout, seen, host) for card in cards if first[card.claim] is card],
        "vfio": _backend(by_iommufd=by_iommufd, is_confidential=is_confidential) if placed else None,
        "distances": [_between(pair) for pair in pairs(placed)],
        "partitions": [
            linked for number, gpus in partitions.items() if (linked := _linked(number, gpus, cards))["entries"]
        ],
        "cliques": _cliques(cards, cliques),
        "leftOver": [{"variable": left.variable, "devices": list(map(str, left.devices))} for left in left_over],
        "memory": None
        if memory is None
        else {
            "bytes": memory.size,
            "page": memory.page,
            "threads": memory.threads,
            "seconds": round(memory.seconds, 1),
        },
    }


def as_json(explanation: Explanation) -> str:
    return json.dumps(explanation, indent=2, default=str) + "\n"


def table(explanation: Explanation, columns: int = COLUMNS) -> str:
    """Return a row for each device or function that is passed on, and its resource or request; the distances between
    cards; then a line for each thing that is amiss. Texts are wrapped at so many columns."""
    rows = [("ENTRY", "HOST", "IS", "GUEST", "GROUP", "NUMA", "ALIAS")]
    for entry in explanation["entries"]:
        named, alias = f"{entry['kind']} {entry['name']}", entry["alias"]
        for passed in entry["passed"]:
            place = _or_dash(passed.get("iommuGroup", entry["iommuGroup"])), _or_dash(entry["numaNode"])
            rows.append((named, passed["host"], _or_dash(passed["is"]), _or_dash(passed["guest"]), *place, alias))
            named = alias = ""
    lines = aligned(rows) if explanation["entries"] else ["The manifest has no gpus and no hostDevices."]
    lines += [line for names, origin in _origins(explanation) for line in _wrapped(f"{names}: ", origin, columns)]
    if (vfio := explanation["vfio"]) is not None:
        lines += _wrapped("VFIO: ", f"by {vfio['by']}; {vfio['why']}", columns)
    if explanation["distances"]:
        lines += ["", *_distances(explanation["distances"], columns), ""]
    for names, words in _links(explanation["partitions"]):
        lines += _wrapped(f"{names}: ", words, columns)
    for clique in explanation["cliques"]:
        peers = "may write to each other's memory" if len(clique["entries"]) > 1 else "has no peer"
        lines += _wrapped(f"{', '.join(clique['entries'])}: ", f"clique {clique['clique']}, {peers}", columns)
    for names, missing in _incomplete(explanation):
        lines += _wrapped("may not be whole: ", f"{names}: {missing}", columns)
    for entry in explanation["entries"]:
        for behind in entry.get("leftBehind", ()):
            words = f"{behind['wrong']}; {behind['fix']}"
            lines += _wrapped(f"{entry['kind']} {entry['name']} ", words, columns)
    lines += [
        f"one card: {entry['kind']} {entry['name']} is on the slot of {entry['onSlotOf']}"
        for entry in explanation["entries"]
        if "onSlotOf" in entry
    ]
    for left in explanation["leftOver"]:
        lines += _wrapped("left over: ", f"{', '.join(left['devices'])} of {left['variable']}", columns)
    if (memory := explanation["memory"]) is not None:
        takes = MemoryAllocation(memory["bytes"], memory["page"], memory["threads"], memory["seconds"])
        lines += _wrapped("memory: ", f"{says(takes)}, about {takes.seconds:.1f} s before the guest runs", columns)
    return "\n".join(lines).rstrip("\n") + "\n"


def _entry(
    card: GuestCard, cards: tuple[GuestCard, ...], layout: Layout, seen: Mapping[HostDev, PCIAddress], host: Host | None
) -> Explained:
    claim, wants = card.claim, card.claim.entry.wants
    function = function_of(claim.device, host)
    in_group = None if function is None else mediated(claim.device, host) or function
    entry: Explained = {
        "kind": str(claim.entry.kind),
        "name": claim.entry.name,
        "resource": wants if isinstance(wants, str) else None,
        "claim": wants.claim if isinstance(wants, Request) else None,
        "request": wants.name if isinstance(wants, Request) else None,
        "network": wants.network if isinstance(wants, VirtualFunctionOf) else None,
        "variable": claim.variable,
        "alias": claim.alias,
        "iommuGroup": None if in_group is None else in_group.iommu_group,
        "numaNode": None if function is None else function.numa_node,
        "missing": card.missing,
        "passed": _passed(claim, cards, layout, seen, host),
    }
    if card.left_behind:
        subject = str(claim.entry)
        entry["leftBehind"] = [Problem(subject, left.wrong, left.reason.fix).as_json() for left in card.left_behind]
    if card.joins is not None:
        together = {claim, card.joins}
        if any(together <= {device.claim for device in seat.hostdevs} for seat in layout.seats):
            entry["onSlotOf"] = card.joins.entry.name
    return entry


def _passed(
    claim: Claim,
    cards: tuple[GuestCard, ...],
    layout: Layout,
    seen: Mapping[HostDev, PCIAddress],
    host: Host | None,
) -> list[Passed]:
    if isinstance(claim.device, USBAddress):
        return [{"host": str(claim.device), "is": "USB device", "guest": None}]
    sources = {function for card in cards if card.claim == claim for function in card.functions or (claim.device,)}
    return [
        _passed_one(device, seen[device], claim, host)
        for seat in layout.seats
        for device in seat.hostdevs
        if device.source in sources
    ]


def _passed_one(device: HostDev, at: PCIAddress, claim: Claim, host: Host | None) -> Passed:
    passed: Passed = {"host": str(device.source), "is": what(device.source, host), "guest": str(at)}
    its, claimed = function_of(device.source, host), function_of(claim.device, host)
    if its is not None and claimed is not None and its.iommu_group != claimed.iommu_group:
        passed["iommuGroup"] = its.iommu_group
    return passed


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


def _cliques(cards: tuple[GuestCard, ...], cliques: Mapping[str, int]) -> list[Clique]:
    entries: dict[int, list[str]] = {}
    for alias, name in {card.claim.alias: card.claim.entry.name for card in cards}.items():
        if alias in cliques:
            entries.setdefault(cliques[alias], []).append(name)
    return [{"clique": number, "entries": names} for number, names in sorted(entries.items())]


def _backend(*, by_iommufd: bool, is_confidential: bool) -> Backend:
    """Return how QEMU opens the cards, and why. The choice is the same on every machine: groups, unless the manifest
    asks for IOMMUFD. docs/compatibility.md compares them."""
    if by_iommufd:
        return {
            "by": "IOMMUFD",
            "why": f"{VFIO} asks for it; cards reach each other only from Linux 6.19 and QEMU 11 on, and without the "
            "capability SYS_RESOURCE what all VMs of one user on the node have pinned is counted as one",
        }
    why = (
        "IOMMUFD needs libvirt 12.2 and a kernel with it, which Debian's lack, and with it cards reach each other "
        "only from Linux 6.19 and QEMU 11 on"
    )
    confidential = f". A confidential guest with cards needs IOMMUFD ({VFIO}): whether this one starts was not tried"
    return {"by": "groups", "why": why + confidential * is_confidential}


def _links(partitions: list[Linked]) -> Iterator[tuple[str, str]]:
    """Yield the entries of each partition, and what the partition means for them."""
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
    """Return the host's matrix, the guest's with the differences marked, these differences, and a legend."""
    names = list(dict.fromkeys(name for each in distances for name in each["between"]))
    ways = {(one, other): each for each in distances for one, other in permutations(each["between"])}
    host = {way: _or_dash(each["hostWay"]) for way, each in ways.items()}
    guest = {way: each["guestWay"] + (" *" if each["differs"] else "") for way, each in ways.items()}
    differing = Counter((each["hostWay"], each["guestWay"]) for each in distances if each["differs"])
    lines = [
        f"* {pairs} pair{'s' if pairs > 1 else ''}: {on_host} on the host, {in_guest} in the guest"
        for (on_host, in_guest), pairs in differing.items()
    ]
    if not differing and all(each["host"] for each in distances):
        lines = ["In the guest the cards are as far apart as on the host."]
    shown = {each[side] for each in distances for side in ("hostWay", "guestWay")}
    legend = "; ".join(f"{way} {words}" for way, words in WORDS.items() if way in shown)
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
    """Return the entries whose cards may lack functions, and the reason; one line for entries with the same reason."""
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
    """Return each resource, request or network once, after the names of the entries whose devices come from it."""
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
