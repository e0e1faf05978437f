"""The domain that KubeVirt has made, with whole cards on their seats: OnDefineDomain, from values to values.

KubeVirt asks at every define of a start, two or three times, and goes on with what it has understood of the answer and
with the addresses that libvirt has added. So what is ours is taken out first, wherever it is known by, and put in anew:
bridges and idle controllers by their alias, companions by what they are of the host's. The same answer follows from the
answer itself.

Where KubeVirt has placed a card itself, by its NUMA-aware topology or on the root complex, it stays there and gets its
companions, unless the VM asks for seats or a topology of ours (docs/decisions/0032-beside-kubevirt.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from lxml import etree
from lxml.etree import _Element as Element

from launcher.checks.seats import misplaced
from launcher.claims import Claim, Entry
from launcher.cpus.host import processors_of
from launcher.cpus.pinning import Cell
from launcher.facts import Facts
from launcher.guest import ROM_OF, SEATS_OF, Guest
from launcher.guest_pci.addresses import HostDev, Layout, Seat, hostdevs_of
from launcher.guest_pci.bars import Hole, read_bars
from launcher.guest_pci.hole import hole as hole_of
from launcher.guest_pci.topology import laid_out
from launcher.hook import edits
from launcher.hook.annotations import Asked
from launcher.hook.cards import corrected
from launcher.hook.kubevirt_domain import (
    EntryHostdev,
    cells_in,
    guest_address_of,
    guest_in,
    most_memory_in,
    named_in,
    number,
    parsed,
    pinning_in,
)
from launcher.hostdevs import GuestCard, whole_cards
from pci.address import PCIAddress
from pci.functions import what
from pci.host import Host
from pci.processors import UNKNOWN
from pci.resource import USBAddress
from pci.sysfs.attribute import CannotLook
from pci.sysfs.functions import read_host
from program.errors import Refusal, UserError, together
from program.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """The domain's new XML; a line for each card, of what it is and where; and what is not as it should be."""

    xml: bytes
    cards: tuple[str, ...] = ()
    warnings: tuple[Problem, ...] = ()


def rewritten(domain: bytes, asked: Asked, sysfs: Path) -> Rewritten:
    """The whole new domain, or a ProgramError and none of it. `sysfs` stands for the node's /sys.

    A domain without devices of entries is returned as it is.
    """
    root = parsed(domain)
    named = named_in(root, asked)
    _refuse_other_names(asked, named)
    if all(isinstance(one.claim.device, USBAddress) for one in named):
        return Rewritten(xml=domain)
    host = _read_host(sysfs)
    guest = guest_in(root, asked)
    claims, warnings = corrected(tuple(one.claim for one in named), host)
    cards = whole_cards(claims, (), host, asked.annotations.companions)
    _refuse_missing(cards)
    elements = {one.claim.entry: one.element for one in named}
    parts = edits.taken_out(root, elements.values(), {function for card in cards for function in card.functions})
    staying = _staying(asked, cards, elements, parts.bridges)
    facts = Facts(
        kvm=root.get("type") != "qemu",
        processors=UNKNOWN if guest.topology == "none" else processors_of(sysfs),
        bars=read_bars(sysfs, cards),
    )
    on_slots = {claim: _on_slot(claim, cards) for claim in staying}
    stay = {card for on_slot in on_slots.values() for card in on_slot}
    layout, cells = _laid_out(guest, tuple(card for card in cards if card not in stay), host, facts, root)
    edits.take_out_empty(root, [elements[claim.entry] for claim in claims if claim not in staying])
    layout = edits.indexed(layout, root, parts)
    seats = (*layout.seats, *(_stays(claim, at, on_slots[claim]) for claim, at in staying.items()))
    hole, bars = _hole(guest, replace(layout, seats=seats), root, facts)
    if cells:
        edits.write_cells(root, cells)
    edits.write_hole(root, guest, hole)
    for name in asked.annotations.roms:
        edits.write_no_rom(next(element for entry, element in elements.items() if entry.name == name))
    edits.write_devices(root, guest, layout, seats, elements, parts)
    edits.refuse_one_address_twice(root)
    return Rewritten(
        xml=etree.tostring(root),
        cards=_lines(seats, layout, host),
        warnings=(
            *warnings,
            *(finding.problem for finding in misplaced(layout)),
            *bars,
        ),
    )


def _refuse_other_names(asked: Asked, named: tuple[EntryHostdev, ...]) -> None:
    names = {one.claim.entry.name for one in named}
    for annotation, mapping in ((SEATS_OF, asked.annotations.seats), (ROM_OF, asked.annotations.roms)):
        for name in mapping:
            if name not in names:
                known = f"expected one of {', '.join(sorted(names))}" if names else "leave it out: the domain has none"
                raise UserError("metadata.annotations", f"{annotation}: the domain has no card {name!r}", known)


