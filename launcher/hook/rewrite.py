"""The domain that KubeVirt has made, with whole cards on their seats: OnDefineDomain, from values to values.

KubeVirt defines the domain two or three times per start and asks each time. It sends back what it has understood of the
answer, with the addresses that libvirt has added. So the hook first takes out its own elements, and then puts them in
anew: it knows its bridges and idle controllers by their alias, and companions by their function on the host. Its answer
to its own answer is the same.

Where KubeVirt has placed a card itself, by its NUMA-aware topology or on the root complex, it stays there and gets its
companions, unless the VM asks for seats or a topology of ours (docs/decisions/0012-the-hook.md).
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from lxml import etree
from lxml.etree import _Element as Element

from launcher.hook import edits
from launcher.hook.cards import corrected
from launcher.hook.kubevirt_domain import (
    VMIRequest,
    cells_in,
    guest_address_of,
    guest_in,
    most_memory_in,
    named_in,
    number,
    parsed,
    pinning_in,
)
from launcher.vm.cards.checks import seated
from launcher.vm.cards.claims import Claim, Entry
from launcher.vm.cards.guest import GuestCard, grace_gpus, whole_cards
from launcher.vm.cpu.facts import processors_for
from launcher.vm.cpu.guest import Cell
from launcher.vm.facts import Facts
from launcher.vm.guest import ROM_OF, SEATS_OF, TOPOLOGY, Guest
from launcher.vm.guest_pci.addresses import HostDev, Layout, Seat, hostdevs_of
from launcher.vm.guest_pci.bars import Hole, read_bars
from launcher.vm.guest_pci.bars import hole as hole_of
from launcher.vm.guest_pci.topology import laid_out
from pci.address import PCIAddress
from pci.functions import what
from pci.host import Host
from pci.resource import USBAddress
from pci.sysfs.attribute import CannotLook
from pci.sysfs.functions import read_host
from program.errors import Refusal, UserError, together
from program.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """The domain's new XML, a line for each card with its functions and address, and warnings."""

    xml: bytes
    cards: tuple[str, ...] = ()
    warnings: tuple[Problem, ...] = ()


def rewritten(domain: bytes, request: VMIRequest, sysfs: Path) -> Rewritten:
    """Return the whole new domain; one without PCI devices of entries unchanged. `sysfs` stands for the node's /sys.

    ProgramError if anything is wrong: KubeVirt then starts no VM.
    """
    root = parsed(domain)
    named = named_in(root, request)
    _refuse_other_names(request, named)
    if all(isinstance(claim.device, USBAddress) for claim in named):
        return Rewritten(xml=domain)
    host = _read_host(sysfs)
    guest = guest_in(root, request)
    claims, warnings = corrected(tuple(named), host)
    cards = whole_cards(claims, (), host, request.annotations.companions)
    _refuse_missing(cards)
    _refuse_grace(cards, host, request, root)
    elements = {claim.entry: element for claim, element in named.items()}
    ours = edits.taken_out(root, elements.values(), {function for card in cards for function in card.functions})
    staying = _staying(request, cards, elements, ours)
    facts = Facts(
        kvm=root.get("type") != "qemu",
        processors=processors_for(guest, sysfs),
        bars=read_bars(sysfs, cards),
    )
    # A claim's own card, which is its first, and what other entries have of that.
    on_slots = {
        claim: [next(card for card in cards if card.claim == claim), *(card for card in cards if card.joins == claim)]
        for claim in staying
    }
    stay = {card for on_slot in on_slots.values() for card in on_slot}
    layout, cells = _laid_out(guest, tuple(card for card in cards if card not in stay), host, facts, root)
    edits.take_out_empty(root, [elements[claim.entry] for claim in claims if claim not in staying])
    layout = edits.indexed(layout, root, ours)
    kept = (
        Seat(claim=claim, bus=at.bus, hostdevs=tuple(hostdevs_of(at.bus, on_slots[claim], at.slot)))
        for claim, at in staying.items()
    )
    seats = (*layout.seats, *kept)
    hole, bars = _hole(guest, replace(layout, seats=seats), root, facts)
    if cells:
        edits.write_cells(root, cells)
    edits.write_hole(root, guest, hole)
    for name in request.annotations.roms:
        edits.write_no_rom(next(element for entry, element in elements.items() if entry.name == name))
    edits.write_devices(root, guest, layout, seats, elements, ours)
    edits.refuse_one_address_twice(root)
    return Rewritten(
        xml=etree.tostring(root),
        cards=(
            *_lines(seats, layout, host),
            *(f"{card.claim.entry} {left}" for card in cards for left in card.left_behind if not left.is_of_card),
        ),
        warnings=(*warnings, *(finding.problem for finding in seated(cards, layout, bars))),
    )


