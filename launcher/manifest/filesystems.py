"""spec.domain.devices.filesystems: volumes that the guest mounts as they are, by virtiofs."""

from launcher.manifest.disks import Disk
from launcher.manifest.objects import Object
from launcher.manifest.scalars import DNSLabel, first_twice
from launcher.manifest.volumes import SHARED, Volume
from program.errors import Nonsense

#: Of a tag, by which the guest mounts it (virtio 1.2, 5.11.4).
_LONGEST_TAG = 36


class Virtiofs(Object):
    pass


class Filesystem(Object):
    """`name` is the volume's, and the tag by which the guest mounts it."""

    name: DNSLabel
    virtiofs: Virtiofs


def check_filesystems(
    filesystems: tuple[Filesystem, ...], disks: tuple[Disk, ...], volumes: tuple[Volume, ...]
) -> None:
    """Raise Nonsense for a file system that its volume cannot be, and for a volume that nothing shows to the guest."""
    by_name = {volume.name: volume for volume in volumes}
    names = [filesystem.name for filesystem in filesystems]
    if name := first_twice(names):
        raise Nonsense(f"two filesystems are called {name!r}", "leave one of them out")
    for name in names:
        subject = f"the filesystem {name!r}"
        if len(name) > _LONGEST_TAG:
            raise Nonsense(f"{subject} has a name of {len(name)} characters", f"expected at most {_LONGEST_TAG}")
        if name not in by_name:
            raise Nonsense(f"{subject} has no volume", "expected one of that name in volumes")
        if by_name[name].kind not in SHARED:
            raise Nonsense(f"{subject} is over {by_name[name].kind}", f"expected one of {', '.join(SHARED)}")
        if any(disk.name == name for disk in disks):
            raise Nonsense(f"the volume {name!r} is both a disk and a filesystem", "leave one of them out")
    for volume in volumes:
        if volume.kind == "containerPath" and volume.name not in names:
            raise Nonsense(
                f"the volume {volume.name!r} is a containerPath, which can be no disk",
                f"add {{name: {volume.name}, virtiofs: {{}}}} to domain.devices.filesystems",
            )
