"""All stages in their order, from the manifest to the domain: `render`, `explain`, `check` and `run` call one function.

Where a stage refuses, those that need nothing of it go on, so that a user hears of everything at once.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from launcher.checks.network import not_tuned, reached_elsewhere
from launcher.checks.seats import misplaced, of_bars
from launcher.checks.variables import of_left_over
from launcher.claims import Allocated, DeviceID, Entry, LeftOver, VirtualFunctionOf, claim
from launcher.cpus.pinning import Pinning
from launcher.cpus.placement import pinning
from launcher.devices.devices import GuestDevices, guest_devices
from launcher.domain import domain_element, serialised
from launcher.facts import Facts
from launcher.guest import Guest
from launcher.guest_pci.addresses import Layout
from launcher.guest_pci.bars import Hole, read_bars
from launcher.guest_pci.hole import hole as hole_of
from launcher.guest_pci.topology import laid_out
from launcher.hostdevs import GuestCard, not_passed_on, whole_cards
from launcher.manifest.guest import guest_of
from launcher.manifest.hostdevices import ResourceClaim
from launcher.manifest.spec import Spec, VirtualMachineInstance
from launcher.network.attachments import Attached
from launcher.network.multus import virtual_function
from launcher.pipeline.pod import Pod, allocated_in, host_in, processors_in
from launcher.selection.annotations import refuse_without_dra
from launcher.versions import NEWER, NEWER_FOR_QEMU, Newer, newer_elements
from pci.host import Host
from program.errors import ProgramError, Refusal
from program.finding import Finding, worst_first
from program.problem import Severity

if TYPE_CHECKING:  # what is printed alone needs no storage
    from launcher.storage.media import Need

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What is to be started, where, and what was found on the way.

    `cards` are those of the entries that have a device, and `host` is None where no sysfs was read. `layout` and `xml`
    are None where a stage has refused that they rest on; where none has, they are there. `newer` are the domain's
    elements that not every libvirt and QEMU knows.

    Of a place on this machine alone: `needs` is what is made on disk for the guest, and `locked` are the bytes that its
    QEMU has to be able to lock.

    `refused` are the stages' errors, in their order; `findings` is what was found besides, of any level.
    """

    vmi: VirtualMachineInstance
    guest: Guest
    pod: Pod
    host: Host | None
    cards: tuple[GuestCard, ...]
    left_over: tuple[LeftOver, ...]
    facts: Facts
    pinning: Pinning | None
    layout: Layout | None
    hole: Hole | None
    network_cards: tuple[Attached, ...]
    xml: str | None
    newer: tuple[Newer, ...]
    needs: "tuple[Need, ...]" = ()
    locked: int = 0
    refused: tuple[ProgramError, ...]
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> tuple[ProgramError, ...]:
        """All that keeps it from starting."""
        others = (finding for finding in self.findings if finding.severity is Severity.ERROR)
        return (*self.refused, *(Refusal(*finding.problem) for finding in others))

    @property
    def warnings(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity is Severity.WARNING)

    @property
    def all_findings(self) -> tuple[Finding, ...]:
        """Errors of stages too, the worst first."""
        errors = (Finding(Severity.ERROR, problem) for error in self.refused for problem in error.problems)
        return worst_first((*errors, *self.findings))

    def having(self, findings: Iterable[Finding], refused: Iterable[ProgramError] = ()) -> "Start":
        """Return it with what else was found."""
        each_once = tuple(dict.fromkeys((*self.findings, *findings)))
        return replace(self, findings=each_once, refused=(*self.refused, *refused))


class Surroundings(Protocol):
    """Where a VM is to start: launcher.pipeline.this_pod, or launcher.pipeline.described_pod."""

    def facts(self, spec: Spec, guest: Guest, pod: Pod) -> tuple[Facts, tuple[Finding, ...]]:
        """Return what is known there besides the pod's CPUs and what sysfs shows."""

    def cpus(self, guest: Guest, pod: Pod) -> tuple[int, ...] | None:
        """Return the pod's CPUs, ascending, None where they are not known; Refusal where they should be."""

    def judged(self, start: Start) -> Start:
        """Return what the stages have made, with what there is to say of it at this place."""


