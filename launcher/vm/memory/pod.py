"""How much memory the pod asks for, part by part: the guest's own, and the parts beside it.

What QEMU takes is KubeVirt's formula (pkg/hypervisor/kvm/hypervisorbackend.go, GetMemoryOverhead). What the processes
beside it take is ours: KubeVirt's have 190 MiB, for a monitor, a launcher, virtlogd and virtqemud. So are the page
tables, which are the pod's memory too: KubeVirt has those of QEMU, and 1 GiB for any number of devices.
"""

from typing import NamedTuple

from launcher.vm.cards.claims import EntryKind
from launcher.vm.devices import Devices
from launcher.vm.guest import Guest
from launcher.vm.spec import Spec
from launcher.vm.versions import Version
from program.errors import UserError

_MEBIBYTE = 1 << 20
_GIBIBYTE = 1 << 30
_PAGE = 4096
_ENTRY = 8  # bytes of a page table for each page
#: How the kernel maps BARs of that size and more from Linux 6.12 on, if QEMU aligns them, as it does from 9.2 on
#: (f9e54c3a2f5b, vfio/pci: implement huge_fault support; QEMU's 00b519c0bca0, vfio/helpers: Align mmaps).
_HUGE_PFNMAP = 2 * _MEBIBYTE
_SINCE: Version = (6, 12, 0)

_LAUNCHER = 80 * _MEBIBYTE  # supervisor and worker: 71 MB (PSS) beside an idle QEMU, when it was measured
_PASST = 200 * _MEBIBYTE  # its tables for connections are 197 MiB (Debian 13's), of which an idle one has touched 17
_VIRTIOFSD = 80 * _MEBIBYTE  # each; KubeVirt's limit of its container
_QEMU = 50 * _MEBIBYTE
_VCPU = 8 * _MEBIBYTE
_IO_THREAD = 8 * _MEBIBYTE
_SCREEN = 32 * _MEBIBYTE
_ARM64 = 128 * _MEBIBYTE
_ENCRYPTED = 256 * _MEBIBYTE
_TPM = 53 * _MEBIBYTE
_PROBE = 40 * _MEBIBYTE  # of the container: `gpu-launcher ctl` has 41 MB, a part of them the launcher's own pages
_LIMITED = 100 * _MEBIBYTE


class MappedBARs(NamedTuple):
    """BARs, of a card or of all that the guest has: `size` in bytes, and the size of the pages that map them."""

    size: int
    page: int


def mapped_bars(size: int, kernel: Version | None) -> MappedBARs:
    """Return how this kernel maps BARs; None is any."""
    return MappedBARs(size, _HUGE_PFNMAP if kernel is not None and kernel >= _SINCE else _PAGE)


#: What a device has as far as nobody says: the BARs of an H100 or H200, on an older kernel.
ANY_CARD = mapped_bars(128 * _GIBIBYTE, None)


class MemoryPart(NamedTuple):
    """`size` in bytes, and for what."""

    size: int
    what: str


class PodMemory(NamedTuple):
    """In bytes. `request` is the sum of the parts; `limit` is None where there is none. `hugepages`: how much of the
    guest is in huge pages, of `page` bytes each, which are neither in the request nor in the limit.
    """

    parts: tuple[MemoryPart, ...]
    limit: int | None
    hugepages: int
    page: int

    @property
    def request(self) -> int:
        return sum(part.size for part in self.parts)


def memory(spec: Spec, guest: Guest, card: MappedBARs = ANY_CARD) -> PodMemory:
    """Return the pod's memory, if each of its devices has BARs like `card`'s; UserError if the manifest's resources
    contradict the guest's memory."""
    domain, own = spec.domain, guest.memory
    resources = domain.resources
    limit = resources.limit("memory")
    # Kubernetes requests what is the limit where nothing is requested.
    requested = resources.request("memory") or limit or own
    locked, in_pages = is_locked(domain.devices, guest), guest.page is not None
    if locked and requested < own:
        raise UserError(
            "spec.domain.resources.requests.memory",
            f"{requested} bytes are less than the guest's memory, which is {own}, and "
            f"{('VFIO' if domain.devices.entries else 'SEV')} pins all of that",
            "leave it out",
        )
    if guest.has_own_cpus and limit is not None and limit != requested:
        raise UserError(
            "spec.domain.resources.limits.memory",
            f"{limit} bytes, and {requested} are requested",
            "with dedicatedCpuPlacement expected the same: the kubelet gives CPUs to pods whose limits are their "
            "requests",
        )
    if guest.has_own_cpus and resources.overcommitGuestOverhead:
        raise UserError(
            "spec.domain.resources.overcommitGuestOverhead",
            "with dedicatedCpuPlacement the pod's limits are its requests",
            "leave it out",
        )
    # A virtual function of a network card has some MiB of BARs.
    cards = sum(entry.kind is not EntryKind.SRIOV for entry in domain.devices.entries)
    beside = overhead(spec, guest, card._replace(size=cards * card.size))
    guests = _guests(requested, own, in_pages=in_pages, locked=locked)
    parts = guests if resources.overcommitGuestOverhead else (*guests, *beside)
    bytes_beside = sum(part.size for part in beside)
    if limit is not None:
        limit += bytes_beside - (own if in_pages else 0)
    elif guest.has_own_cpus:
        limit = sum(part.size for part in parts)
    return PodMemory(
        parts=parts,
        limit=limit,
        hugepages=own if in_pages else 0,
        page=guest.page or 0,
    )


