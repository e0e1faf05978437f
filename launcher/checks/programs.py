"""The programs that libvirt and the launcher call for what a VM has."""

from collections.abc import Iterable, Iterator, Mapping
from shutil import which

from launcher import paths
from launcher.checks.finding import Finding, error
from launcher.elements.firmware import ARCHITECTURES
from launcher.manifest.spec import VirtualMachineInstance
from launcher.manifest.volumes import MEDIA


def programs_of(vmi: VirtualMachineInstance) -> Mapping[str, tuple[str, str]]:
    """By name: what asks for it, and Debian's package with it."""
    devices = vmi.spec.domain.devices
    architecture = ARCHITECTURES[vmi.spec.architecture]
    package = "qemu-system-x86" if architecture == "x86_64" else "qemu-system-arm"
    found = {f"qemu-system-{architecture}": (f"a guest of architecture {vmi.spec.architecture}", package)}
    if any(volume.kind in ("ephemeral", "containerDisk", "emptyDisk") for volume in vmi.spec.volumes):
        found["qemu-img"] = ("a volume that is written over an image, or empty", "qemu-utils")
    if any(volume.kind in MEDIA for volume in vmi.spec.volumes if volume.name not in vmi.spec.shared):
        found["bsdtar"] = ("a volume that becomes an ISO", "libarchive-tools")
    if devices.tpm is not None and devices.tpm.enabled:
        found["swtpm"] = ("devices.tpm", "swtpm")
        found["swtpm_setup"] = ("devices.tpm", "swtpm-tools")
    if devices.filesystems:
        found[paths.VIRTIOFSD] = ("devices.filesystems", "virtiofsd")
    if devices.connected:
        found["passt"] = ("the pod's network", "passt")
    return found


def missing_programs(wanted: Iterable[str], path: str | None) -> frozenset[str]:
    """Those that are in no directory of `path`, which is the environment's PATH; None is the system's own."""
    return frozenset(name for name in wanted if which(name, path=path) is None)


def programs(wanted: Mapping[str, tuple[str, str]], missing: frozenset[str]) -> Iterator[Finding]:
    for name in sorted(missing):
        what, package = wanted[name]
        yield error(
            name,
            f"is not there, and {what} needs it",
            f"install the Debian package {package}, as gpu-launcher's image does",
        )
