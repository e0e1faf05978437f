"""The programs that libvirt and the launcher call for a VM: whether they are installed, and libvirt and QEMU new
enough."""

import re
from collections.abc import Iterable, Iterator, Mapping
from shutil import which

from launcher.vm import paths
from launcher.vm.checks import error
from launcher.vm.guest import Guest
from launcher.vm.spec import Spec
from launcher.vm.versions import Newer, Version
from launcher.vm.volumes.manifest import MEDIA
from program.child import NoAnswer, output
from program.finding import Finding
from program.problem import Severity


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
    """Return the programs that are in no directory of `path`, the environment's PATH; None means the system's
    default."""
    return frozenset(name for name in wanted if which(name, path=path) is None)


def programs(wanted: Mapping[str, tuple[str, str]], missing: frozenset[str]) -> Iterator[Finding]:
    for name in sorted(missing):
        what, package = wanted[name]
        yield error(
            name,
            f"is not there, and {what} needs it",
            f"install the Debian package {package}, as gpu-launcher's image does",
        )


def versions(elements: Iterable[Newer], libvirt: Version | None, qemu: Version | None) -> Iterator[Finding]:
    """Yield a finding for each element of the domain that is newer than libvirt or QEMU. A version is None if it is
    unknown."""
    installed = {"libvirt": libvirt, "QEMU": qemu}
    for newer in elements:
        version = installed[newer.program]
        if version is not None and newer.since > version:
            yield Finding(Severity.ERROR, newer.problem(version))


def machines_of(program: str) -> frozenset[str] | None:
    """Ask QEMU for the names of its machines; None if it is missing or does not answer."""
    try:
        printed = output([program, "-machine", "help"], within=10).stdout
    except (OSError, NoAnswer):
        return None
    return frozenset(line.split()[0] for line in printed.decode(errors="replace").splitlines() if line)


def qemu_version(program: str) -> Version | None:
    """Ask the program for its version; None if it is missing or prints something else."""
    try:
        printed = output([program, "--version"], within=10).stdout
    except (OSError, NoAnswer):
        return None
    match = re.match(rb"QEMU emulator version (\d{1,3})\.(\d{1,3})\.(\d{1,3})", printed)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None