def overhead(spec: Spec, guest: Guest, bars: MappedBARs) -> tuple[MemoryPart, ...]:
    """Return the parts beside the guest's memory; `bars` are those of all its devices."""
    domain, devices, technology = spec.domain, spec.domain.devices, guest.confidentiality
    shares_buffers = technology is not None and technology.shares_buffers
    limited = guest.has_own_cpus or "memory" in domain.resources.limits
    reserved = domain.memory.reservedOverhead
    probes = (("livenessProbe", spec.livenessProbe), ("readinessProbe", spec.readinessProbe))
    # Each question to the guest's agent takes a process in the container.
    asking = [name for name, probe in probes if probe is not None and probe.knocks is None]
    of_memory = _whole(page_tables(guest.memory, guest.page or _PAGE))
    parts = [
        MemoryPart(_LAUNCHER, "the launcher: a supervisor, and a worker with libvirt in it"),
        MemoryPart(_QEMU, "QEMU"),
        MemoryPart(of_memory, "page tables for the guest's memory, in QEMU"),
        MemoryPart(of_memory, "page tables for the guest's memory, in KVM"),
        MemoryPart(_VCPU * guest.vcpus, f"{guest.vcpus} vCPU{'s' if guest.vcpus > 1 else ''}"),
        MemoryPart(_IO_THREAD, "QEMU's I/O thread"),
        MemoryPart(_SCREEN if devices.autoattachGraphicsDevice else 0, "the guest's screen"),
        MemoryPart(_PASST * sum(card.method != "sriov" for card in devices.connected), "passt, the guest's network"),
        MemoryPart(_VIRTIOFSD * len(devices.filesystems), "virtiofsd, for the volumes that the guest mounts"),
        MemoryPart(_TPM if devices.tpm is not None and devices.tpm.enabled else 0, "swtpm, the guest's TPM"),
        *(MemoryPart(_PROBE, f"{name}, which asks the guest's agent") for name in asking),
        MemoryPart(_ARM64 if guest.architecture == "arm64" else 0, "arm64's firmware"),
        MemoryPart(of_memory if devices.entries else 0, "page tables for the guest's memory, in the IOMMU"),
        MemoryPart(2 * _whole(page_tables(*bars)), "page tables for the devices' BARs, in QEMU and in KVM"),
        MemoryPart(_ENCRYPTED if shares_buffers else 0, "encrypted memory's buffers"),
        MemoryPart(_LIMITED if limited else 0, "a reserve, since the kernel ends what gets over a limit"),
        MemoryPart((reserved.addedOverhead or 0) if reserved is not None else 0, "memory.reservedOverhead"),
    ]
    return tuple(part for part in parts if part.size)


def page_tables(size: int, page: int) -> int:
    """Return the bytes of the page tables that map `size` bytes by pages of `page` bytes."""
    return -(-size // page) * _ENTRY


def _whole(size: int) -> int:
    return -(-size // _MEBIBYTE) * _MEBIBYTE


def is_locked(devices: Devices, guest: Guest) -> bool:
    """Return whether VFIO or SEV pins all of the guest's memory, so that its pages count as locked. Only the pod tells
    which entries are USB devices, for which VFIO pins nothing."""
    return bool(devices.entries) or (guest.confidentiality is not None and guest.confidentiality.pins_memory)


def _guests(requested: int, guest: int, *, in_pages: bool, locked: bool) -> tuple[MemoryPart, ...]:
    """Return the guest's own parts, without its huge pages."""
    if in_pages:
        more = max(requested - guest, 0)
        return (MemoryPart(more, "requested beside the guest's huge pages"),) if more else ()
    of_it = "the guest's memory, all of which is pinned" if locked else "the guest's memory"
    if requested < guest:
        return (MemoryPart(requested, "requested of the guest's memory"),)
    more = requested - guest
    return (MemoryPart(guest, of_it), *((MemoryPart(more, "requested beside the guest's memory"),) if more else ()))
