"""QEMU's machines, which have its version in their names; and those of Red Hat's builds, which no other QEMU has."""

import re
from collections.abc import Collection

from launcher.guest import NEAREST
from program.problem import Problem

_VERSIONED = re.compile(r"(?:pc-q35|virt)-(\d{1,3})\.(\d{1,3})(?:\.\d+)?", re.ASCII)
_RED_HATS = re.compile(r"(?:pc-q35|virt)-rhel(\d{1,3})\.(\d{1,3})\.\d+", re.ASCII)
_NEWEST = {"pc-q35": "q35", "virt": "virt"}
#: The releases of RHEL that have machines of their own, and the version of QEMU in the qemu-kvm of each.
_RHEL = {
    (7, 6): (2, 12),
    (8, 0): (3, 1),
    (8, 1): (4, 1),
    (8, 2): (4, 2),
    (8, 3): (5, 1),
    (8, 4): (5, 2),
    (8, 5): (6, 0),
    (8, 6): (6, 2),
    (9, 0): (6, 2),
    (9, 2): (7, 2),
    (9, 4): (8, 2),
    (9, 6): (9, 1),
    (10, 0): (9, 1),
}


def nearest(machine: str, there: Collection[str] | None) -> str:
    """Return the machine of QEMU's own that is nearest to this one: the newest that is not newer, else the oldest.

    `there`: the machines that QEMU has, None if unknown. A machine without a known version becomes the newest one.
    """
    if machine in (there or ()) or machine in _NEWEST.values():
        return machine
    kind = "virt" if machine.startswith("virt") else "pc-q35"
    wanted = _version(machine)
    if wanted is None:
        return _NEWEST[kind]
    known = (name for name in there or () if name.startswith(kind))
    versions = sorted(version for name in known if (version := _version(name)) is not None)
    if there is None:
        versions = [wanted]
    if not versions:
        return _NEWEST[kind]
    major, minor = next((version for version in reversed(versions) if version <= wanted), versions[0])
    return f"{kind}-{major}.{minor}"


def foreign(machine: str | None) -> Problem | None:
    """Return what is wrong with a machine that no release of QEMU's own project has. None stands for its newest."""
    if not machine or machine in _NEWEST.values() or _VERSIONED.fullmatch(machine):
        return None
    return missing(machine, "is a machine of another build of QEMU than that of gpu-launcher's image")


def missing(machine: str, wrong: str) -> Problem:
    newest = _NEWEST["virt" if machine.startswith("virt") else "pc-q35"]
    fix = f"write the annotation {NEAREST}: nearest, which takes the nearest that QEMU has, or {newest} for its newest"
    return Problem("spec.domain.machine.type", f"{machine} {wrong}", fix)


def _version(machine: str) -> tuple[int, int] | None:
    """Return the version of QEMU that a machine is of, None if its name does not tell."""
    if own := _VERSIONED.fullmatch(machine):
        return int(own[1]), int(own[2])
    if rhel := _RED_HATS.fullmatch(machine):
        release = int(rhel[1]), int(rhel[2])
        return next((qemu for known, qemu in reversed(_RHEL.items()) if known <= release), None)
    return None
