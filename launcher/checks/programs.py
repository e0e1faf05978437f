"""The programs that libvirt and the launcher call for what a VM has."""

from collections.abc import Iterable, Iterator, Mapping
from shutil import which

from launcher import paths
from launcher.checks.finding import error
from launcher.guest import Guest
from launcher.manifest.spec import Spec
from launcher.manifest.volumes import MEDIA
from program.finding import Finding


def programs_of(spec: Spec, guest: Guest) -> Mapping[str, tuple[str, str]]:
    """Return the programs by name, each with what needs it and the Debian package that has it."""
    devices = spec.domain.devices
    package = "qemu-system-x86" if guest.architecture == "amd64" else "qemu-system-arm"
    called = {f"qemu-system-{guest.qemu_architecture}": (f"a guest of architecture {guest.architecture}", package)}
    if any(volume.kind in ("ephemeral", "containerDisk", "emptyDisk") for volume in spec.volumes):
        called["qemu-img"] = ("a volume that is written over an image, or empty", "qemu-utils")
    if any(volume.kind in MEDIA for volume in spec.volumes if volume.name not in spec.shared):
        called["bsdtar"] = ("a volume that becomes an ISO", "libarchive-tools")
    if devices.tpm is not None and devices.tpm.enabled:
        called["swtpm"] = ("devices.tpm", "swtpm")
        called["swtpm_setup"] = ("devices.tpm", "swtpm-tools")
    if devices.filesystems:
        called[paths.VIRTIOFSD] = ("devices.filesystems", "virtiofsd")
    if devices.connected:
        called["passt"] = ("the pod's network", "passt")
    return called


def missing_programs(wanted: Iterable[str], path: str | None) -> frozenset[str]:
    """Return those that are in no directory of `path`, the environment's PATH; None means the system's default."""
    return frozenset(name for name in wanted if which(name, path=path) is None)


def programs(wanted: Mapping[str, tuple[str, str]], missing: frozenset[str]) -> Iterator[Finding]:
    for name in sorted(missing):
        what, package = wanted[name]
        yield error(
            name,
            f"is not there, and {what} needs it",
            f"install the Debian package {package}, as gpu-launcher's image does",
        )
