"""spec.domain.devices.disks and filesystems: how the guest sees each volume, and which volumes it can see so.

It mounts the volumes of filesystems as they are, by virtiofs.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from launcher.fields.objects import Below, Ignored, Object, Refused, check_each, placed, refuse_twice
from launcher.fields.scalars import DNSLabel, Matching, Text
from launcher.vm.volumes.manifest import SHARED, Volume
from program.errors import Nonsense

Bus = Literal["virtio", "sata", "scsi", "usb"]
Cache = Literal["none", "writethrough", "writeback", "directsync"]
BootOrder = Annotated[int, Field(ge=1, le=2**31 - 1)]
Serial = Annotated[
    Text, Matching("[A-Za-z0-9_.+-]{0,256}", "is no serial", "expected at most 256 letters, digits and _ . + -")
]

#: As KubeVirt's webhook has it (pkg/defaults): what guests boot from without drivers of their own, by architecture.
_DEFAULT_BUS: Mapping[str, Bus] = {"amd64": "sata", "arm64": "virtio"}
#: QEMU's SCSI disks, which USB's are too, refuse to start with more (hw/scsi/scsi-disk.c, MAX_SERIAL_LEN).
_LONGEST_SCSI_SERIAL = 36
#: Of a tag, by which the guest mounts a filesystem (virtio 1.2, 5.11.4).
_LONGEST_TAG = 36


def _power_of_two(value: int) -> int:
    if value & (value - 1):
        raise Nonsense(str(value), "expected a power of two from 512 to 2097152")
    return value


BlockSizeBytes = Annotated[int, Field(ge=512, le=2 << 20), AfterValidator(_power_of_two)]


class DiskTarget(Object):
    bus: Bus | None = None
    readonly: bool = False
    pciAddress: Annotated[None, Refused("guest addresses are gpu-launcher's and libvirt's", "leave it out")] = None

    device: ClassVar = "disk"


class LUNTarget(Object):
    bus: Bus | None = None
    readonly: bool = False
    reservation: Annotated[
        None, Refused("persistent reservations need a qemu-pr-helper on the node", "leave it out")
    ] = None

    device: ClassVar = "lun"


class CDROMTarget(Object):
    bus: Bus | None = None
    readonly: bool = True
    tray: Literal["open", "closed"] = "closed"

    device: ClassVar = "cdrom"


class CustomBlockSize(Object):
    """Block sizes in bytes. A discard granularity of 0 switches discarding off."""

    logical: BlockSizeBytes
    physical: BlockSizeBytes
    discardGranularity: Annotated[int, Field(ge=0, le=2**32 - 1)] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.logical > self.physical:
            raise Below("logical", str(self.logical), f"expected at most physical, which is {self.physical}")
        if self.discardGranularity and self.discardGranularity % self.logical:
            raise Below(
                "discardGranularity", str(self.discardGranularity), f"expected a multiple of logical, {self.logical}"
            )
        return self


class MatchVolume(Object):
    enabled: bool = True


class BlockSize(Object):
    custom: CustomBlockSize | None = None
    matchVolume: MatchVolume | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.custom is not None and self.matches_volume:
            raise Nonsense("has both custom and matchVolume", "expected one of them")
        return self

    @property
    def matches_volume(self) -> bool:
        return self.matchVolume is not None and self.matchVolume.enabled


class Disk(Object):
    name: DNSLabel
    disk: DiskTarget | None = None
    lun: LUNTarget | None = None
    cdrom: CDROMTarget | None = None
    bootOrder: BootOrder | None = None
    serial: Serial = ""
    dedicatedIOThread: bool = False
    cache: Cache | None = None
    io: Literal["native", "threads"] | None = None
    errorPolicy: Literal["stop", "ignore", "report", "enospace"] = "stop"
    blockSize: BlockSize = BlockSize.model_construct()
    shareable: bool = False
    tag: Annotated[Any, Ignored("tags are for the config drive's device metadata, which is not written")] = None
    changedBlockTracking: Annotated[None, Refused("backups are not made by gpu-launcher", "leave it out")] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        kinds = self.present_fields("disk", "lun", "cdrom")
        subject = f"the disk {self.name!r}"
        if len(kinds) > 1:
            raise Nonsense(f"{subject} has both {kinds[0]} and {kinds[1]}", "expected one of them")
        if self.shareable and self.cache not in (None, "none"):
            wrong = f"{subject} is shareable, so the node may not cache it"
            raise Nonsense(wrong, "write cache: none, or leave it out")
        if self.io == "native" and self.cache in ("writethrough", "writeback"):
            raise Nonsense(f"{subject} has io: native, which goes past the node's cache", "write cache: none")
        if self.lun is not None and self.serial:
            raise Nonsense(f"{subject} is a lun, which has the serial of its device", "leave serial out")
        if self.lun is not None and self.blockSize.custom is not None:
            raise Nonsense(f"{subject} is a lun, which has the block size of its device", "leave blockSize out")
        return self

    @property
    def target(self) -> DiskTarget | LUNTarget | CDROMTarget:
        return self.disk or self.lun or self.cdrom or DiskTarget()

    def bus(self, architecture: str) -> Bus:
        return self.target.bus or _DEFAULT_BUS[architecture]


class Virtiofs(Object):
    pass


class Filesystem(Object):
    """`name` is the volume's, and the tag by which the guest mounts it."""

    name: DNSLabel
    virtiofs: Virtiofs


