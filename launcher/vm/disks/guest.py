"""The guest's disks: on which bus, under which name, over which source, served by which threads."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from launcher.vm.disks.manifest import Bus, Cache, Disk
from launcher.vm.facts import BlockSizes, Facts
from launcher.vm.from_spec import DiskThreads
from launcher.vm.spec import Metadata, Spec
from launcher.vm.volumes.guest import DiskSource, source
from program.errors import UserError

# SCSI and USB disks count together with SATA's, as in Linux.
_PREFIXES = {"virtio": "vd", "sata": "sd", "scsi": "sd", "usb": "sd"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestDisk:
    """A disk of the manifest, `asked`, as the guest has it: the `number`th of those that are named alike, from 0.

    `source` is None for a drive without a medium, `block_sizes` where nothing is said of them; `threads` are the I/O
    threads that serve it. `cache` is what its source can have.
    """

    asked: Disk
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


def guest_disks(spec: Spec, metadata: Metadata, threads: DiskThreads, facts: Facts) -> Iterator[GuestDisk]:
    """Yield the guest's disks, in the manifest's order; UserError if a disk asks for what its volume, by the facts, is
    not."""
    sources = {
        volume.name: source(volume, index, metadata, facts)
        for index, volume in enumerate(spec.volumes)
        if volume.name not in spec.shared
    }
    numbers = {prefix: count() for prefix in _PREFIXES.values()}
    for disk in spec.disks:
        bus = disk.bus(spec.architecture)
        _refuse_lun_of_file(disk, sources.get(disk.name))
        yield GuestDisk(
            asked=disk,
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
    """Return whether the disk has to bypass the node's cache, which is the default too, and its file system cannot."""
    return disk.name in facts.no_direct_io and disk.cache in (None, "none", "directsync")


def _cache(disk: Disk, facts: Facts) -> Cache:
    """Return the cache mode, as KubeVirt's SetDriverCacheMode (pkg/virt-launcher/virtwrap/converter); KubeVirt refuses
    `none` on such a file system."""
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
