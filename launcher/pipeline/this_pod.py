"""This pod, as the place of a start: `run`, and `check` by hand. What speaks against it is found before it is tried."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.checks.access import opened
from launcher.checks.cgroup import cpus, memory, read_limits
from launcher.checks.devices import in_sysfs, in_the_container, read_nodes
from launcher.checks.firmware import firmware, read_images
from launcher.checks.hugepages import hugepages, read_pools
from launcher.checks.kvm import kvm
from launcher.checks.memlock import memlock, to_be_locked
from launcher.checks.ports import ports
from launcher.checks.programs import missing_programs, programs, programs_of
from launcher.checks.space import read_rooms, space
from launcher.checks.volumes import volumes
from launcher.cpus.host import cpuset_of_pod
from launcher.devices.roms import roms_of
from launcher.facts import Facts, PodInterface
from launcher.guest import Guest
from launcher.manifest.spec import Spec
from launcher.network.pod_interfaces import read_pod_interfaces
from launcher.pipeline.pod import Pod, address_bits_in
from launcher.pipeline.start import Start
from launcher.pod.memory import overhead
from launcher.runtime.embedded import has_qemu_here, is_embedded
from launcher.runtime.limits import let_lock, open_files
from launcher.storage.needs import Needs, needs_of
from launcher.storage.volumes import facts_of_volumes
from program.errors import UserError
from program.finding import Finding
from program.problem import Severity

#: Seconds for the kubelet to write what Multus says of the pod into its file: it does when it next hears of the pod.
_NETWORK_STATUS_WITHIN = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """Where QEMU is to run: libvirt's URI, whether KVM is not to be used, and the directories that stand for /, /dev
    and /proc; None for what is not looked at. `guest_runs` is whether this VM runs already, and has what it needs."""

    uri: str
    emulation: bool = False
    root: Path = Path("/")
    dev: Path | None = Path("/dev")
    proc: Path | None = Path("/proc")
    guest_runs: bool = False

    def facts(self, spec: Spec, guest: Guest, pod: Pod) -> tuple[Facts, tuple[Finding, ...]]:
        """What the pod's volumes say, what Multus has attached to it, and whether there is KVM, which is found out by
        opening it."""
        is_here = has_qemu_here(self.uri)
        networks, findings = self._networks(spec) if is_here else (None, ())
        facts = replace(
            facts_of_volumes(spec, self.root, _sysfs_of(pod)),
            kvm=not self.emulation,
            address_bits=address_bits_in(pod) if is_here else None,
            pod_interfaces=networks,
        )
        if self.dev is None or self.emulation or not is_embedded(self.uri):
            return facts, findings
        device = self.dev / "kvm"
        outcome = opened(device)
        finding = kvm(device, outcome, emulation_allowed=guest.allows_emulation)
        return replace(facts, kvm=outcome is None), findings if finding is None else (*findings, finding)

    def cpus(self, guest: Guest, pod: Pod) -> tuple[int, ...] | None:
        return cpuset_of_pod(_sysfs_of(pod)) if guest.has_own_cpus else None

    def _networks(self, spec: Spec) -> tuple[Mapping[str, PodInterface], tuple[Finding, ...]]:
        try:
            return read_pod_interfaces(spec, self.root, _NETWORK_STATUS_WITHIN), ()
        except UserError as wrong:
            return {}, (Finding(Severity.ERROR, wrong.problem),)

    def judged(self, start: Start) -> Start:
        """What is made on disk and locked for the guest, and all that stands in its way.

        Raises this process's memlock limit to what has to be locked, which is how it finds out whether that can be.
        """
        findings = [*in_sysfs(start.cards, start.host, _sysfs_of(start.pod))] if start.host is not None else []
        # Another machine's QEMU, and the test driver, see no disk of this one.
        made = needs_of(start.vmi, start.facts, self.root) if has_qemu_here(self.uri) else Needs((), ())
        start = replace(start, needs=made.needs)
        if is_embedded(self.uri):  # another libvirt runs QEMU where this process cannot look
            start = replace(start, locked=to_be_locked(start.guest, start.cards))
            findings += _around_qemu(start, self)
        return start.having(findings, made.refusals)


def _sysfs_of(pod: Pod) -> Path:
    assert pod.sysfs is not None, "it is this pod's"
    return pod.sysfs


def _around_qemu(start: Start, here: Here) -> Iterator[Finding]:
    """What a QEMU of this process would find."""
    spec, guest, sysfs = start.vmi.spec, start.guest, _sysfs_of(start.pod)
    if here.dev is not None and start.host is not None:
        nodes = read_nodes(here.dev, start.cards, start.host)
        yield from in_the_container(start.cards, start.host, nodes, guest_runs=here.guest_runs)
    limits = read_limits(sysfs, _text(here.proc, "self/cgroup"))
    beside = sum(part.size for part in overhead(spec, guest))
    for finding in (
        None if here.guest_runs else memlock(start.locked, let_lock(start.locked)),
        memory(guest, limits.memory, beside, is_pinned=start.locked > 0),
        cpus(guest, limits.cpus),
        ports(start.network_cards, _text(here.proc, "sys/net/ipv4/ip_local_port_range"), open_files()),
    ):
        if finding is not None:
            yield finding
    if guest.page is not None:
        pools = read_pools(sysfs, guest.page, _text(here.proc, "self/mounts"))
        cells = start.layout.cells if start.layout is not None else ()
        yield from hugepages(guest, guest.page, cells, pools, limits, guest_runs=here.guest_runs)
    yield from firmware(guest, read_images(here.root))
    called = programs_of(spec, guest)
    yield from programs(called, missing_programs(called, start.pod.environ.get("PATH")))
    roms = roms_of(spec, start.vmi.metadata).values()
    yield from volumes(spec, start.facts, here.root, [rom for rom in roms if rom is not None])
    yield from space(read_rooms(start.needs))


def _text(directory: Path | None, path: str) -> str:
    """A file of /proc; empty for what cannot be read."""
    if directory is None:
        return ""
    try:
        return (directory / path).read_text(errors="replace")
    except OSError:
        return ""
