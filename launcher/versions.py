"""Elements of ours that libvirt 9.0 and QEMU 7.2 do not know, and since when others do.

They are the oldest that a launcher runs on (Debian 12). The facts are libvirt's: NEWS.rst, the "since" notes of
formatdomain.rst, and for discard_granularity, which they leave out, the releases of its Go module libvirtxml; and
QEMU's: the change logs of its releases.
"""

import re
from collections.abc import Iterable
from typing import Literal, NamedTuple, Protocol

from launcher.errors import Refusal, UserError

#: major, minor, micro
Version = tuple[int, int, int]


class Tree(Protocol):
    """A domain's root element, as far as it is asked here."""

    def find(self, path: str, /) -> object | None: ...


class Newer(NamedTuple):
    """An element that needs a newer libvirt or QEMU: its place in the domain, in ElementPath, and what asks for it."""

    path: str
    since: Version
    element: str
    field: str
    program: Literal["libvirt", "QEMU"] = "libvirt"

    def __str__(self) -> str:
        return f"{self.element} of {self.field} needs {self.program} {shown(self.since)}"


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

#: What libvirt passes on, and has known longer than QEMU, or as long.
NEWER_FOR_QEMU = (
    Newer(
        "launchSecurity[@type='sev-snp']", (9, 1, 0), "<launchSecurity type='sev-snp'>", "launchSecurity.snp", "QEMU"
    ),
    Newer("launchSecurity[@type='tdx']", (10, 1, 0), "<launchSecurity type='tdx'>", "launchSecurity.tdx", "QEMU"),
    Newer("devices/interface/model[@type='igb']", (8, 0, 0), "<model type='igb'>", "devices.interfaces.model", "QEMU"),
    Newer("devices/disk/driver/iothreads", (9, 0, 0), "<disk><driver><iothreads>", "ioThreadsPolicy", "QEMU"),
    Newer(
        "devices/controller/driver/iothreads", (10, 0, 0), "<controller><driver><iothreads>", "ioThreadsPolicy", "QEMU"
    ),
)


def newer_elements(domain: Tree, table: Iterable[Newer] = NEWER) -> tuple[Newer, ...]:
    """Those that this domain has, in the table's order."""
    return tuple(newer for newer in table if domain.find(newer.path) is not None)


def refuse_newer(found: Iterable[Newer], libvirt: Version) -> None:
    """Refusal where this libvirt does not know one of them; it names each."""
    missing = [newer for newer in found if newer.since > libvirt]
    if missing:
        raise Refusal(
            f"{'; '.join(map(str, missing))}, and this is {shown(libvirt)}: take a newer libvirt, or leave out "
            f"{'what asks for it' if len(missing) == 1 else 'what asks for them'}"
        )


def parse_version(text: str) -> Version:
    """9.0 or 9.0.0, as `libvirtd --version` prints it; UserError for anything else."""
    said = re.fullmatch(r"(\d{1,3})\.(\d{1,3})(?:\.(\d{1,3}))?", text, re.ASCII)
    if said is None:
        raise UserError(f"--libvirt {text}: expected a version like 11.3.0")
    return int(said[1]), int(said[2]), int(said[3] or 0)


def numbered(version: int) -> Version:
    """Libvirt's own number for a version: 11003000 is 11.3.0."""
    return version // 1_000_000, version // 1000 % 1000, version % 1000


def shown(version: Version) -> str:
    return ".".join(map(str, version))