def _read_host(sysfs: Path) -> Host:
    try:
        return read_host(sysfs)
    except CannotLook as error:
        fix = "the sidecar needs the node's /sys, which a container of KubeVirt's sees"
        raise Refusal(sysfs / error.fault.path, error.fault.wrong, fix) from error


def _refuse_missing(cards: tuple[GuestCard, ...]) -> None:
    fix = "expected the /sys of the node that the pod is on; for a bug report: gpu-plugin record DIR"
    errors = [Refusal(card.claim.entry, str(card.missing), fix) for card in cards if card.missing is not None]
    if errors:
        raise together(errors)


def _staying(
    asked: Asked, cards: tuple[GuestCard, ...], elements: Mapping[Entry, Element], ours: Mapping[str, Element]
) -> Mapping[Claim, PCIAddress]:
    """Where KubeVirt has placed cards, which stay there; none where the VM asks us to place them."""
    if asked.annotations.seats or asked.annotations.topology != "none":
        return {}
    indices = {number(element.get("index", "0")) for element in ours.values()}
    staying = {}
    for card in cards:
        address = guest_address_of(elements[card.claim.entry])
        if card.joins is None and address is not None and address.bus not in indices:
            staying[card.claim] = address
    return staying


def _on_slot(claim: Claim, cards: tuple[GuestCard, ...]) -> list[GuestCard]:
    """The claim's own card, which is its first, and what other entries have of that."""
    return [next(card for card in cards if card.claim == claim), *(card for card in cards if card.joins == claim)]


def _stays(claim: Claim, at: PCIAddress, on_slot: list[GuestCard]) -> Seat:
    """The seat that KubeVirt has given."""
    return Seat(claim=claim, bus=at.bus, hostdevs=tuple(hostdevs_of(at.bus, on_slot, at.slot)))


def _laid_out(
    guest: Guest, cards: tuple[GuestCard, ...], host: Host, facts: Facts, root: Element
) -> tuple[Layout, tuple[Cell, ...]]:
    """The layout, and the cells that the domain has to be given for it.

    None where it has some of its own: more than the one that KubeVirt writes for memory that others map.
    """
    pinned = pinning_in(root)
    layout = laid_out(guest, cards, host, facts, pinned)
    if guest.topology == "none":
        return layout, ()
    has = cells_in(root, facts.processors)
    passed_through = root.find("memoryBacking/allocation[@mode='immediate']") is not None
    if has and (passed_through or (len(has) > 1 and _sizes(has) != _sizes(layout.cells))):
        return laid_out(guest, cards, host, facts, pinned, has), ()
    return layout, layout.cells


def _sizes(cells: tuple[Cell, ...]) -> list[tuple[tuple[int, ...], int]]:
    return [(cell.vcpus, cell.memory) for cell in cells]


def _hole(guest: Guest, layout: Layout, root: Element, facts: Facts) -> tuple[Hole | None, tuple[Problem, ...]]:
    """The hole that all cards need, those too that are behind bridges of KubeVirt's, above all memory that there may
    be. UserError where a bridge or a card is on a bus that there is not."""
    with_all = replace(layout, bridges=(*layout.bridges, *edits.other_bridges(root)))
    buses = {seat.bus for seat in layout.seats} | {bridge.address.bus for bridge in with_all.bridges}
    if nowhere := sorted(buses - {0, *(bridge.index for bridge in with_all.bridges)}):
        raise UserError("the domain", f"has no bus {nowhere[0]}, and a device there", "expected a controller for it")
    return hole_of(replace(guest, memory=most_memory_in(root)), with_all, facts)


def _lines(seats: tuple[Seat, ...], layout: Layout, host: Host) -> tuple[str, ...]:
    """`gpu 'gpu1': 0000:41:00.0 (VGA), 0000:41:00.1 (audio); in the guest 0000:01:00.0, .1`."""
    seen = layout.seen()
    lines = []
    for seat in seats:
        first, *others = seat.hostdevs
        functions = ", ".join(_words(device, host) for device in seat.hostdevs)
        numbers = "".join(f", .{device.address.function}" for device in others)
        if first in seen:
            at = f"in the guest {seen[first]}{numbers}"
        else:
            at = f"it stays where KubeVirt has put it, in slot {first.address.slot} of bus {first.address.bus}"
        lines.append(f"{seat.claim.entry}: {functions}; {at}")
    return tuple(lines)


def _words(device: HostDev, host: Host) -> str:
    function = host.functions.get(device.source) if isinstance(device.source, PCIAddress) else None
    return str(device.source) if function is None else what(function)
