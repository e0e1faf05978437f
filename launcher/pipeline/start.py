"""All stages in their order, from the manifest to the domain, for `render`, `explain`, `check` and `run`.

If a stage refuses, the stages that do not depend on it go on, so that a user sees all errors at once.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from launcher.pipeline.pod import Pod, allocated_in, host_in
from launcher.vm.cards.annotations import refuse_without_dra
from launcher.vm.cards.checks import other_driver, seated
from launcher.vm.cards.claims import Allocated, DeviceID, Entry, LeftOver, VirtualFunctionOf, claim
from launcher.vm.cards.guest import GuestCard, not_passed_on, refuse_grace, whole_cards
from launcher.vm.cards.manifest import ResourceClaim
from launcher.vm.cards.peer_to_peer import NO_PROPERTIES, cliques_in, properties_of, without_peer
from launcher.vm.cpu.guest import Pinning, pinning
from launcher.vm.domain import domain_element, serialised
from launcher.vm.facts import Facts
from launcher.vm.from_spec import guest_devices, guest_of
from launcher.vm.guest import Guest
from launcher.vm.guest_pci.addresses import Layout
from launcher.vm.guest_pci.bars import hole as hole_of
from launcher.vm.guest_pci.bars import read_bars, without_hole
from launcher.vm.guest_pci.topology import laid_out
from launcher.vm.network.checks import not_tuned, reached_elsewhere
from launcher.vm.network.guest import Attached
from launcher.vm.network.multus import virtual_function
from launcher.vm.spec import Spec, VirtualMachineInstance
from launcher.vm.versions import NEWER, NEWER_FOR_QEMU, Newer, nearest, newer_elements
from launcher.vm.volumes.guest import from_the_start
from pci.host import Host
from pci.processors import Processors
from program.errors import ProgramError, Refusal
from program.finding import Finding, worst_first
from program.problem import Problem, Severity

if TYPE_CHECKING:  # what is printed alone needs no storage
    from launcher.vm.volumes.media import Need

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What is to be started, where, and all findings on the way.

    `cards`: the cards of the entries that have a device. `host`: None if no sysfs was read. `layout` and `xml`: None if
    a stage on which they depend has refused. `newer`: the domain's elements that not every libvirt and QEMU knows.
    `needs`: what is made on disk; `locked`: the bytes that QEMU has to be able to lock, both only for a start here.
    `refused`: the stages' errors, in their order; `findings`: what else was found, of any level.
    """

    vmi: VirtualMachineInstance
    guest: Guest
    pod: Pod
    host: Host | None
    cards: tuple[GuestCard, ...]
    left_over: tuple[LeftOver, ...]
    facts: Facts
    layout: Layout | None
    network_cards: tuple[Attached, ...]
    cliques: Mapping[str, int]
    xml: str | None
    newer: tuple[Newer, ...]
    needs: "tuple[Need, ...]" = ()
    locked: int = 0
    refused: tuple[ProgramError, ...]
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> tuple[ProgramError, ...]:
        """All that keeps the VM from starting."""
        others = (finding for finding in self.findings if finding.severity is Severity.ERROR)
        return (*self.refused, *(Refusal(*finding.problem) for finding in others))

    @property
    def warnings(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity is Severity.WARNING)

    @property
    def all_findings(self) -> tuple[Finding, ...]:
        """The findings, with the stages' errors, the worst first."""
        errors = (Finding(Severity.ERROR, problem) for error in self.refused for problem in error.problems)
        return worst_first((*errors, *self.findings))

    def with_findings(self, findings: Iterable[Finding], refused: Iterable[ProgramError] = ()) -> "Start":
        """Return the start with these findings and errors as well."""
        each_once = tuple(dict.fromkeys((*self.findings, *findings)))
        return replace(self, findings=each_once, refused=(*self.refused, *refused))


class Surroundings(Protocol):
    """The place where a VM is to start: launcher.pipeline.this_pod, or launcher.pipeline.described_pod."""

    def facts(self, spec: Spec, guest: Guest, pod: Pod) -> tuple[Facts, tuple[Finding, ...]]:
        """Return the facts of the place, except the pod's CPUs and what sysfs shows."""

    def cpus(self, guest: Guest, pod: Pod) -> tuple[tuple[int, ...] | None, Processors, tuple[Finding, ...]]:
        """Return the pod's CPUs, ascending, None for a guest without CPUs of its own; the node's processors; and what
        is assumed of both. Refusal if they should be known and are not."""

    def machines(self, guest: Guest) -> frozenset[str] | None:
        """Return the names of QEMU's machines; None if unknown."""

    def complete(self, start: Start) -> Start:
        """Return the start with the findings of this place, and all else that the place adds."""


