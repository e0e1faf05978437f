"""This pod as the place of a start, for `run` and `check`. Whatever prevents the start is found before it."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.pipeline.pod import Pod, address_bits_in, transparent_in
from launcher.pipeline.start import Start
from launcher.runtime.embedded import has_qemu_here, root_of
from launcher.runtime.suspendable import suspendable
from launcher.runtime.user import let_lock, open_files
from launcher.vm.cards.checks import in_sysfs, in_the_container, read_nodes
from launcher.vm.checks import OWN_MACHINE, POD, Wording, opened
from launcher.vm.cpu.checks import cpus, kvm
from launcher.vm.cpu.facts import cpuset_of_pod, processors_for
from launcher.vm.facts import Facts, OwnMachine, PodInterface
from launcher.vm.files import needs_of
from launcher.vm.firmware.checks import firmware, read_images
from launcher.vm.guest import Guest
from launcher.vm.memory.checks import (
    Limits,
    hugepages,
    memlock,
    memory,
    read_limits,
    read_pools,
    slow_start,
    to_be_locked,
)
from launcher.vm.memory.guest import allocation
from launcher.vm.memory.pod import mapped_bars, overhead
from launcher.vm.network.checks import ports, privileged
from launcher.vm.network.facts import read_pod_interfaces
from launcher.vm.paths import SUSPENDED, below
from launcher.vm.programs import machines_of, missing_programs, programs, programs_of
from launcher.vm.security.checks import quotes
from launcher.vm.spec import Spec
from launcher.vm.versions import kernel_version
from launcher.vm.volumes.checks import read_rooms, space, volumes
from launcher.vm.volumes.facts import facts_of_volumes
from launcher.vm.volumes.media import Needs
from pci.processors import Processors
from program.errors import UserError
from program.finding import Finding
from program.problem import Severity

#: Seconds for the kubelet to write what Multus says of the pod into its file: it does when it next hears of the pod.
_NETWORK_STATUS_WITHIN = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ThisPod:
    """The place where QEMU is to run: libvirt's URI, `emulation` for QEMU's own CPU instead of KVM, and the directories
    that stand for /, /dev and /proc, None to read nothing there. `guest_runs`: the VM runs already. `own`: the VM's
    place on a user's own machine; None in a pod."""

    uri: str
    emulation: bool = False
    root: Path = Path("/")
    dev: Path | None = Path("/dev")
    proc: Path | None = Path("/proc")
    guest_runs: bool = False
    own: OwnMachine | None = None

    @property
    def wording(self) -> Wording:
        return POD if self.own is None else OWN_MACHINE

    def facts(self, spec: Spec, guest: Guest, pod: Pod) -> tuple[Facts, tuple[Finding, ...]]:
        """Return the facts of the pod's volumes, of Multus' interfaces, and of KVM, which is opened to know."""
        is_here = has_qemu_here(self.uri)
        networks, findings = self._networks(spec) if is_here else (None, ())
        facts = replace(
            facts_of_volumes(spec, self.root, _sysfs_of(pod), self.own),
            kvm=not self.emulation,
            address_bits=address_bits_in(pod) if is_here else None,
            pod_interfaces=networks,
            vfio_nodes=None if self.dev is None or root_of(self.uri) is None else _vfio_nodes(self.dev / "vfio"),
        )
        if self.dev is None or self.emulation or root_of(self.uri) is None:
            return facts, findings
        device = self.dev / "kvm"
        outcome = opened(device)
        finding = kvm(device, outcome, emulation_allowed=guest.allows_emulation, wording=self.wording)
        return replace(facts, kvm=outcome is None), findings if finding is None else (*findings, finding)

    def cpus(self, guest: Guest, pod: Pod) -> tuple[tuple[int, ...] | None, Processors, tuple[Finding, ...]]:
        processors = processors_for(guest, pod.sysfs)
        return cpuset_of_pod(_sysfs_of(pod)) if guest.has_own_cpus else None, processors, ()

    def machines(self, guest: Guest) -> frozenset[str] | None:
        return machines_of(f"qemu-system-{guest.qemu_architecture}") if has_qemu_here(self.uri) else None

    def _networks(self, spec: Spec) -> tuple[Mapping[str, PodInterface], tuple[Finding, ...]]:
        try:
            return read_pod_interfaces(spec, self.root, _NETWORK_STATUS_WITHIN), ()
        except UserError as wrong:
            return {}, (Finding(Severity.ERROR, wrong.problem),)

    def complete(self, start: Start) -> Start:
        """Return the start with the files to make, the bytes to lock, and all that keeps the guest from starting.

        Raise this process's memlock limit to what has to be locked: that tells whether it can be.
        """
        findings = (
            [*in_sysfs(start.cards, start.host, _sysfs_of(start.pod), self.wording)] if start.host is not None else []
        )
        # Another machine's QEMU, and the test driver, see no disk of this one.
        made = needs_of(start.vmi, start.facts, self.root) if has_qemu_here(self.uri) else Needs((), ())
        start = replace(start, needs=made.needs)
        if root_of(self.uri) is not None:  # another libvirt runs QEMU where this process cannot look
            start = replace(start, locked=to_be_locked(start.guest, start.cards))
            findings += _checks(start, self)
        return start.with_findings(findings, made.refusals)


