"""The guest's disks: the bus, the name, the source and the I/O threads of each."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count as counting

from launcher.vm.disks.manifest import Bus, Cache, Disk
from launcher.vm.facts import BlockSizes, Facts
from launcher.vm.spec import Domain, Metadata, Spec
from launcher.vm.volumes.guest import DiskSource, source
from program.errors import UserError

# SCSI and USB disks count together with SATA's, as in Linux.
_PREFIXES = {"virtio": "vd", "sata": "sd", "scsi": "sd", "usb": "sd"}
_THREADS_PER_CPU = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestDisk:
    """A disk as the guest has it, from one of the `manifest`: the `number`th of those that are named alike, from 0.

    `source` is None for a drive without a medium, `block_sizes` if nothing is said of them; `threads` are the I/O
    threads that serve it. `cache` is what its source can have.
    """

    manifest: Disk
    bus: Bus
    number: int
    source: DiskSource | None
    cache: Cache
    threads: tuple[int, ...]
    block_sizes: BlockSizes | None

    @property
    def device(self) -> str:
        """The name in the guest, like vda."""
        return device_name(_PREFIXES[self.bus], self.number)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskThreads:
    """`count` threads, numbered from 1; `pool` of them are a supplemental pool, all or none.

    `of_disks`: the threads of each disk that has any, by its name. One is <driver iothread="1"/>; more are a pool's,
    <driver><iothreads>, which libvirt has since 10.0. `of_scsi_controller`: the threads of the controller and so of its
    disks, with a policy, at most one for each vCPU; libvirt has more than one of them since 11.2.
    """

    count: int
    pool: int
    of_disks: Mapping[str, tuple[int, ...]]
    of_scsi_controller: tuple[int, ...]


def guest_disks(spec: Spec, metadata: Metadata, threads: DiskThreads, facts: Facts) -> Iterator[GuestDisk]:
    """Yield the guest's disks, in the manifest's order. UserError if a disk asks for something that its volume, by the
    facts, cannot be."""
    sources = {
        volume.name: source(volume, index, metadata, facts)
        for index, volume in enumerate(spec.volumes)
        if volume.name not in spec.shared
    }
    numbers = {prefix: counting() for prefix in _PREFIXES.values()}
    for disk in spec.disks:
        bus = disk.bus(spec.architecture)
        _refuse_lun_of_file(disk, sources.get(disk.name))
        yield GuestDisk(
            manifest=disk,
            bus=bus,
            number=next(numbers[_PREFIXES[bus]]),
            source=sources.get(disk.name),
            cache=_cache(disk, facts),
            threads=threads.of_disks.get(disk.name, ()),
            block_sizes=_block_sizes(disk, facts),
        )


def device_name(prefix: str, number: int) -> str:
    """Return vda, ..., vdz, vdaa, ...: as Linux names disks (drivers/scsi/sd.c, sd_format_disk_name)."""
    name = ""
    while number >= 0:
        number, letter = divmod(number, 26)
        name = chr(ord("a") + letter) + name
        number -= 1
    return prefix + name


def _refuse_lun_of_file(disk: Disk, source: DiskSource | None) -> None:
    if disk.target.device == "lun" and source is not None and not source.block:
        raise UserError(
            "spec.domain.devices.disks",
            f"{disk.name!r} is a lun over a claim with a file system, which takes no SCSI commands",
            f"expected volumeMode: Block (for render: --block-volume {disk.name})",
        )


def lacks_direct_io(disk: Disk, facts: Facts) -> bool:
    """Return whether the disk has to bypass the node's cache, as by default, and its file system has no direct I/O."""
    return disk.name in facts.no_direct_io and disk.cache in (None, "none", "directsync")


def _cache(disk: Disk, facts: Facts) -> Cache:
    """Return the cache mode, as KubeVirt's SetDriverCacheMode does (pkg/virt-launcher/virtwrap/converter). KubeVirt
    refuses `none` on a file system without direct I/O."""
    if not lacks_direct_io(disk, facts):
        return disk.cache or "none"
    if disk.shareable:
        raise UserError(
            "spec.domain.devices.disks",
            f"{disk.name!r} is shareable, so the node may not cache it, and its file system takes no direct I/O "
            "(O_DIRECT)",
            "expected one that does, or a claim with volumeMode: Block",
        )
    return "writethrough"


def _block_sizes(disk: Disk, facts: Facts) -> BlockSizes | None:
    custom = disk.blockSize.custom
    if custom is not None:
        return BlockSizes(custom.logical, custom.physical, custom.discardGranularity)
    if not disk.blockSize.matches_volume or disk.target.device == "lun":
        return None  # a lun has the block size of its device anyway
    if disk.name not in facts.block_sizes:
        raise UserError(
            "spec.domain.devices.disks",
            f"{disk.name!r} is to match its volume's block size, which is not known here",
            f"leave blockSize out, or for render name it: --block-size {disk.name}=LOGICAL/PHYSICAL/DISCARD in bytes",
        )
    return facts.block_sizes[disk.name]


def iothreads_of(spec: Spec) -> DiskThreads:
    """Return a guest's I/O threads, and which disks they serve.

    The rules are KubeVirt's (pkg/virt-launcher/virtwrap/converter/iothreads). A policy, or a disk that wants a thread
    of its own, brings threads. The first threads are shared by the other disks, in turn; those after them belong to the
    disks with dedicatedIOThread, one each. A supplemental pool serves every disk with all of its threads. Only virtio
    disks use any, but all disks count.
    """
    domain, disks = spec.domain, spec.disks
    dedicated = sum(disk.dedicatedIOThread for disk in disks)
    pool = (domain.ioThreads.supplementalPoolThreadCount or 0) if domain.ioThreads is not None else 0
    shared = _shared(domain, len(disks), dedicated)
    count = pool or shared + dedicated
    buses = [disk.bus(spec.architecture) for disk in disks]
    virtio = [disk for disk, bus in zip(disks, buses, strict=True) if bus == "virtio"]
    in_pool = {disk.name: tuple(range(1, pool + 1)) for disk in virtio}
    serves_scsi = domain.ioThreadsPolicy is not None and "scsi" in buses
    return DiskThreads(
        count=count,
        pool=pool,
        of_disks=in_pool if pool else _turns(virtio, shared) if count else {},
        of_scsi_controller=tuple(range(1, min(count, domain.vcpus) + 1)) if serves_scsi else (),
    )


def _turns(disks: list[Disk], shared: int) -> Mapping[str, tuple[int, ...]]:
    own, turn = counting(shared + 1), counting()
    return {disk.name: (next(own) if disk.dedicatedIOThread else next(turn) % shared + 1,) for disk in disks}


def _shared(domain: Domain, disks: int, dedicated: int) -> int:
    """Return how many threads serve the disks without a thread of their own."""
    if domain.ioThreadsPolicy is None and not dedicated:
        return 0
    limit = _limit(domain)
    return disks - dedicated if disks <= limit else max(limit - dedicated, 1)


def _limit(domain: Domain) -> int:
    """Return the most threads in all. A disk's own thread may exceed it."""
    if domain.ioThreadsPolicy != "auto":
        return 1
    if domain.cpu.dedicatedCpuPlacement and domain.cpu.isolateEmulatorThread:
        return 1  # beside the emulator's, on its CPU
    cpus = domain.resources.request("cpu") or domain.resources.limit("cpu") or 1
    return cpus * _THREADS_PER_CPU