def check_disks(disks: Iterable[tuple[str, Disk]], volumes: tuple[Volume, ...], architecture: str) -> None:
    """Raise Nonsense for a disk that its bus or its volume does not allow. Each disk is behind its path."""
    by_name = {volume.name: volume for volume in volumes}
    check_each(disks, lambda disk: _check_disk(disk, by_name.get(disk.name), architecture))


def _check_disk(disk: Disk, volume: Volume | None, architecture: str) -> None:
    subject = f"the disk {disk.name!r}"
    _check_bus(disk, disk.bus(architecture), subject, architecture)
    if volume is not None:
        _check_volume(disk, volume, subject)
        if volume.kind == "downwardMetrics" and (disk.target.device != "disk" or disk.bus(architecture) != "virtio"):
            wrong = f"{subject} is over downwardMetrics, which vm-dump-metrics finds on virtio alone"
            raise Nonsense(wrong, "write disk: {bus: virtio}")
    elif disk.cdrom is None:
        raise Nonsense(f"{subject} has no volume", "expected one of that name in volumes")


def _check_bus(disk: Disk, bus: Bus, subject: str, architecture: str) -> None:
    on = f"on {bus}" if disk.target.bus else f"on {bus}, the default"
    device = disk.target.device
    if device == "lun" and bus != "scsi":
        raise Nonsense(f"{subject} is a lun {on}, which carries no SCSI commands", "write lun: {bus: scsi}")
    if device == "cdrom" and bus == "virtio":
        raise Nonsense(f"{subject} is a cdrom {on}, which has none", "write cdrom: {bus: scsi}")
    if architecture == "arm64" and bus in ("sata", "usb"):
        raise Nonsense(f"{subject} is {on}", "expected virtio or scsi, which arm64 has")
    if device == "disk" and bus == "sata" and disk.target.readonly:
        raise Nonsense(f"{subject} is read-only {on}, which has no such disks", "write bus: virtio, or make it a cdrom")
    if disk.dedicatedIOThread and bus != "virtio":
        raise Nonsense(f"{subject} has an I/O thread and is {on}", "expected bus: virtio")
    custom = disk.blockSize.custom
    if custom is not None and bus == "sata" and custom.logical != 512:
        raise Nonsense(f"{subject} has logical blocks of {custom.logical} bytes {on}", "expected 512, or another bus")
    if bus in ("scsi", "usb") and len(disk.serial) > _LONGEST_SCSI_SERIAL:
        raise Nonsense(
            f"{subject} has a serial of {len(disk.serial)} characters {on}", f"expected at most {_LONGEST_SCSI_SERIAL}"
        )


def _check_volume(disk: Disk, volume: Volume, subject: str) -> None:
    if disk.lun is not None and volume.kind not in ("persistentVolumeClaim", "dataVolume"):
        raise Nonsense(f"{subject} is a lun over {volume.kind}", "expected persistentVolumeClaim or dataVolume")
    if disk.shareable and volume.kind in ("containerDisk", "emptyDisk", "ephemeral"):
        raise Nonsense(f"{subject} is shareable over {volume.kind}, which is of this VM alone", "leave shareable out")
    claim = volume.persistentVolumeClaim
    if claim is not None and claim.readOnly and not disk.target.readonly and disk.cdrom is None:
        raise Nonsense(
            f"{subject} writes, but its claim is readOnly",
            "write readonly: true in disk as well, or leave readOnly out",
        )


def check_filesystems(
    filesystems: tuple[Filesystem, ...], disks: tuple[Disk, ...], volumes: tuple[Volume, ...]
) -> None:
    """Raise Nonsense for a file system that its volume does not allow, and for a volume that no disk or file system
    shows to the guest."""
    by_name = {volume.name: volume for volume in volumes}
    names = [(path, each.name) for path, each in placed("domain.devices.filesystems", filesystems)]
    refuse_twice(names, "leave one of them out")
    check_each(names, lambda name: _check_filesystem(name, by_name.get(name), disks))
    for path, volume in placed("volumes", volumes):
        if volume.kind == "containerPath" and volume.name not in dict(names).values():
            raise Below(
                path,
                f"the volume {volume.name!r} is a containerPath, which can be no disk",
                f"add {{name: {volume.name}, virtiofs: {{}}}} to domain.devices.filesystems",
            )


def _check_filesystem(name: str, volume: Volume | None, disks: tuple[Disk, ...]) -> None:
    subject = f"the filesystem {name!r}"
    if len(name) > _LONGEST_TAG:
        raise Nonsense(f"{subject} has a name of {len(name)} characters", f"expected at most {_LONGEST_TAG}")
    if volume is None:
        raise Nonsense(f"{subject} has no volume", "expected one of that name in volumes")
    if volume.kind not in SHARED:
        raise Nonsense(f"{subject} is over {volume.kind}", f"expected one of {', '.join(SHARED)}")
    if any(disk.name == name for disk in disks):
        raise Nonsense(f"the volume {name!r} is both a disk and a filesystem", "leave one of them out")
