"""The files and devices that the pod brings for the guest, which nobody makes: disks, kernels, tables, secrets."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Literal

from launcher import paths
from launcher.checks.finding import Finding, error
from launcher.checks.opening import because, is_missing, opened
from launcher.facts import Facts
from launcher.manifest.spec import VirtualMachineInstance
from launcher.manifest.volumes import Kind, Volume

_MOUNTED: dict[Kind, Literal["config-map", "secret", "downwardapi", "sysprep"]] = {
    "configMap": "config-map",
    "secret": "secret",
    "downwardAPI": "downwardapi",
    "sysprep": "sysprep",
}
_POD = "expected the pod to mount it there, as the one that gpu-launcher pod prints"


def volumes(vmi: VirtualMachineInstance, facts: Facts, root: Path) -> Iterator[Finding]:
    """Each is there, below the pod's `root`, and can be opened as the guest will use it."""
    read_only = {disk.name for disk in vmi.spec.disks if disk.target.readonly}
    for volume in vmi.spec.volumes:
        yield from _volume(volume, facts, root, writing=volume.name not in read_only)
    boot = vmi.spec.domain.firmware.kernelBoot
    if boot is not None and boot.container is not None:
        for path in (boot.container.kernelPath, boot.container.initrdPath):
            if path is not None:
                fix = (
                    f"expected a path of the image {boot.container.image}, which the pod mounts at {paths.KERNEL_BOOT}"
                )
                yield from _opened("firmware.kernelBoot", paths.KERNEL_BOOT + path, root, fix)
    tables = vmi.spec.domain.firmware.acpi
    if tables is not None:
        for name, table in ((tables.slicNameRef, "slic"), (tables.msdmNameRef, "msdm")):
            if name is not None:
                path = f"{paths.mounted('secret', name)}/{table}.bin"
                yield from _opened("firmware.acpi", path, root, f"expected the key {table}.bin in that secret")


def _volume(volume: Volume, facts: Facts, root: Path, *, writing: bool) -> Iterator[Finding]:
    name = volume.name
    match volume.kind:
        case "persistentVolumeClaim" | "dataVolume" | "ephemeral":
            claim = volume.persistentVolumeClaim
            writes = writing and volume.kind != "ephemeral" and not (claim is not None and claim.readOnly)
            place = paths.block_device(name) if name in facts.block else paths.disk_image(name)
            fix = f"{_POD}, and the claim to have a disk.img, or volumeMode: Block and to be {paths.block_device(name)}"
            yield from _opened(_named(name), place, root, fix, writing=writes)
        case "hostDisk":
            assert volume.hostDisk is not None, "it is the volume's kind"
            file = PurePosixPath(paths.disk_image(name, PurePosixPath(volume.hostDisk.path).name))
            if volume.hostDisk.type == "DiskOrCreate":
                yield from _opened(_named(name), str(file.parent), root, _POD, writing=False)
            else:
                fix = f"put a disk image at {volume.hostDisk.path} of the node, or write type: DiskOrCreate"
                yield from _opened(_named(name), str(file), root, fix, writing=writing)
        case "containerDisk":
            yield from _opened(_named(name), paths.image_volume(name), root, _POD)
        case "configMap" | "secret" | "downwardAPI" | "sysprep":
            yield from _opened(_named(name), paths.mounted(_MOUNTED[volume.kind], name), root, _POD)
        case "serviceAccount":
            yield from _opened(_named(name), paths.SERVICE_ACCOUNT, root, _POD)
        case "cloudInitNoCloud" | "cloudInitConfigDrive":
            said = volume.cloudInitNoCloud or volume.cloudInitConfigDrive
            if said is not None and (said.secretRef is not None or said.networkDataSecretRef is not None):
                yield from _opened(_named(name), paths.mounted("secret", name), root, _POD)
        case "emptyDisk":
            pass  # it is made


def _named(name: str) -> str:
    return f"the volume {name!r}"


def _opened(subject: str, path: str, root: Path, fix: str, *, writing: bool = False) -> Iterator[Finding]:
    outcome = opened(root / path.lstrip("/"), writing=writing)
    if outcome is None:
        return
    if is_missing(outcome):
        yield error(subject, f"there is no {path}", fix)
    else:
        how = "written" if writing else "read"
        yield error(
            subject, f"{path} cannot be {how}: {because(outcome)}", "let its owner or its group be the pod's user"
        )
