"""The files and devices that the pod brings for the guest, as the guest will open them. What is made of them before it
starts, and what that lacks, is launcher.storage.needs."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from launcher import paths
from launcher.checks.finding import Finding, error
from launcher.checks.opening import because, is_missing, opened
from launcher.facts import Facts
from launcher.manifest.spec import Spec
from launcher.manifest.volumes import Volume


def volumes(spec: Spec, facts: Facts, root: Path) -> Iterator[Finding]:
    """Disks of claims and of the node, where they are there, can be opened; kernels and ACPI tables are there."""
    read_only = {disk.name for disk in spec.disks if disk.target.readonly}
    for volume in spec.volumes:
        if (path := _disk(volume, facts)) is not None:
            claim = volume.persistentVolumeClaim
            reads = volume.name in read_only or volume.kind == "ephemeral" or (claim is not None and claim.readOnly)
            outcome = opened(paths.below(root, path), writing=not reads)
            if outcome is not None and not is_missing(outcome):
                how = "read" if reads else "written"
                yield error(
                    f"the volume {volume.name!r}",
                    f"{path} cannot be {how}: {because(outcome)}",
                    "let its owner or its group be the pod's user (securityContext.fsGroup), or the disk be read-only",
                )
    boot = spec.domain.firmware.kernelBoot
    if boot is not None and boot.container is not None:
        for path in (boot.container.kernelPath, boot.container.initrdPath):
            if path is not None:
                fix = f"expected a path of {boot.container.image}, which the pod mounts whole at {paths.KERNEL_BOOT}"
                yield from _readable("firmware.kernelBoot", paths.KERNEL_BOOT + path, root, fix)
    tables = spec.domain.firmware.acpi
    if tables is not None:
        for name, table in ((tables.slicNameRef, "slic"), (tables.msdmNameRef, "msdm")):
            if name is not None:
                path = f"{paths.mounted('secret', name)}/{table}.bin"
                yield from _readable("firmware.acpi", path, root, f"expected the key {table}.bin in that secret")


def _disk(volume: Volume, facts: Facts) -> str | None:
    name = volume.name
    if volume.kind in ("persistentVolumeClaim", "dataVolume", "ephemeral"):
        return paths.claimed_disk(name, is_block=name in facts.block)
    if volume.hostDisk is not None:
        return paths.disk_image(name, PurePosixPath(volume.hostDisk.path).name)
    return None


def _readable(subject: str, path: str, root: Path, fix: str) -> Iterator[Finding]:
    outcome = opened(paths.below(root, path), writing=False)
    if outcome is not None:
        yield error(subject, f"{path} cannot be read: {because(outcome)}", fix)
