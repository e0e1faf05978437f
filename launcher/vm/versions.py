"""The versions of libvirt and QEMU from which on each has an element of the domain, or a machine.

Libvirt 9.0 and QEMU 7.2 are the oldest versions that a launcher runs on (Debian 12). The facts are from libvirt's
NEWS.rst, the "since" notes of its formatdomain.rst and, for discard_granularity, the releases of its Go module
libvirtxml; and from the change logs of QEMU. QEMU's machines have its version in their names; those of Red Hat's builds
no other QEMU has.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Literal, NamedTuple, Protocol

from launcher.vm.guest import NEAREST
from program.errors import Refusal, UserError
from program.problem import Problem

#: major, minor, micro
Version = tuple[int, int, int]


class Tree(Protocol):
    """A domain's root element, of lxml or of the standard library."""

    def find(self, path: str, /) -> object | None: ...


class Newer(NamedTuple):
    """An element that needs a newer libvirt or QEMU: its place in the domain, in ElementPath, and the part of the
    manifest that asks for it."""

    path: str
    since: Version
    element: str
    field: str
    program: Literal["libvirt", "QEMU"] = "libvirt"

    def problem(self, version: Version | None) -> Problem:
        """Return what is wrong with a `version` that is older, or unknown (None)."""
        needs = f"{self.element} needs {self.program} {version_text(self.since)}"
        return Problem(
            self.field,
            needs if version is None else f"{needs}, and this is {version_text(version)}",
            f"take a newer {self.program}, or leave out what asks for it",
        )


NEWER = (
    Newer("os/acpi/table[@type='msdm']", (11, 2, 0), "<table type='msdm'>", "firmware.acpi.msdmNameRef"),
    Newer("features/hyperv/tlbflush/direct", (11, 0, 0), "<tlbflush><direct>", "features.hyperv.tlbflush.direct"),
    Newer("features/hyperv/tlbflush/extended", (11, 0, 0), "<tlbflush><extended>", "features.hyperv.tlbflush.extended"),
    Newer("launchSecurity[@type='sev-snp']", (10, 5, 0), "<launchSecurity type='sev-snp'>", "launchSecurity.snp"),
    Newer("launchSecurity[@type='tdx']", (11, 6, 0), "<launchSecurity type='tdx'>", "launchSecurity.tdx"),
    Newer("devices/panic[@model='pvpanic']", (9, 1, 0), "<panic model='pvpanic'>", "devices.panicDevices"),
    Newer("devices/interface/model[@type='igb']", (9, 3, 0), "<model type='igb'>", "devices.interfaces.model"),
    Newer("devices/hostdev[@type='pci'][@display]", (10, 3, 0), "<hostdev type='pci' display>", "devices.gpus"),
    Newer("devices/hostdev[@type='pci'][@ramfb]", (10, 3, 0), "<hostdev type='pci' ramfb>", "devices.gpus"),
    Newer("devices/disk/driver/iothreads", (10, 0, 0), "<disk><driver><iothreads>", "ioThreadsPolicy"),
    Newer("devices/controller/driver/iothreads", (11, 2, 0), "<controller><driver><iothreads>", "ioThreadsPolicy"),
    Newer("iommufd", (12, 2, 0), "<iommufd>", "metadata.annotations"),
    # Until then 0 is valid too, and libvirt forgets it.
    Newer(
        "devices/disk/blockio[@discard_granularity='0']",
        (11, 6, 0),
        "<blockio discard_granularity='0'>",
        "devices.disks.blockSize",
    ),
    Newer(
        "devices/disk/blockio[@discard_granularity]",
        (9, 7, 0),
        "<blockio discard_granularity>",
        "devices.disks.blockSize",
    ),
)

#: Since when QEMU has what libvirt passes on to it, by the element's path; the others, QEMU has had longer.
_QEMU: Mapping[str, Version] = {
    "launchSecurity[@type='sev-snp']": (9, 1, 0),
    "launchSecurity[@type='tdx']": (10, 1, 0),
    "devices/interface/model[@type='igb']": (8, 0, 0),
    "devices/disk/driver/iothreads": (9, 0, 0),
    "devices/controller/driver/iothreads": (10, 0, 0),
    "iommufd": (9, 0, 0),
}
NEWER_FOR_QEMU = tuple(
    newer._replace(since=_QEMU[newer.path], program="QEMU") for newer in NEWER if newer.path in _QEMU
)


