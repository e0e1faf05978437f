"""<disk>: what the guest sees of each disk, over the source of its volume."""

from itertools import count

from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.elements import iothreads
from launcher.elements.sources import Source, source
from launcher.elements.virtio import is_encrypted, virtio_model
from launcher.errors import UserError
from launcher.facts import Facts
from launcher.iothreads import assigned
from launcher.manifest.disks import Bus, CDROMTarget, Disk
from launcher.manifest.spec import Domain, VirtualMachineInstance

# SCSI and USB disks count together with SATA's, as in Linux.
_PREFIXES = {"virtio": "vd", "sata": "sd", "scsi": "sd", "usb": "sd"}


def disks(vmi: VirtualMachineInstance, facts: Facts) -> list[Element]:
    """Return one <disk> for each disk of the manifest, and for each volume without a disk.

    UserError if a disk asks for what its volume, by the facts, is not.
    """
    sources = {
        volume.name: source(volume, index, vmi.metadata, facts)
        for index, volume in enumerate(vmi.spec.volumes)
        if volume.name not in vmi.spec.shared
    }
    threads = assigned(vmi)
    numbers = {prefix: count() for prefix in _PREFIXES.values()}
    elements = []
    for disk in vmi.spec.disks:
        bus = disk.bus(vmi.spec.architecture)
        number = next(numbers[_PREFIXES[bus]])
        driver = _driver(disk, sources.get(disk.name))
        if bus == "virtio":
            _add_virtio(driver, vmi.spec.domain, threads.get(disk.name, ()))
        element = _disk(disk, sources.get(disk.name), driver, bus, number)
        if bus == "virtio":
            element.set("model", virtio_model(vmi.spec.domain))
        element.extend(_block_size(disk, facts))
        elements.append(element)
    return elements


def device_name(prefix: str, number: int) -> str:
    """Return vda, ..., vdz, vdaa, ...: as Linux names disks (drivers/scsi/sd.c, sd_format_disk_name)."""
    name = ""
    while number >= 0:
        number, letter = divmod(number, 26)
        name = chr(ord("a") + letter) + name
        number -= 1
    return prefix + name


def _disk(disk: Disk, source: Source | None, driver: Element, bus: Bus, number: int) -> Element:
    target = disk.target
    if target.device == "lun" and source is not None and not source.block:
        raise UserError(
            f"spec.domain.devices.disks: {disk.name!r} is a lun over a claim with a file system, "
            f"which takes no SCSI commands; expected volumeMode: Block (for render: --block-volume {disk.name})"
        )
    # Without a source, a drive without a medium: KubeVirt calls that a block device.
    element = E.disk(driver, type=source.type if source else "block", device=target.device)
    if source is not None:
        element.append(_source(source))
        if source.below is not None:
            element.append(_backing_store(source.below))
    tray = {"tray": target.tray} if isinstance(target, CDROMTarget) else {}
    element.append(E.target(dev=device_name(_PREFIXES[bus], number), bus=bus, **tray))
    if target.readonly:
        element.append(E.readonly())
    if disk.shareable:
        element.append(E.shareable())
    if disk.bootOrder is not None:
        element.append(E.boot(order=str(disk.bootOrder)))
    if disk.serial:
        element.append(E.serial(disk.serial))
    element.append(E.alias(name=f"ua-{disk.name}"))
    if bus == "scsi":
        # One controller has them all, with the number in the name as the unit.
        element.append(E.address(type="drive", controller="0", bus="0", target="0", unit=str(number)))
    return element


def _driver(disk: Disk, source: Source | None) -> Element:
    element = E.driver(name="qemu", type=source.format if source else "raw")
    if source is not None:
        # KubeVirt opens the file first and falls back to writethrough where its file system has no O_DIRECT, as tmpfs
        # had none before Linux 6.6; and has io=native also for a file without holes. Nothing is opened here.
        cache = disk.cache or "none"
        element.set("cache", cache)
        if disk.io is not None or (source.block and cache == "none"):
            element.set("io", disk.io or "native")
    element.set("error_policy", disk.errorPolicy)
    if disk.target.device != "cdrom" or source is None or source.unmap:
        element.set("discard", "unmap")
    return element


def _add_virtio(driver: Element, domain: Domain, threads: tuple[int, ...]) -> None:
    """Add to <driver> what only a disk on virtio has."""
    if domain.devices.blockMultiQueue:
        driver.set("queues", str(domain.vcpus))
    if is_encrypted(domain):
        driver.set("iommu", "on")
    iothreads.serve(driver, threads)


def _source(source: Source) -> Element:
    return E.source(dev=source.path) if source.block else E.source(file=source.path)


def _backing_store(below: Source) -> Element:
    # Always with an end: libvirt would look into the image for one.
    return E.backingStore(E.format(type=below.format), _source(below), E.backingStore(), type=below.type)


def _block_size(disk: Disk, facts: Facts) -> list[Element]:
    custom = disk.blockSize.custom
    if custom is not None:
        return [_blockio(custom.logical, custom.physical, custom.discardGranularity)]
    if not disk.blockSize.matches_volume or disk.target.device == "lun":
        return []  # a lun has the block size of its device anyway
    if disk.name not in facts.block_sizes:
        raise UserError(
            f"spec.domain.devices.disks: {disk.name!r} is to match its volume's block size, which is not known here "
            f"(for render: --block-size {disk.name}=LOGICAL/PHYSICAL/DISCARD in bytes)"
        )
    sizes = facts.block_sizes[disk.name]
    return [_blockio(sizes.logical, sizes.physical, sizes.discard)]


def _blockio(logical: int, physical: int, discard: int | None) -> Element:
    element = E.blockio(logical_block_size=str(logical), physical_block_size=str(physical))
    if discard is not None:
        element.set("discard_granularity", str(discard))
    return element
