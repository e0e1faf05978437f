"""Whether libvirt and QEMU are new enough for what the domain has in it."""

import re
from collections.abc import Iterable, Iterator

from launcher.checks.finding import error
from launcher.versions import Newer, Version, shown, too_new
from program.child import NoAnswer, output
from program.finding import Finding
from program.problem import Severity

_MACHINE = re.compile(r"(?:pc-q35|virt)-(\d{1,3})\.(\d{1,3})", re.ASCII)


def versions(elements: Iterable[Newer], libvirt: Version | None, qemu: Version | None) -> Iterator[Finding]:
    """Yield those of the domain's elements that are too new. None is a version that is not known."""
    there = {"libvirt": libvirt, "QEMU": qemu}
    for newer in elements:
        version = there[newer.program]
        if version is not None:
            yield from (Finding(Severity.ERROR, problem) for problem in too_new([newer], version))


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
        printed = output([program, "--version"], within=10).stdout
    except (OSError, NoAnswer):
        return None
    match = re.match(rb"QEMU emulator version (\d{1,3})\.(\d{1,3})\.(\d{1,3})", printed)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None