def start_of(vmi: VirtualMachineInstance, pod: Pod, around: Surroundings) -> Start:
    """Go through all stages; what they refuse is in the result."""
    guest = guest_of(vmi)
    refused: list[ProgramError] = []
    facts, findings = around.facts(vmi.spec, guest, pod)
    entries = vmi.spec.domain.devices.entries
    host = tried(partial(host_in, entries, pod), refused)
    sees_host = not refused
    tried(partial(refuse_without_dra, vmi.metadata.annotations.selection, entries), refused)
    cards, left_over, are_all = _cards(vmi, pod, host, facts, refused)
    facts = replace(facts, bars=tried(partial(read_bars, pod.sysfs, cards), refused) or {})
    placed = tried(partial(_pinned, guest, pod, around, facts), refused) if sees_host else None
    facts, pinned = placed or (facts, None)
    layout, hole = None, None
    if are_all and (placed is not None or guest.topology == "none"):
        layout = tried(partial(laid_out, guest, cards, host, facts, pinned), refused)
    if layout is not None:
        hole, warnings = hole_of(guest, layout, facts)
        findings = (*findings, *misplaced(layout), *of_bars(warnings))
    devices = tried(partial(guest_devices, vmi.spec, vmi.metadata, guest, cards, facts), refused)
    domain = None
    if layout is not None and devices is not None and not refused:
        domain = domain_element(vmi, guest, layout, devices, facts, pinned=pinned, hole=hole)
    start = Start(
        vmi=vmi,
        guest=guest,
        pod=pod,
        host=host,
        cards=cards,
        left_over=left_over,
        facts=facts,
        pinning=pinned,
        layout=layout,
        hole=hole,
        network_cards=devices.network_cards if devices is not None else (),
        xml=None if domain is None else serialised(domain),
        newer=() if domain is None else newer_elements(domain, (*NEWER, *NEWER_FOR_QEMU)),
        refused=tuple(refused),
        findings=(*of_left_over(left_over), *_of_network(vmi.spec, devices), *findings),
    )
    return around.judged(start)


def tried(stage: Callable[[], T], refused: list[ProgramError]) -> T | None:
    """Return what the stage makes; None where it refuses, and then its error is one more of `refused`."""
    try:
        return stage()
    except ProgramError as error:
        refused.append(error)
        return None


def _cards(
    vmi: VirtualMachineInstance, pod: Pod, host: Host | None, facts: Facts, refused: list[ProgramError]
) -> tuple[tuple[GuestCard, ...], tuple[LeftOver, ...], bool]:
    """What the guest gets; what nobody does; and whether the first is all that the manifest asks for."""
    entries, claims = vmi.spec.domain.devices.entries, vmi.spec.resourceClaims
    given = [tried(partial(_allocated, claims, pod, facts, entry), refused) for entry in entries]
    allocated = {wants: device for each in given if each is not None for wants, device in each.items()}
    claimed = claim(entries, pod.environ, host, allocated)
    refused += claimed.unmet.values()
    cards = whole_cards(claimed.claims, claimed.left_over, host, vmi.metadata.annotations.companions)
    return cards, not_passed_on(claimed.left_over, cards), not claimed.unmet and None not in given


def _allocated(claims: tuple[ResourceClaim, ...], pod: Pod, facts: Facts, entry: Entry) -> Mapping[Allocated, DeviceID]:
    """What was given to this entry by another than a device plugin; empty for one that asks a device plugin."""
    if isinstance(entry.wants, VirtualFunctionOf):
        return {entry.wants: virtual_function(entry.wants, facts.pod_interfaces)}
    return dict(allocated_in(claims, pod, entry).items())


def _of_network(spec: Spec, devices: GuestDevices | None) -> Iterator[Finding]:
    yield from not_tuned(spec.domain.devices)
    if devices is not None:
        yield from reached_elsewhere(devices.network_cards)


def _pinned(guest: Guest, pod: Pod, around: Surroundings, facts: Facts) -> tuple[Facts, Pinning | None]:
    """The facts with the pod's CPUs and the node's, and which of them are the guest's."""
    facts = replace(facts, processors=processors_in(guest, pod), cpus=around.cpus(guest, pod))
    return facts, pinning(guest, facts)
