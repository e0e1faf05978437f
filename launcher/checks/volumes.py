"""The files and devices that the pod brings for the guest, as the guest will open them. What is made of them before it
starts, and what that lacks, is launcher.storage.needs."""

import stat
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from launcher import paths
from launcher.checks.access import because, is_missing, opened
from launcher.checks.finding import error, warning
from launcher.devices.disks import lacks_direct_io
from launcher.devices.roms import ROM
from launcher.facts import Facts
from launcher.manifest.spec import Spec
from launcher.manifest.volumes import Volume
from launcher.storage.regular_files import regular_file
from program.errors import Refusal
from program.finding import Finding


def volumes(spec: Spec, facts: Facts, root: Path, roms: Iterable[ROM] = ()) -> Iterator[Finding]:
    """Disks of claims and of the node, where they are there, can be opened; kernels, ACPI tables and ROMs are there."""
    read_only = {disk.name for disk in spec.disks if disk.target.readonly}
    for volume in spec.volumes:
        if volume.name not in spec.shared and (path := _disk(volume, facts)) is not None:
            claim = volume.persistentVolumeClaim
            reads = volume.name in read_only or volume.kind == "ephemeral" or (claim is not None and claim.readOnly)
            file = paths.below(root, path)
            if volume.name not in facts.block and not stat.S_ISREG(_mode(file)):
                continue  # launcher.storage.needs says so; a link's target is not ours to open
            outcome = opened(file, writing=not reads)
            if outcome is not None and not is_missing(outcome):
                how = "read" if reads else "written"
                yield error(
                    f"the volume {volume.name!r}",
                    f"{path} cannot be {how}: {because(outcome)}",
                    "let its owner or its group be the pod's user (securityContext.fsGroup), or the disk be read-only",
                )
    for disk in spec.disks:
        if lacks_direct_io(disk, facts):
            yield warning(
                f"the volume {disk.name!r}",
                "is on a file system without direct I/O (O_DIRECT), so that its disk has cache: writethrough",
                "expected a file system with it, so that the guest's disk is not in the node's memory as well, or "
                "cache: writethrough in the manifest",
            )
    boot = spec.domain.firmware.kernelBoot
    if boot is not None and boot.container is not None:
        for path in (boot.container.kernelPath, boot.container.initrdPath):
            if path is not None:
                fix = f"expected a path of {boot.container.image}, which the pod mounts whole at {paths.KERNEL_BOOT}"
                yield from _readable("firmware.kernelBoot", paths.KERNEL_BOOT, path.lstrip("/"), root, fix)
    tables = spec.domain.firmware.acpi
    if tables is not None:
        for name, table in ((tables.slicNameRef, "slic"), (tables.msdmNameRef, "msdm")):
            if name is not None:
                volume_of = paths.mounted("secret", name)
                fix = f"expected the key {table}.bin in that secret"
                yield from _readable("firmware.acpi", volume_of, f"{table}.bin", root, fix)
    for rom in roms:
        fix = f"expected the file {rom.path} in that volume, which the pod mounts at {rom.directory}"
        yield from _readable(f"the ROM in the volume {rom.volume!r}", rom.directory, rom.path, root, fix)


def _disk(volume: Volume, facts: Facts) -> str | None:
    name = volume.name
    if volume.kind in ("persistentVolumeClaim", "dataVolume", "ephemeral"):
        return paths.claimed_disk(name, is_block=name in facts.block)
    if volume.hostDisk is not None:
        return paths.disk_image(name, PurePosixPath(volume.hostDisk.path).name)
    return None


def _mode(file: Path) -> int:
    """0 where there is nothing."""
    try:
        return file.lstat().st_mode
    except OSError:
        return 0


def _readable(subject: str, volume: str, name: str, root: Path, fix: str) -> Iterator[Finding]:
    """The file of that name in a volume."""
    mount = paths.below(root, volume)
    try:
        outcome = opened(regular_file(subject, mount / name, mount), writing=False)
    except Refusal as refused:
        yield error(subject, refused.problem.wrong, fix)
        return
    if outcome is not None:
        yield error(subject, f"{volume}/{name} cannot be read: {because(outcome)}", fix)
