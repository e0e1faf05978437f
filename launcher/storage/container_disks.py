"""The disk in the image of a containerDisk, which the pod mounts whole and read-only."""

from pathlib import Path

from launcher import paths
from launcher.manifest.volumes import Volume
from program.errors import Refusal

_DIRECTORY = "disk"  # KubeVirt's pkg/container-disk, DiskSourceFallbackPath


def disks_in_image(volume: Volume, root: Path) -> tuple[Path, ...]:
    """Return the files that may be the disk, with links resolved: the one that containerDisk.path names, or all in the
    image's directory disk/. A link that leads out of the image is left out.
    """
    assert volume.containerDisk is not None, "it is the volume's kind"
    image = paths.below(root, paths.image_volume(volume.name))
    named = volume.containerDisk.path
    try:
        files = [image / named.lstrip("/")] if named is not None else sorted((image / _DIRECTORY).iterdir())
        real = [path.resolve() for path in files if path.is_file()]
        return tuple(path for path in real if path.is_relative_to(image.resolve()))
    except OSError:
        return ()


def only_disk(volume: Volume, root: Path) -> Path:
    """Return the disk of the image; Refusal if there is none, or more than one."""
    files = disks_in_image(volume, root)
    if len(files) == 1:
        return files[0]
    assert volume.containerDisk is not None, "it is the volume's kind"
    mount = paths.below(root, paths.image_volume(volume.name))
    named = volume.containerDisk.path
    if not mount.is_dir():
        wrong, fix = f"its image is not mounted at {mount}", "expected an image volume of the pod there"
    elif named is not None:
        wrong = f"its image, mounted at {mount}, has no file {named}"
        fix = "expected containerDisk.path to name its disk"
    elif not files:
        wrong, fix = f"its image has no disk in {mount}/disk", "put one there, or name its file in containerDisk.path"
    else:
        names = ", ".join(path.name for path in files)
        wrong, fix = f"its image has several files in {mount}/disk: {names}", "name the disk in containerDisk.path"
    raise Refusal(f"the volume {volume.name!r}", wrong, fix)