def _refuse_other_names(request: VMIRequest, named: Iterable[Claim]) -> None:
    names = Counter(claim.entry.name for claim in named)
    for annotation, mapping in ((SEATS_OF, request.annotations.seats), (ROM_OF, request.annotations.roms)):
        for name in mapping:
            if name not in names:
                known = f"expected one of {', '.join(sorted(names))}" if names else "leave it out: the domain has none"
                raise UserError("metadata.annotations", f"{annotation}: the domain has no card {name!r}", known)
            if names[name] > 1:
                both = f"{annotation}: a gpu and a hostDevice are called {name!r}"
                raise UserError("metadata.annotations", both, "rename one of them")


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


def _refuse_grace(cards: tuple[GuestCard, ...], host: Host, request: VMIRequest, root: Element) -> None:
    """Refuse a GPU of a Grace superchip if the domain lacks the SMMUv3, which KubeVirt makes behind a feature gate, or
    if annotations would move the GPU from there."""
    gpus = [(card.claim.entry, gpu) for card in cards for gpu in grace_gpus(card, host)]
    if not gpus:
        return
    entry, gpu = gpus[0]
    is_grace = f"{what(gpu)} is the GPU of a Grace superchip ({gpu.pci_id})"
    if root.find("devices/iommu[@model='smmuv3']") is None:
        wrong = f"{is_grace}, and the domain has no SMMUv3 for it"
        raise UserError(entry, wrong, "turn on KubeVirt's gate GraceIOVirtualization, or give the VM another card")
    if request.annotations.seats or request.annotations.topology != "none":
        wrong = f"{is_grace}, which stays behind the SMMUv3 where KubeVirt has put it"
        raise UserError(entry, wrong, f"leave out the annotations {TOPOLOGY} and {SEATS_OF}")


def _staying(
    request: VMIRequest, cards: tuple[GuestCard, ...], elements: Mapping[Entry, Element], ours: Mapping[str, Element]
) -> Mapping[Claim, PCIAddress]:
    """Return the addresses of the cards that KubeVirt has placed, which stay there; {} if the VM asks for seats or a
    topology."""
    if request.annotations.seats or request.annotations.topology != "none":
        return {}
    indices = {number(element.get("index", "0")) for element in ours.values()}
    staying = {}
    for card in cards:
        address = guest_address_of(elements[card.claim.entry])
        if card.joins is None and address is not None and address.bus not in indices:
            staying[card.claim] = address
    return staying


def _laid_out(
    guest: Guest, cards: tuple[GuestCard, ...], host: Host, facts: Facts, root: Element
) -> tuple[Layout, tuple[Cell, ...]]:
    """Return the layout, and the cells that the domain needs for it: () if the domain has cells of its own, more than
    the single one that KubeVirt writes for shared memory."""
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
    """Return the hole that all cards need, also those behind KubeVirt's bridges, above all memory that the guest may
    get. UserError if a bridge or a card is on a bus that does not exist."""
    with_all = replace(layout, bridges=(*layout.bridges, *edits.other_bridges(root)))
    buses = {seat.bus for seat in layout.seats} | {bridge.address.bus for bridge in with_all.bridges}
    if nowhere := sorted(buses - {0, *(bridge.index for bridge in with_all.bridges)}):
        raise UserError("the domain", f"has no bus {nowhere[0]}, and a device there", "expected a controller for it")
    return hole_of(replace(guest, memory=most_memory_in(root)), with_all, facts)


def _lines(seats: tuple[Seat, ...], layout: Layout, host: Host) -> tuple[str, ...]:
    """Return a line for each card: `gpu 'gpu1': 0000:41:00.0 (VGA), 0000:41:00.1 (audio); in the guest 0000:01:00.0,
    .1`."""
    seen = layout.guest_addresses()
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
