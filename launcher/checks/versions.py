"""Whether libvirt and QEMU are new enough for what the domain has in it."""

import re
import subprocess
from collections.abc import Iterable, Iterator

from launcher.checks.finding import Finding, error
from launcher.versions import Newer, Version, shown

_MACHINE = re.compile(r"(?:pc-q35|virt)-(\d{1,3})\.(\d{1,3})", re.ASCII)


def versions(found: Iterable[Newer], libvirt: Version | None, qemu: Version | None) -> Iterator[Finding]:
    """`found` are the domain's elements that not everybody knows; None is a version that is not known."""
    there = {"libvirt": libvirt, "QEMU": qemu}
    for newer in found:
        version = there[newer.program]
        if version is not None and newer.since > version:
            yield error(
                newer.field,
                f"{newer.element} needs {newer.program} {shown(newer.since)}, and this is {shown(version)}",
                f"take a newer {newer.program}, as gpu-launcher's image has it, or leave out what asks for it",
            )


def machine_type(machine: str, qemu: Version | None) -> Finding | None:
    """A machine is called after the QEMU that had it first; what is older, QEMU drops after some years."""
    asked = _MACHINE.fullmatch(machine)
    if asked is None or qemu is None or (int(asked[1]), int(asked[2])) <= qemu[:2]:
        return None
    return error(
        "spec.domain.machine.type",
        f"{machine} needs QEMU {asked[1]}.{asked[2]}, and this is {shown(qemu)}",
        "write the machine of an older QEMU, or leave it out for the newest that there is",
    )


def qemu_version(program: str) -> Version | None:
    """What the program says of itself; None where it is not there or says nothing that is known here."""
    try:
        said = subprocess.run([program, "--version"], capture_output=True, check=False, timeout=10).stdout  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.match(rb"QEMU emulator version (\d{1,3})\.(\d{1,3})\.(\d{1,3})", said)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None
