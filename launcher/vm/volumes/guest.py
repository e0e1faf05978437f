"""The source of a disk: the file or device of its volume, its format, and the image below an overlay.

As KubeVirt's pkg/virt-launcher/virtwrap/converter/storage/volume.go has it, which is also where it is said what passes
the guest's discards on.
"""

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Literal, NamedTuple

from launcher.fields.objects import placed
from launcher.vm import paths
from launcher.vm.checks import warning
from launcher.vm.facts import Facts
from launcher.vm.spec import Metadata
from launcher.vm.volumes.manifest import Volume, VolumeKind
from program.finding import Finding

Format = Literal["raw", "qcow2"]

#: The kinds of volumes whose image is not written to: what the guest writes is in an overlay.
OVERLAID: tuple[VolumeKind, ...] = ("ephemeral", "containerDisk")

#: The directory of the volumes of a kind, whose files the pod mounts.
_DIRECTORIES: Mapping[VolumeKind, Literal["config-map", "secret", "downwardapi", "sysprep"]] = {
    "configMap": "config-map",
    "secret": "secret",
    "downwardAPI": "downwardapi",
    "sysprep": "sysprep",
}


class DiskSource(NamedTuple):
    """The file or device that a disk reads and writes. `block`: whether `path` is a block device. `below`: the image
    below a qcow2 overlay.

    `unmap`: whether also a CD-ROM's source passes discards on. No CD-ROM sends any. `read_only`: whatever the disk asks
    for.
    """

    path: str
    format: Format = "raw"
    block: bool = False
    below: "DiskSource | None" = None
    unmap: bool = True
    read_only: bool = False

    @property
    def type(self) -> Literal["block", "file"]:
        return "block" if self.block else "file"


def source(volume: Volume, index: int, metadata: Metadata, facts: Facts) -> DiskSource:
    """Return the source of the volume at spec.volumes[index]."""
    name, place = volume.name, facts.place
    if (own_image := _given(volume, facts)) is not None:
        return _overlay(name, own_image, facts) if volume.kind in OVERLAID else own_image
    match volume.kind:
        case "persistentVolumeClaim" | "dataVolume":
            return _claim(name, facts)
        case "ephemeral":
            return _overlay(name, _claim(name, facts), facts)
        case "containerDisk":
            # What is in an image is not in the manifest; it is qcow2 but for those that the facts name.
            image = DiskSource(paths.container_disk(index), format="raw" if name in facts.raw_images else "qcow2")
            return _overlay(name, image, facts)
        case "emptyDisk":
            return DiskSource(place(paths.empty_disk(name)), format="qcow2")
        case "hostDisk":
            assert volume.hostDisk is not None, "it is the volume's kind"
            return _made(paths.disk_image(name, PurePosixPath(volume.hostDisk.path).name))
        case "cloudInitNoCloud":
            return _made(place(paths.cloud_init_iso("noCloud", metadata.namespace, metadata.name)))
        case "cloudInitConfigDrive":
            return _made(place(paths.cloud_init_iso("configdrive", metadata.namespace, metadata.name)))
        case "serviceAccount":
            return _made(paths.SERVICE_ACCOUNT_ISO)
        case "downwardMetrics":
            return DiskSource(place(paths.DOWNWARD_METRICS), read_only=True)
        case "containerPath":
            raise AssertionError("it is no disk")
        case "configMap" | "secret" | "downwardAPI" | "sysprep":
            return _made(paths.iso(_DIRECTORIES[volume.kind], name))


def brought_disk(volume: Volume, facts: Facts) -> str | None:
    """Return the disk that the pod, or the user of an own machine, brings for a volume; None for a volume of another
    kind. Of the facts it takes `block` and `own`."""
    if (own_image := _given(volume, facts)) is not None:
        return own_image.path
    if volume.hostDisk is not None:
        return paths.disk_image(volume.name, PurePosixPath(volume.hostDisk.path).name)
    if volume.kind in ("persistentVolumeClaim", "dataVolume", "ephemeral"):
        return paths.claimed_disk(volume.name, is_block=volume.name in facts.block)
    return None


def _given(volume: Volume, facts: Facts) -> DiskSource | None:
    """Return the source of a volume that the user of an own machine names; None if the user names none."""
    path = facts.own.disks.get(volume.name) if facts.own is not None else None
    if path is None:
        return None
    block = volume.name in facts.block
    return DiskSource(str(path), "raw" if block or volume.name in facts.raw_images else "qcow2", block=block)


def _claim(name: str, facts: Facts) -> DiskSource:
    if name in facts.block:
        return DiskSource(paths.block_device(name), block=True)
    return DiskSource(paths.disk_image(name))


def _overlay(name: str, below: DiskSource, facts: Facts) -> DiskSource:
    return DiskSource(facts.place(paths.overlay(name)), format="qcow2", below=below)


def _made(path: str) -> DiskSource:
    return DiskSource(path, unmap=False)


def iso_directory(volume: Volume) -> str | None:
    """Return the directory for the ISO with the volume's files, or for the disk with the host's metrics; None for a
    volume that is mounted or made elsewhere."""
    if volume.kind == "downwardMetrics":
        return str(PurePosixPath(paths.DOWNWARD_METRICS).parent)
    if volume.kind == "serviceAccount":
        return str(PurePosixPath(paths.SERVICE_ACCOUNT_ISO).parent)
    if volume.kind in _DIRECTORIES:
        return str(PurePosixPath(paths.iso(_DIRECTORIES[volume.kind], volume.name)).parent)
    return None


def directory_of(volume: Volume) -> str:
    """Return where the pod has the files of a volume."""
    if volume.containerPath is not None:
        return volume.containerPath.path
    if volume.kind == "serviceAccount":
        return paths.SERVICE_ACCOUNT
    if volume.kind in _DIRECTORIES:
        return paths.mounted(_DIRECTORIES[volume.kind], volume.name)
    return str(PurePosixPath(paths.disk_image(volume.name)).parent)


def from_the_start(volumes: tuple[Volume, ...]) -> Iterator[Finding]:
    """Yield a warning for each volume that KubeVirt would plug into the running guest."""
    for path, volume in placed("spec.volumes", volumes):
        for kind, claim in (("persistentVolumeClaim", volume.persistentVolumeClaim), ("dataVolume", volume.dataVolume)):
            if claim is not None and claim.hotpluggable:
                yield warning(
                    f"{path}.{kind}.hotpluggable",
                    f"the guest has the volume {volume.name!r} from its start to its end: there is no hotplug",
                    "leave it out, and to take the volume away stop the VM and change its manifest",
                )
