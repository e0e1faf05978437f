"""The guest's disks: on which bus, under which name, over which source, served by which threads."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from launcher.devices.sources import Source, source
from launcher.errors import UserError
from launcher.facts import BlockSizes, Facts
from launcher.manifest.disks import Bus, Disk
from launcher.manifest.iothreads import IOThreads
from launcher.manifest.spec import Metadata, Spec

# SCSI and USB disks count together with SATA's, as in Linux.
_PREFIXES = {"virtio": "vd", "sata": "sd", "scsi": "sd", "usb": "sd"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestDisk:
    """A disk of the manifest, `asked`, as the guest has it: the `number`th of those that are named alike, from 0.

    `source` is None for a drive without a medium, `block_sizes` where nothing is said of them; `threads` are the I/O
    threads that serve it.
    """

    asked: Disk
    bus: Bus
    number: int
    source: Source | None
    threads: tuple[int, ...]
    block_sizes: BlockSizes | None

    @property
    def device(self) -> str:
        """vda."""
        return device_name(_PREFIXES[self.bus], self.number)


def guest_disks(spec: Spec, metadata: Metadata, threads: IOThreads, facts: Facts) -> Iterator[GuestDisk]:
    """A disk for each of the manifest's, and for each volume without a disk.

    UserError if a disk asks for what its volume, by the facts, is not.
    """
    sources = {volume.name: source(volume, index, metadata, facts) for index, volume in enumerate(spec.volumes)}
    numbers = {prefix: count() for prefix in _PREFIXES.values()}
    for disk in spec.disks:
        bus = disk.bus(spec.architecture)
        _refuse_lun_of_file(disk, sources.get(disk.name))
        yield GuestDisk(
            asked=disk,
            bus=bus,
            number=next(numbers[_PREFIXES[bus]]),
            source=sources.get(disk.name),
            threads=threads.of_disks.get(disk.name, ()),
            block_sizes=_block_sizes(disk, facts),
        )


def device_name(prefix: str, number: int) -> str:
    """vda, ..., vdz, vdaa, ...: as Linux names disks (drivers/scsi/sd.c, sd_format_disk_name)."""
    name = ""
    while number >= 0:
        number, letter = divmod(number, 26)
        name = chr(ord("a") + letter) + name
        number -= 1
    return prefix + name


def _refuse_lun_of_file(disk: Disk, source: Source | None) -> None:
    if disk.target.device == "lun" and source is not None and not source.block:
        raise UserError(
            f"spec.domain.devices.disks: {disk.name!r} is a lun over a claim with a file system, "
            f"which takes no SCSI commands; expected volumeMode: Block (for render: --block-volume {disk.name})"
        )


def _block_sizes(disk: Disk, facts: Facts) -> BlockSizes | None:
    custom = disk.blockSize.custom
    if custom is not None:
        return BlockSizes(custom.logical, custom.physical, custom.discardGranularity)
    if not disk.blockSize.matches_volume or disk.target.device == "lun":
        return None  # a lun has the block size of its device anyway
    if disk.name not in facts.block_sizes:
        raise UserError(
            f"spec.domain.devices.disks: {disk.name!r} is to match its volume's block size, which is not known here "
            f"(for render: --block-size {disk.name}=LOGICAL/PHYSICAL/DISCARD in bytes)"
        )
    return facts.block_sizes[disk.name]
