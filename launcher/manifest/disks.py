"""spec.domain.devices.disks."""

from typing import Annotated, Literal

from launcher.manifest.scalars import AliasName, Count, between
from launcher.model import Ignored, Refused, model

Bus = Literal["virtio", "sata", "scsi", "usb"]
BootOrder = Annotated[int, between(1, 2**31 - 1)]


@model
class DiskTarget:
    bus: Bus | None = None
    readonly: bool = False
    pciAddress: Annotated[None, Refused("guest addresses are gpu-launcher's and libvirt's; leave it out")] = None


@model
class LUNTarget:
    bus: Bus | None = None
    readonly: bool = False
    reservation: Annotated[None, Refused("persistent reservations need a qemu-pr-helper on the node; leave it out")] = (
        None
    )


@model
class CDROMTarget:
    bus: Bus | None = None
    readonly: bool = True
    tray: Literal["open", "closed"] = "closed"


@model
class CustomBlockSize:
    logical: Count
    physical: Count
    discardGranularity: Count | None = None


@model
class MatchVolume:
    enabled: bool = True


@model
class BlockSize:
    custom: CustomBlockSize | None = None
    matchVolume: MatchVolume | None = None


@model
class Disk:
    name: AliasName
    disk: DiskTarget | None = None
    lun: LUNTarget | None = None
    cdrom: CDROMTarget | None = None
    bootOrder: BootOrder | None = None
    serial: str | None = None
    dedicatedIOThread: bool = False
    cache: Literal["none", "writethrough", "writeback"] | None = None
    io: Literal["native", "threads"] | None = None
    errorPolicy: Literal["stop", "ignore", "report", "enospace"] | None = None
    blockSize: BlockSize | None = None
    shareable: bool = False
    tag: Annotated[str | None, Ignored("tags are for the config drive's device metadata, which is not written")] = None
    changedBlockTracking: Annotated[None, Refused("backups are not made by gpu-launcher; leave it out")] = None
