"""How much memory the pod asks for, part by part: the guest's own, and what there is beside it.

What QEMU takes is KubeVirt's formula (pkg/hypervisor/kvm/hypervisorbackend.go, GetMemoryOverhead). What the processes
beside it take is ours: KubeVirt's have 190 MiB, for a monitor, a launcher, virtlogd and virtqemud.
"""

from typing import NamedTuple

from launcher.errors import UserError
from launcher.manifest.spec import VirtualMachineInstance

_MEBIBYTE = 1 << 20
_GIBIBYTE = 1 << 30
#: What a page table has for each of its bytes: an entry of 8 bytes for a page of 4 KiB.
_PAGE_TABLES = 512

_LAUNCHER = 80 * _MEBIBYTE  # supervisor and worker: 71 MB (PSS) beside an idle QEMU, when it was measured
_PASST = 200 * _MEBIBYTE  # its tables for connections are 197 MiB (Debian 13's), of which an idle one has touched 31
_VIRTIOFSD = 80 * _MEBIBYTE  # each; KubeVirt's limit of its container
_QEMU = 50 * _MEBIBYTE
_VCPU = 8 * _MEBIBYTE
_IO_THREAD = 8 * _MEBIBYTE
_SCREEN = 32 * _MEBIBYTE
_ARM64 = 128 * _MEBIBYTE
_VFIO = _GIBIBYTE
_ENCRYPTED = 256 * _MEBIBYTE
_TPM = 53 * _MEBIBYTE
_PROBE = 40 * _MEBIBYTE  # of the container: `gpu-launcher ctl` has 41 MB, a part of them the launcher's own pages
_LIMITED = 100 * _MEBIBYTE


class Part(NamedTuple):
    """`size` in bytes, and for what."""

    size: int
    what: str


class Memory(NamedTuple):
    """In bytes. `request` is the sum of the parts; `limit` is None where there is none. `hugepages`: how much of the
    guest is in huge pages, of `page` bytes each, which are neither in the request nor in the limit.
    """

    parts: tuple[Part, ...]
    limit: int | None
    hugepages: int
    page: int

    @property
    def request(self) -> int:
        return sum(part.size for part in self.parts)


def memory(vmi: VirtualMachineInstance) -> Memory:
    """UserError where the manifest's resources contradict what the guest takes."""
    domain = vmi.spec.domain
    resources, pages = domain.resources, domain.memory.hugepages
    guest = domain.guest_memory
    limit = resources.limit("memory")
    # Kubernetes requests what is the limit where nothing is requested.
    requested = resources.request("memory") or limit or guest
    pinned = is_dedicated(vmi)
    if is_locked(vmi) and requested < guest:
        raise UserError(
            f"spec.domain.resources.requests.memory: {requested} bytes are less than the guest's memory, which is "
            f"{guest}, and {'VFIO' if has_vfio(vmi) else 'SEV'} pins all of that; leave it out"
        )
    if pinned and limit is not None and limit != requested:
        raise UserError(
            f"spec.domain.resources.limits.memory: {limit} bytes, and {requested} are requested; with "
            "dedicatedCpuPlacement expected the same: the kubelet gives CPUs to pods whose limits are their requests"
        )
    if pinned and resources.overcommitGuestOverhead:
        raise UserError(
            "spec.domain.resources.overcommitGuestOverhead: with dedicatedCpuPlacement the pod's limits are its "
            "requests; leave it out"
        )
    beside = overhead(vmi)
    own = _own(requested, guest, in_pages=pages is not None, locked=is_locked(vmi))
    parts = own if resources.overcommitGuestOverhead else (*own, *beside)
    bytes_beside = sum(part.size for part in beside)
    if limit is not None:
        limit += bytes_beside - (guest if pages is not None else 0)
    elif pinned:
        limit = sum(part.size for part in parts)
    return Memory(
        parts=parts,
        limit=limit,
        hugepages=guest if pages is not None else 0,
        page=pages.pageSize if pages is not None else 0,
    )