def _sysfs_of(pod: Pod) -> Path:
    assert pod.sysfs is not None, "it is this pod's"
    return pod.sysfs


def _checks(start: Start, place: ThisPod) -> Iterator[Finding]:
    """Yield all that keeps a QEMU of this process from running the guest, or from running it well, thing by thing."""
    spec, guest, sysfs, wording = start.vmi.spec, start.guest, _sysfs_of(start.pod), place.wording
    annotations = start.vmi.metadata.annotations
    limits = read_limits(sysfs, _text(place.proc, "self/cgroup"))
    if place.dev is not None and start.host is not None:
        nodes = read_nodes(place.dev, start.cards, start.host, by_iommufd=annotations.by_iommufd)
        yield from in_the_container(start.cards, start.host, nodes, guest_runs=place.guest_runs, wording=wording)
    yield from _of_memory(start, place, limits)
    yield from _if_any(cpus(guest, limits.cpus), quotes(guest, place.root, wording))
    yield from _if_any(ports(start.network_cards, _text(place.proc, "sys/net/ipv4/ip_local_port_range"), open_files()))
    first = _text(place.proc, "sys/net/ipv4/ip_unprivileged_port_start")
    yield from privileged(start.network_cards, first, is_root=os.geteuid() == 0)
    yield from firmware(guest, read_images(place.root))
    called = programs_of(spec, guest)
    yield from programs(called, missing_programs(called, start.pod.environ.get("PATH")))
    yield from volumes(spec, start.facts, place.root, start.needs, wording)
    yield from space(read_rooms(start.needs), wording)
    if start.xml is not None and annotations.suspend_to and place.own is None:
        grace = spec.terminationGracePeriodSeconds if annotations.suspends_on_drain else None
        yield from suspendable(start.xml, guest.memory, sysfs, below(place.root, SUSPENDED), grace)


def _of_memory(start: Start, place: ThisPod, limits: Limits) -> Iterator[Finding]:
    spec, guest, sysfs = start.vmi.spec, start.guest, _sysfs_of(start.pod)
    if not place.guest_runs:
        takes = None if start.layout is None else allocation(guest, start.layout, transparent_in(start.pod))
        yield from _if_any(None if takes is None else slow_start(guest, takes))
        yield from _if_any(memlock(start.locked, let_lock(start.locked), place.wording))
    # The image's QEMU aligns BARs as this takes it.
    bars = mapped_bars(
        sum(bar.size for bars in start.facts.bars.values() for bar in bars if not bar.is_io),
        kernel_version(_text(place.proc, "sys/kernel/osrelease")),
    )
    beside = sum(part.size for part in overhead(spec, guest, bars))
    yield from _if_any(memory(guest, limits.memory, beside, is_pinned=start.locked > 0))
    if guest.page is not None:
        pools = read_pools(sysfs, guest.page, _text(place.proc, "self/mounts"))
        cells = start.layout.cells if start.layout is not None else ()
        yield from hugepages(
            guest, guest.page, cells, pools, limits, guest_runs=place.guest_runs, wording=place.wording
        )


def _if_any(*findings: Finding | None) -> Iterator[Finding]:
    return (finding for finding in findings if finding is not None)


def _vfio_nodes(vfio: Path) -> frozenset[str]:
    """The names below /dev/vfio; empty without that directory."""
    return frozenset(str(path.relative_to(vfio)) for path in (*vfio.glob("*"), *vfio.glob("devices/*")))


def _text(directory: Path | None, path: str) -> str:
    """The text of a file below /proc; empty if it cannot be read."""
    if directory is None:
        return ""
    try:
        return (directory / path).read_text(errors="replace")
    except OSError:
        return ""