def newer_elements(domain: Tree, table: Iterable[Newer] = NEWER) -> tuple[Newer, ...]:
    """Return the elements of the table that this domain has, in the table's order."""
    return tuple(newer for newer in table if domain.find(newer.path) is not None)


def too_new(elements: Iterable[Newer], version: Version) -> tuple[Problem, ...]:
    """Return a problem for each element that is newer than this version of its program."""
    return tuple(newer.problem(version) for newer in elements if newer.since > version)


def refuse_newer(elements: Iterable[Newer], libvirt: Version) -> None:
    """Raise a Refusal that names each element that this libvirt does not know."""
    problems = too_new(elements, libvirt)
    if problems:
        raise Refusal(*problems[0], *problems[1:])


def parse_version(text: str, flag: str = "--libvirt", example: str = "11.3.0") -> Version:
    """Read 9.0 or 9.0.0, as `libvirtd --version` prints it; UserError for anything else."""
    match = re.fullmatch(r"(\d{1,3})\.(\d{1,3})(?:\.(\d{1,3}))?", text, re.ASCII)
    if match is None:
        raise UserError(f"{flag} {text}", "is no version", f"expected one like {example}")
    return int(match[1]), int(match[2]), int(match[3] or 0)


def kernel_version(release: str) -> Version | None:
    """Read the version at the beginning of a kernel's release, as in 6.12.43+deb13-amd64; None for another text."""
    match = re.match(r"(\d{1,3})\.(\d{1,3})(?:\.(\d{1,3}))?", release, re.ASCII)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match is not None else None


def numbered(version: int) -> Version:
    """Read libvirt's number for a version: 11003000 is 11.3.0."""
    return version // 1_000_000, version // 1000 % 1000, version % 1000


def version_text(version: Version) -> str:
    return ".".join(map(str, version))


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


def nearest(machine: str, known_machines: Collection[str] | None) -> str:
    """Return the machine of QEMU's own that is nearest to this one: the newest that is not newer, else the oldest.

    `known_machines`: those that QEMU has, None if unknown. A machine without a known version becomes the newest one.
    """
    if machine in (known_machines or ()) or machine in _NEWEST.values():
        return machine
    kind = "virt" if machine.startswith("virt") else "pc-q35"
    wanted = _version(machine)
    if wanted is None:
        return _NEWEST[kind]
    known = (name for name in known_machines or () if name.startswith(kind))
    versions = sorted(version for name in known if (version := _version(name)) is not None)
    if known_machines is None:
        versions = [wanted]
    if not versions:
        return _NEWEST[kind]
    major, minor = next((version for version in reversed(versions) if version <= wanted), versions[0])
    return f"{kind}-{major}.{minor}"


def foreign(machine: str | None) -> Problem | None:
    """Return what is wrong with a machine that no release of QEMU's own project has. `machine` None stands for its
    newest."""
    if not machine or machine in _NEWEST.values() or _VERSIONED.fullmatch(machine):
        return None
    return missing(machine, "is a machine of another build of QEMU than that of gpu-launcher's image")


def missing(machine: str, wrong: str) -> Problem:
    newest = _NEWEST["virt" if machine.startswith("virt") else "pc-q35"]
    fix = f"write the annotation {NEAREST}: nearest, which takes the nearest that QEMU has, or {newest} for its newest"
    return Problem("spec.domain.machine.type", f"{machine} {wrong}", fix)


def _version(machine: str) -> tuple[int, int] | None:
    """Return the version of QEMU that a machine belongs to; None if its name does not tell."""
    if own := _VERSIONED.fullmatch(machine):
        return int(own[1]), int(own[2])
    if rhel := _RED_HATS.fullmatch(machine):
        release = int(rhel[1]), int(rhel[2])
        return next((qemu for known, qemu in reversed(_RHEL.items()) if known <= release), None)
    return None
