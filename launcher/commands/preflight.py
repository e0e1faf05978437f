"""What `run` looks at before a start, and `check` by hand: the stages in this pod, and what stands in their way."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from launcher.checks.cgroup import cpus, memory, read_limits
from launcher.checks.devices import in_sysfs, in_the_container, read_nodes
from launcher.checks.firmware import firmware, read_images
from launcher.checks.hugepages import hugepages, read_pools
from launcher.checks.kvm import kvm
from launcher.checks.memlock import memlock, to_be_locked
from launcher.checks.opening import opened
from launcher.checks.ports import ports
from launcher.checks.programs import missing_programs, programs, programs_of
from launcher.checks.seats import misplaced, of_bars
from launcher.checks.space import read_rooms, space
from launcher.checks.variables import of_entries, of_left_over
from launcher.checks.volumes import volumes
from launcher.claims import claim_what_is_there, entries
from launcher.commands.answers import say
from launcher.commands.pods import Pod, address_bits_in, allocated_in, host_in, processors_in
from launcher.cpus.host import cpuset_of_pod
from launcher.cpus.placement import pinning
from launcher.facts import Facts
from launcher.guest_pci import hole
from launcher.guest_pci.addresses import Layout
from launcher.guest_pci.bars import read_bars
from launcher.guest_pci.topology import laid_out
from launcher.hostdevs import Card, not_passed_on, whole_cards
from launcher.manifest.hostdevices import Request
from launcher.manifest.spec import VirtualMachineInstance
from launcher.pod.memory import overhead
from launcher.running.embedded import has_qemu_here, is_embedded
from launcher.running.limits import let_lock, open_files
from launcher.storage.made import Need
from launcher.storage.needs import needs_of
from launcher.storage.volumes import facts_of_volumes
from pci.host import Host
from program.errors import ProgramError, Refusal
from program.finding import Finding, worst, worst_first
from program.problem import Severity

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where QEMU is to run: libvirt's URI, whether KVM is not to be used, and the directories that stand for /, /dev
    and /proc; None for what is not looked at. `guest_runs` is whether this VM runs already, and has what it needs."""

    uri: str
    emulation: bool = False
    root: Path = Path("/")
    dev: Path | None = Path("/dev")
    proc: Path | None = Path("/proc")
    guest_runs: bool = False


@dataclass(frozen=True, slots=True)
class Start:
    """What the domain is made of.

    `needs` is what is made on disk for it, where its QEMU is on this machine; `locked` are the bytes that its QEMU has
    to be able to lock, 0 where that is none of this process's.
    """

    cards: tuple[Card, ...]
    facts: Facts
    layout: Layout
    needs: tuple[Need, ...]
    locked: int


def cleared(vmi: VirtualMachineInstance, pod: Pod, place: Place) -> Start:
    """What is to be started. Refusal where something keeps it from that; warnings are said, and so are all errors where
    there are several."""
    findings, start = preflight(vmi, pod, place)
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    say(finding for finding in findings if finding.severity is Severity.WARNING or len(errors) > 1)
    if len(errors) == 1:
        raise Refusal(*errors[0].problem)
    if errors or start is None:
        raise Refusal("the VM", f"{len(errors)} things keep it from starting", "the lines above say each, with its fix")
    return start


def preflight(vmi: VirtualMachineInstance, pod: Pod, place: Place) -> tuple[tuple[Finding, ...], Start | None]:
    """All that stands in the way of a start, the worst first; and what is to be started, None where something does.

    Raises this process's memlock limit to what has to be locked, which is how it finds out whether that can be.
    """
    assert pod.sysfs is not None, "it is this pod's"
    findings: list[Finding] = []
    is_ours = is_embedded(place.uri)  # another libvirt runs QEMU where this process cannot look

    host = _tried(lambda: host_in(vmi, pod), findings)
    cards, are_all = _cards(vmi, pod, host, findings)
    if host is not None:
        findings += in_sysfs(cards, host, pod.sysfs)
    facts = facts_of_volumes(vmi.spec, place.root, pod.sysfs)
    facts = replace(
        facts,
        kvm=not place.emulation and not (is_ours and _without_kvm(vmi, place, findings)),
        address_bits=address_bits_in(pod) if has_qemu_here(place.uri) else None,
        bars=_tried(lambda: read_bars(pod.sysfs, cards), findings) or {},
    )
    placed = _on_processors(vmi, facts, pod.sysfs, findings)
    layout = None
    if placed is not None and are_all:
        layout = _tried(lambda: laid_out(vmi, cards, host, placed), findings)
    if layout is not None:
        findings += _of_layout(vmi, layout, placed or facts)
    needs: tuple[Need, ...] = ()
    if has_qemu_here(place.uri):  # another machine's QEMU, and the test driver, see no disk of this one
        needs, refusals = needs_of(vmi, placed or facts, place.root)
        findings += _errors(*refusals)
    if is_ours:
        findings += _surroundings(vmi, cards, host, layout, placed or facts, needs, pod, place)
    ready = None
    if placed is not None and layout is not None and worst(findings) < Severity.ERROR:
        ready = Start(cards, placed, layout, needs, to_be_locked(vmi, cards) if is_ours else 0)
    return worst_first(findings), ready


