"""<disk> and <filesystem>: what the guest sees of each volume."""

from collections.abc import Iterable

from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.vm import paths
from launcher.vm.cpu import placement
from launcher.vm.disks.guest import GuestDisk
from launcher.vm.disks.manifest import CDROMTarget, Filesystem
from launcher.vm.guest import Guest
from launcher.vm.volumes.guest import DiskSource
from launcher.vm.xml import goes_by_dma_api, virtio_model

_QUEUE = "1024"  # requests; KubeVirt's


def disk(disk: GuestDisk, guest: Guest, *, has_many_queues: bool) -> Element:
    """Return <disk>. `has_many_queues`: one on virtio has a queue for each vCPU."""
    driver = _driver(disk)
    if disk.bus == "virtio":
        if has_many_queues:
            driver.set("queues", str(guest.vcpus))
        if goes_by_dma_api(guest):
            driver.set("iommu", "on")
        placement.serve(driver, disk.threads)
    element = _disk(disk, driver)
    if disk.bus == "virtio":
        element.set("model", virtio_model(guest))
    if (sizes := disk.block_sizes) is not None:
        discard = {"discard_granularity": str(sizes.discard)} if sizes.discard is not None else {}
        blocks = {"logical_block_size": str(sizes.logical), "physical_block_size": str(sizes.physical)}
        element.append(E.blockio(**blocks, **discard))
    return element


def filesystems(filesystems: Iterable[Filesystem], guest: Guest) -> list[Element]:
    """Return the volumes that the guest mounts by virtiofs. The launcher's own virtiofsd is behind each socket."""
    iommu = {"iommu": "on"} if goes_by_dma_api(guest) else {}
    return [
        E.filesystem(
            E.driver(type="virtiofs", queue=_QUEUE, **iommu),
            E.source(socket=paths.virtiofs_socket(filesystem.name)),
            E.target(dir=filesystem.name),
            type="mount",
            accessmode="passthrough",
        )
        for filesystem in filesystems
    ]


def _disk(disk: GuestDisk, driver: Element) -> Element:
    manifest, source, target = disk.manifest, disk.source, disk.manifest.target
    # Without a source, a drive without a medium: KubeVirt calls that a block device.
    element = E.disk(driver, type=source.type if source else "block", device=target.device)
    if source is not None:
        element.append(_source(source))
        # Of qcow2 always with an end: libvirt would look into the image for one.
        if (below := source.below) is not None:
            chain = (E.format(type=below.format), _source(below), E.backingStore())
            element.append(E.backingStore(*chain, type=below.type))
        elif source.format == "qcow2":
            element.append(E.backingStore())
    tray = {"tray": target.tray} if isinstance(target, CDROMTarget) else {}
    element.append(E.target(dev=disk.device, bus=disk.bus, **tray))
    if target.readonly or (source is not None and source.read_only):
        element.append(E.readonly())
    if manifest.shareable:
        element.append(E.shareable())
    if manifest.bootOrder is not None:
        element.append(E.boot(order=str(manifest.bootOrder)))
    if manifest.serial:
        element.append(E.serial(manifest.serial))
    element.append(E.alias(name=f"ua-{manifest.name}"))
    if disk.bus == "scsi":
        # One controller has them all, with the number in the name as the unit.
        element.append(E.address(type="drive", controller="0", bus="0", target="0", unit=str(disk.number)))
    return element


def _driver(disk: GuestDisk) -> Element:
    manifest, source = disk.manifest, disk.source
    element = E.driver(name="qemu", type=source.format if source else "raw")
    if source is not None:
        element.set("cache", disk.cache)
        # KubeVirt has io=native also for a file without holes.
        io = manifest.io or ("native" if source.block and disk.cache == "none" else None)
        if io is not None and not (io == "native" and disk.cache == "writethrough"):
            element.set("io", io)
    element.set("error_policy", manifest.errorPolicy)
    if manifest.target.device != "cdrom" or source is None or source.unmap:
        element.set("discard", "unmap")
    return element


def _source(source: DiskSource) -> Element:
    return E.source(dev=source.path) if source.block else E.source(file=source.path)