def start_of(vmi: VirtualMachineInstance, pod: Pod, around: Surroundings) -> Start:
    """Run all stages; their errors are in the result."""
    guest = guest_of(vmi)
    if vmi.metadata.annotations.nearest_machine:
        guest = replace(guest, machine=nearest(guest.machine, around.machines(guest)))
    refused: list[ProgramError] = []
    facts, findings = around.facts(vmi.spec, guest, pod)
    entries = vmi.spec.domain.devices.entries
    host = attempt(partial(host_in, entries, pod), refused)
    sees_host = not refused
    attempt(partial(refuse_without_dra, vmi.metadata.annotations.selection, entries), refused)
    cards, left_over, are_all = _cards(vmi, pod, host, facts, refused)
    attempt(partial(refuse_grace, cards, host), refused)
    facts = replace(facts, bars=attempt(partial(read_bars, pod.sysfs, cards), refused) or {})
    placed = attempt(partial(_pinned, guest, pod, around, facts), refused) if sees_host else None
    facts, pinned, assumptions = placed or (facts, None, ())
    layout, hole = None, None
    of_bars: tuple[Problem, ...] = ()
    if are_all and (placed is not None or guest.topology == "none"):
        layout = attempt(partial(laid_out, guest, cards, host, facts, pinned), refused)
    if layout is not None:
        hole, of_bars = hole_of(guest, layout, facts)
        if not vmi.metadata.annotations.has_hole:
            hole = attempt(partial(without_hole, guest, layout, facts), refused)
    devices = attempt(partial(guest_devices, vmi.spec, vmi.metadata, guest, cards, facts), refused)
    wishes = vmi.metadata.annotations
    properties = attempt(
        partial(properties_of, cards, host, in_cliques=wishes.in_cliques, maps_bars=wishes.maps_bars), refused
    )
    domain = None
    if layout is not None and devices is not None and properties is not None and not refused:
        domain = domain_element(vmi, guest, layout, devices, facts, pinned=pinned, hole=hole, properties=properties)
    start = Start(
        vmi=vmi,
        guest=guest,
        pod=pod,
        host=host,
        cards=cards,
        left_over=left_over,
        facts=facts,
        layout=layout,
        network_cards=devices.network_cards if devices is not None else (),
        cliques=cliques_in(properties or NO_PROPERTIES),
        xml=None if domain is None else serialised(domain),
        newer=() if domain is None else newer_elements(domain, (*NEWER, *NEWER_FOR_QEMU)),
        refused=tuple(refused),
        findings=(),
    )
    return around.complete(start.with_findings((*_checks(start, of_bars), *assumptions, *findings)))


def _checks(start: Start, of_bars: Iterable[Problem]) -> Iterator[Finding]:
    """Yield what every command says, thing by thing. What only some places can tell, they add in `complete`."""
    # The pod holds these devices, so that no other pod can have them.
    yield from (Finding(Severity.WARNING, left.problem) for left in start.left_over)
    yield from seated(start.cards, start.layout, of_bars)
    yield from without_peer(start.cards, start.cliques)
    yield from other_driver(start.vmi.metadata.annotations.selection.driver, start.pod.environ)
    yield from from_the_start(start.vmi.spec.volumes)
    yield from not_tuned(start.vmi.spec.domain.devices)
    yield from reached_elsewhere(start.network_cards)


def attempt(stage: Callable[[], T], refused: list[ProgramError]) -> T | None:
    """Return the stage's result; if it refuses, add its error to `refused` and return None."""
    try:
        return stage()
    except ProgramError as error:
        refused.append(error)
        return None


def _cards(
    vmi: VirtualMachineInstance, pod: Pod, host: Host | None, facts: Facts, refused: list[ProgramError]
) -> tuple[tuple[GuestCard, ...], tuple[LeftOver, ...], bool]:
    """Return the guest's cards, the devices that no entry gets, and whether every entry has its card."""
    entries, claims = vmi.spec.domain.devices.entries, vmi.spec.resourceClaims
    allocations = [attempt(partial(_allocated, claims, pod, facts, entry), refused) for entry in entries]
    allocated = {wants: device for each in allocations if each is not None for wants, device in each.items()}
    claimed = claim(entries, pod.environ, host, allocated)
    refused += claimed.unmet.values()
    companions = vmi.metadata.annotations.companions
    cards = whole_cards(claimed.claims, claimed.left_over, host, companions, facts.vfio_nodes)
    return cards, not_passed_on(claimed.left_over, cards), not claimed.unmet and None not in allocations


def _allocated(claims: tuple[ResourceClaim, ...], pod: Pod, facts: Facts, entry: Entry) -> Mapping[Allocated, DeviceID]:
    """Return the device of an entry that DRA or Multus serves; empty for an entry of a device plugin's."""
    if isinstance(entry.wants, VirtualFunctionOf):
        return {entry.wants: virtual_function(entry.wants, facts.pod_interfaces)}
    return dict(allocated_in(claims, pod, entry).items())


def _pinned(
    guest: Guest, pod: Pod, around: Surroundings, facts: Facts
) -> tuple[Facts, Pinning | None, tuple[Finding, ...]]:
    """Return the facts with the pod's and the node's CPUs, the guest's own CPUs, and what is assumed of all of them."""
    cpus, processors, assumptions = around.cpus(guest, pod)
    facts = replace(facts, processors=processors, cpus=cpus)
    return facts, pinning(guest, facts), assumptions
