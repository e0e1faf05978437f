"""What is behind a disk: the file or device of its volume, in which format, and over what.

As KubeVirt's pkg/virt-launcher/virtwrap/converter/storage/volume.go has it, which is also where it is said what passes
the guest's discards on.
"""

from pathlib import PurePosixPath
from typing import Literal, NamedTuple

from launcher import paths
from launcher.facts import Facts
from launcher.manifest.spec import Metadata
from launcher.manifest.volumes import Volume

Format = Literal["raw", "qcow2"]


class DiskSource(NamedTuple):
    """What a disk reads and writes. `block`: whether `path` is a block device, and not a file. `below`: the image that
    a qcow2 overlay is over.

    `unmap`: whether also a CD-ROM's source passes discards on. No CD-ROM sends any.
    """

    path: str
    format: Format = "raw"
    block: bool = False
    below: "Source | None" = None
    unmap: bool = True

    @property
    def type(self) -> Literal["block", "file"]:
        return "block" if self.block else "file"


def source(volume: Volume, index: int, metadata: Metadata, facts: Facts) -> DiskSource:
    """The source of the volume that is spec.volumes[index]."""
    name = volume.name
    match volume.kind:
        case "persistentVolumeClaim" | "dataVolume":
            return _claim(name, facts)
        case "ephemeral":
            return _overlay(name, _claim(name, facts))
        case "containerDisk":
            # What is in an image is not in the manifest; it is qcow2 but for those that the facts name.
            image = DiskSource(paths.container_disk(index), format="raw" if name in facts.raw_images else "qcow2")
            return _overlay(name, image)
        case "emptyDisk":
            return DiskSource(paths.empty_disk(name), format="qcow2")
        case "hostDisk":
            assert volume.hostDisk is not None, "it is the volume's kind"
            return _made(paths.disk_image(name, PurePosixPath(volume.hostDisk.path).name))
        case "cloudInitNoCloud":
            return _made(paths.cloud_init_iso("noCloud", metadata.namespace, metadata.name))
        case "cloudInitConfigDrive":
            return _made(paths.cloud_init_iso("configdrive", metadata.namespace, metadata.name))
        case "serviceAccount":
            return _made(paths.SERVICE_ACCOUNT_ISO)
        case "containerPath":
            raise AssertionError("it is no disk")
        case "configMap":
            return _made(paths.iso("config-map", name))
        case "secret":
            return _made(paths.iso("secret", name))
        case "downwardAPI":
            return _made(paths.iso("downwardapi", name))
        case "sysprep":
            return _made(paths.iso("sysprep", name))


def _claim(name: str, facts: Facts) -> DiskSource:
    if name in facts.block:
        return DiskSource(paths.block_device(name), block=True)
    return DiskSource(paths.disk_image(name))


def _overlay(name: str, below: DiskSource) -> DiskSource:
    return DiskSource(paths.overlay(name), format="qcow2", below=below)


def _made(path: str) -> DiskSource:
    return DiskSource(path, unmap=False)


def directory_of(volume: Volume) -> str:
    """Where the pod has the files of a volume."""
    match volume.kind:
        case "containerPath":
            assert volume.containerPath is not None, "it is the volume's kind"
            return volume.containerPath.path
        case "serviceAccount":
            return paths.SERVICE_ACCOUNT
        case "configMap":
            return paths.mounted("config-map", volume.name)
        case "secret":
            return paths.mounted("secret", volume.name)
        case "downwardAPI":
            return paths.mounted("downwardapi", volume.name)
        case _:
            return str(PurePosixPath(paths.disk_image(volume.name)).parent)