def _cards(
    vmi: VirtualMachineInstance, pod: Pod, host: Host | None, findings: list[Finding]
) -> tuple[tuple[Card, ...], bool]:
    """What the guest gets; and whether that is all that the manifest asks for."""
    devices = vmi.spec.domain.devices
    asking = [entry for entry in entries(devices) if isinstance(entry.wants, Request)]
    given = [_tried(partial(allocated_in, vmi, pod, (entry,)), findings) for entry in asking]
    allocated = {request: device for each in given if each is not None for request, device in each.items()}
    claimed = claim_what_is_there(devices, pod.environ, host, allocated)
    findings += of_entries(claimed.unmet.values())
    cards = whole_cards(claimed.claims, claimed.left_over, host, vmi.metadata.annotations.companions)
    findings += of_left_over(not_passed_on(claimed.left_over, cards))
    return cards, not claimed.unmet and None not in given


def _without_kvm(vmi: VirtualMachineInstance, place: Place, findings: list[Finding]) -> bool:
    if place.dev is None or place.emulation:
        return False
    device = place.dev / "kvm"
    outcome = opened(device)
    finding = kvm(device, outcome, emulation_allowed=vmi.metadata.annotations.allow_emulation)
    findings += [] if finding is None else [finding]
    return outcome is not None


def _on_processors(vmi: VirtualMachineInstance, facts: Facts, sys: Path, findings: list[Finding]) -> Facts | None:
    """The facts with the pod's CPUs and the node's, where the guest has some for itself; None where it cannot."""
    processors = _tried(lambda: processors_in(vmi, sys), findings)
    if processors is None:
        return None
    facts = replace(facts, processors=processors)
    if vmi.spec.domain.cpu.dedicatedCpuPlacement:
        cpus = _tried(lambda: cpuset_of_pod(sys), findings)
        if cpus is None:
            return None
        facts = replace(facts, cpus=cpus)
    return facts if _tried(lambda: (pinning(vmi, facts),), findings) is not None else None


def _of_layout(vmi: VirtualMachineInstance, layout: Layout, facts: Facts) -> Iterator[Finding]:
    yield from misplaced(layout)
    yield from of_bars(hole.warnings(vmi, layout, facts))


def _surroundings(
    vmi: VirtualMachineInstance,
    cards: tuple[Card, ...],
    host: Host | None,
    layout: Layout | None,
    facts: Facts,
    needs: tuple[Need, ...],
    pod: Pod,
    place: Place,
) -> Iterator[Finding]:
    """What a QEMU of this process would find."""
    assert pod.sysfs is not None, "it is this pod's"
    if place.dev is not None and host is not None:
        yield from in_the_container(cards, host, read_nodes(place.dev, cards, host), guest_runs=place.guest_runs)
    locked = to_be_locked(vmi, cards)
    limits = read_limits(pod.sysfs, _text(place.proc, "self/cgroup"))
    for finding in (
        None if place.guest_runs else memlock(locked, let_lock(locked)),
        memory(vmi, limits.memory, sum(part.size for part in overhead(vmi)), is_pinned=locked > 0),
        cpus(vmi, limits.cpus),
        ports(vmi, _text(place.proc, "sys/net/ipv4/ip_local_port_range"), open_files()),
    ):
        if finding is not None:
            yield finding
    if (wanted := vmi.spec.domain.memory.hugepages) is not None:
        pools = read_pools(pod.sysfs, wanted.pageSize, _text(place.proc, "self/mounts"))
        cells = layout.cells if layout is not None else ()
        yield from hugepages(vmi, cells, pools, limits, guest_runs=place.guest_runs)
    yield from firmware(vmi, read_images(place.root))
    called = programs_of(vmi)
    yield from programs(called, missing_programs(called, pod.environ.get("PATH")))
    yield from volumes(vmi, facts, place.root)
    yield from space(read_rooms(needs))


def _tried(stage: Callable[[], T], findings: list[Finding]) -> T | None:
    """What the stage says; None where it refuses, and then that is a finding."""
    try:
        return stage()
    except ProgramError as error:
        findings += _errors(error)
        return None


def _errors(*errors: ProgramError) -> list[Finding]:
    return [Finding(Severity.ERROR, problem) for error in errors for problem in error.problems]


def _text(directory: Path | None, path: str) -> str:
    """A file of /proc; empty for what cannot be read."""
    if directory is None:
        return ""
    try:
        return (directory / path).read_text(errors="replace")
    except OSError:
        return ""
