"""Whether libvirt and QEMU are new enough for what the domain has in it."""

import re
from collections.abc import Iterable, Iterator

from launcher.checks.finding import error
from launcher.versions import Newer, Version, shown
from program.child import NoAnswer, output
from program.finding import Finding
from program.problem import Severity

_MACHINE = re.compile(r"(?:pc-q35|virt)-(\d{1,3})\.(\d{1,3})", re.ASCII)


def versions(elements: Iterable[Newer], libvirt: Version | None, qemu: Version | None) -> Iterator[Finding]:
    """Yield those of the domain's elements that are too new. A version is None if it is unknown."""
    there = {"libvirt": libvirt, "QEMU": qemu}
    for newer in elements:
        version = there[newer.program]
        if version is not None and newer.since > version:
            yield Finding(Severity.ERROR, newer.problem(version))


def machine_type(machine: str, qemu: Version | None) -> Finding | None:
    """Return an error if QEMU is older than the machine, which is named after the first QEMU that had it."""
    asked = _MACHINE.fullmatch(machine)
    if asked is None or qemu is None or (int(asked[1]), int(asked[2])) <= qemu[:2]:
        return None
    return error(
        "spec.domain.machine.type",
        f"{machine} needs QEMU {asked[1]}.{asked[2]}, and this is {shown(qemu)}",
        "write the machine of an older QEMU, or leave it out for the newest that there is",
    )


def qemu_version(program: str) -> Version | None:
    """Ask the program for its version; None if it is missing or prints something else."""
    try:
        printed = output([program, "--version"], within=10).stdout
    except (OSError, NoAnswer):
        return None
    match = re.match(rb"QEMU emulator version (\d{1,3})\.(\d{1,3})\.(\d{1,3})", printed)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None