def overhead(vmi: VirtualMachineInstance) -> tuple[Part, ...]:
    """What there is beside the guest's memory."""
    domain = vmi.spec.domain
    devices, security = domain.devices, domain.launchSecurity
    encrypted = security is not None and (security.sev is not None or security.snp is not None)
    limited = is_dedicated(vmi) or "memory" in domain.resources.limits
    reserved = domain.memory.reservedOverhead
    parts = [
        Part(_LAUNCHER, "the launcher: a supervisor, and a worker with libvirt in it"),
        Part(_QEMU, "QEMU"),
        Part(domain.guest_memory // _PAGE_TABLES, "page tables for the guest's memory"),
        Part(_VCPU * domain.vcpus, f"{domain.vcpus} vCPU{'s' if domain.vcpus > 1 else ''}"),
        Part(_IO_THREAD, "QEMU's I/O thread"),
        Part(_SCREEN if devices.autoattachGraphicsDevice else 0, "the guest's screen"),
        Part(_PASST * len(devices.connected), "passt, the guest's network"),
        Part(_VIRTIOFSD * len(devices.filesystems), "virtiofsd, for the volumes that the guest mounts"),
        Part(_TPM if devices.tpm is not None and devices.tpm.enabled else 0, "swtpm, the guest's TPM"),
        *(Part(_PROBE, f"{name}, which asks the guest's agent") for name in _of_agent(vmi)),
        Part(_ARM64 if vmi.spec.architecture == "arm64" else 0, "arm64's firmware"),
        Part(
            _VFIO if has_vfio(vmi) else 0, "what VFIO may pin beside the guest's memory: the reserve that libvirt has"
        ),
        Part(_ENCRYPTED if encrypted else 0, "encrypted memory's buffers"),
        Part(_LIMITED if limited else 0, "a reserve, since the kernel ends what gets over a limit"),
        Part((reserved.addedOverhead or 0) if reserved is not None else 0, "memory.reservedOverhead"),
    ]
    return tuple(part for part in parts if part.size)


def _of_agent(vmi: VirtualMachineInstance) -> list[str]:
    """The probes that take a process in the container, for as long as each question does."""
    said = {"livenessProbe": vmi.spec.livenessProbe, "readinessProbe": vmi.spec.readinessProbe}
    return [name for name, probe in said.items() if probe is not None and probe.knocks is None]


def has_vfio(vmi: VirtualMachineInstance) -> bool:
    """Whether devices of the node are passed on. That one is USB, and not VFIO's, is not known before the pod is."""
    devices = vmi.spec.domain.devices
    return bool(devices.gpus or devices.hostDevices)


def is_locked(vmi: VirtualMachineInstance) -> bool:
    """Whether all of the guest's memory is pinned, and its pages counted as locked: by VFIO, or by SEV."""
    security = vmi.spec.domain.launchSecurity
    return has_vfio(vmi) or (security is not None and security.sev is not None)


def is_dedicated(vmi: VirtualMachineInstance) -> bool:
    """Whether the pod's CPUs are to be its own, which the kubelet gives to pods whose limits are their requests."""
    return vmi.spec.domain.cpu.dedicatedCpuPlacement


def _own(requested: int, guest: int, *, in_pages: bool, locked: bool) -> tuple[Part, ...]:
    """The parts that are the guest's; what it has in huge pages is not among them."""
    if in_pages:
        more = max(requested - guest, 0)
        return (Part(more, "requested beside the guest's huge pages"),) if more else ()
    of_it = "the guest's memory, all of which is pinned" if locked else "the guest's memory"
    if requested < guest:
        return (Part(requested, "requested of the guest's memory"),)
    more = requested - guest
    return (Part(guest, of_it), *((Part(more, "requested beside the guest's memory"),) if more else ()))
