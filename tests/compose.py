"""Machines that nobody here has, composed by hand in the form that `gpu-plugin record` gives a real one.

`python -m tests.compose` writes the trees of tests/fixtures/sysfs whose README says that they are composed; a test
holds the trees against this file. What the machines are made of follows lspci and sysfs of real ones.
"""

import os
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.processes import FIXTURES

SYSFS = FIXTURES / "sysfs"


@dataclass(frozen=True, kw_only=True)
class Function:
    """One PCI function as sysfs shows it; `path` is the device tree above it, from the host bridge down; `vfio` the
    number of its node in /dev/vfio/devices; `resource` the file of that name, as `bars` makes it."""

    address: str
    id: str
    pci_class: int
    path: str
    subsystem: str = "0000:0000"
    driver: str | None = None
    group: int | None = None
    numa: int = -1
    physfn: str | None = None
    vfio: int | None = None
    resource: str | None = None


@dataclass(frozen=True, kw_only=True)
class Processors:
    """Sockets with a NUMA node each. CPUs count through all cores first, and then through their second threads, as the
    firmware of PCs has it."""

    sockets: int
    cores: int  # of a socket
    threads: int = 2
    distance: int = 32  # from one socket to another, as on EPYC


def compose(sys: Path, functions: Iterable[Function], processors: Processors | None = None) -> None:
    """Write a sysfs tree with these functions, and these processors, below `sys`."""
    if processors is not None:
        _compose_processors(sys / "devices/system", processors)
    (sys / "bus/pci/devices").mkdir(parents=True)
    for function in functions:
        add(sys, function)


def add(sys: Path, function: Function) -> None:
    """Add a function to a tree."""
    place = sys / "devices" / function.path / function.address
    place.mkdir(parents=True, exist_ok=True)
    (place / "uevent").write_text(uevent(function))
    (place / "numa_node").write_text(f"{function.numa}\n")
    _link(sys / "bus/pci/devices" / function.address, place)
    if function.driver is not None:
        _link(place / "driver", sys / "bus/pci/drivers" / function.driver)
    if function.group is not None:
        group = sys / "kernel/iommu_groups" / str(function.group)
        _link(place / "iommu_group", group)
        _link(group / "devices" / function.address, place)
    if function.physfn is not None:
        _link(place / "physfn", place.parent / function.physfn)
    if function.resource is not None:
        (place / "resource").write_text(f"{function.resource}\n")
    if function.vfio is not None:
        (place / "vfio-dev" / f"vfio{function.vfio}").mkdir(parents=True)


def _compose_processors(system: Path, processors: Processors) -> None:
    cores = processors.sockets * processors.cores
    for node in range(processors.sockets):
        first, last = node * processors.cores, (node + 1) * processors.cores - 1
        ranges = (f"{thread * cores + first}-{thread * cores + last}" for thread in range(processors.threads))
        distances = ("10" if other == node else str(processors.distance) for other in range(processors.sockets))
        place = system / "node" / f"node{node}"
        place.mkdir(parents=True)
        (place / "cpulist").write_text(f"{','.join(ranges)}\n")
        (place / "distance").write_text(f"{' '.join(distances)}\n")
    for cpu in range(cores * processors.threads):
        topology = system / "cpu" / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        siblings = (str(cpu % cores + thread * cores) for thread in range(processors.threads))
        (topology / "thread_siblings_list").write_text(f"{','.join(siblings)}\n")


@dataclass(frozen=True, kw_only=True)
class Platform:
    """What a machine has besides its functions: units of the IOMMU, tables of ACPI, the chips of its interrupts, VFIO's
    parameters by their path, drivers on the PCI bus; the kernel's command line and the first processor for /proc."""

    iommus: tuple[str, ...] = ("dmar0", "dmar1")
    tables: tuple[str, ...] = ("APIC", "DMAR", "FACP")
    chips: tuple[str, ...] = ("IR-IO-APIC", "IR-PCI-MSIX-0000:01:00.0")
    parameters: Mapping[str, str] = field(
        default_factory=lambda: {
            "vfio/parameters/enable_unsafe_noiommu_mode": "N",
            "vfio_iommu_type1/parameters/allow_unsafe_interrupts": "N",
        }
    )
    drivers: tuple[str, ...] = ("i915", "pcieport", "snd_hda_intel", "vfio-pci", "xhci_hcd")
    command_line: str = "BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro quiet intel_iommu=on iommu=pt"
    cpu_vendor: str = "GenuineIntel"
    cpu_flags: str = "fpu vme sse2 vmx"
    is_arm: bool = False


def compose_platform(sys: Path, proc: Path, platform: Platform) -> None:
    """Write them into a tree that has functions, and as files of /proc."""
    for unit in platform.iommus:
        place = sys / "devices/virtual/iommu" / unit
        _link(sys / "class/iommu" / unit, place)
    contents = {
        **{f"firmware/acpi/tables/{table}": "" for table in platform.tables},
        **{f"kernel/irq/{irq}/chip_name": f"{chip}\n" for irq, chip in enumerate(platform.chips)},
        **{f"module/{path}": f"{value}\n" for path, value in platform.parameters.items()},
        **{f"bus/pci/drivers/{driver}/bind": "" for driver in platform.drivers},
    }
    for path, content in contents.items():
        (sys / path).parent.mkdir(parents=True, exist_ok=True)
        (sys / path).write_text(content)
    proc.mkdir()
    (proc / "cmdline").write_text(f"{platform.command_line}\n")
    processor = "processor\t: {}\nvendor_id\t: " + platform.cpu_vendor + "\nflags\t\t: " + platform.cpu_flags + "\n\n"
    if platform.is_arm:
        processor = "processor\t: {}\nBogoMIPS\t: 50.00\nCPU implementer\t: 0x41\nCPU architecture: 8\n\n"
    (proc / "cpuinfo").write_text("".join(map(processor.format, range(2))))


def look_closely(sys: Path, address: str, **files: str | None) -> None:
    """Write files of a function that pci.sysfs.details reads, by their names; None takes one away."""
    for name, content in files.items():
        path = sys / "bus/pci/devices" / address / name
        if content is None:
            path.unlink()
        else:
            path.write_text(f"{content}\n")


def config_space(sys: Path, address: str, *, acs: int | None = None, ats: bool | None = None, most: int = 4096) -> None:
    """Write a config space with AER, and after it ACS and ATS; of so many bytes as the reader may see."""
    space, at = bytearray(4096), 0x100
    words = [(0x0001, 0)]
    words += [] if acs is None else [(0x000D, acs)]
    words += [] if ats is None else [(0x000F, 0x8000 * ats)]
    for number, (capability, control) in enumerate(words):
        following = at + 0x40 if number + 1 < len(words) else 0
        struct.pack_into("<IHH", space, at, following << 20 | 1 << 16 | capability, 0, control)
        at = following
    (sys / "bus/pci/devices" / address / "config").write_bytes(space[:most])


def bars(*registers: tuple[int, int] | None) -> str:
    """The file `resource` with these memory BARs, a start and a size each, prefetchable and of 64 bits from 4 GiB on or
    with no place; None for what has none, as the second half of one of 64 bits."""
    lines = []
    for register in registers:
        start, size = register or (0, 0)
        flags = 0 if not size else 0x40200 if 0 < start < 2**32 else 0x14220C
        lines.append(f"0x{start:016x} 0x{start + size - 1 if size else 0:016x} 0x{flags:016x}")
    return "\n".join(lines)


def uevent(function: Function) -> str:
    """The file as the kernel writes it (pci_uevent in drivers/pci/pci-driver.c), as far as it is read."""
    driver = "" if function.driver is None else f"DRIVER={function.driver}\n"
    return (
        f"{driver}PCI_CLASS={function.pci_class:X}\nPCI_ID={function.id.upper()}\n"
        f"PCI_SUBSYS_ID={function.subsystem.upper()}\nPCI_SLOT_NAME={function.address}\n"
    )


def _link(link: Path, target: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(target, link.parent))


def card(
    slot: str,
    ids: Iterable[str],
    *,
    path: str,
    group: int | None,
    numa: int = -1,
    subsystem: str = "0000:0000",
    drivers: Iterable[str | None] | None = None,
) -> tuple[Function, ...]:
    """The functions of one graphics card in their usual order: VGA, audio, USB, UCSI; on vfio-pci unless told."""
    ids = tuple(ids)
    classes = (0x030000, 0x040300, 0x0C0330, 0x0C8000)
    return tuple(
        Function(
            address=f"{slot}.{number}",
            id=pci_id,
            pci_class=pci_class,
            path=path,
            subsystem=subsystem,
            driver=driver,
            group=group,
            numa=numa,
        )
        for number, (pci_id, pci_class, driver) in enumerate(
            zip(ids, classes, ("vfio-pci",) * len(ids) if drivers is None else drivers, strict=False)
        )
    )


def bridge(address: str, pci_id: str, *, path: str, group: int | None, numa: int = -1) -> Function:
    """A root port or a port of a switch."""
    return Function(
        address=address, id=pci_id, pci_class=0x060400, path=path, driver="pcieport", group=group, numa=numa
    )


RTX_2060 = ("10de:1f08", "10de:10f9", "10de:1ada", "10de:1adb")
RTX_3090 = ("10de:2204", "10de:1aef")


def desktop(first_card: Iterable[Function], *, iommu: bool = True) -> tuple[Function, ...]:
    """An Intel desktop of the ninth generation: the card's root port is in the card's group, as without ACS."""
    group = (lambda number: number) if iommu else (lambda number: None)
    return (
        Function(address="0000:00:00.0", id="8086:3ec2", pci_class=0x060000, path="pci0000:00",
                 driver="skl_uncore", group=group(0)),
        bridge("0000:00:01.0", "8086:1901", path="pci0000:00", group=group(1)),
        *first_card,
        Function(address="0000:00:02.0", id="8086:3e92", pci_class=0x030000, path="pci0000:00", driver="i915",
                 group=group(2), subsystem="1458:d000"),
        Function(address="0000:00:14.0", id="8086:a36d", pci_class=0x0C0330, path="pci0000:00", driver="xhci_hcd",
                 group=group(3), subsystem="1458:5007"),
        Function(address="0000:00:1f.0", id="8086:a305", pci_class=0x060100, path="pci0000:00", group=group(4)),
        Function(address="0000:00:1f.3", id="8086:a348", pci_class=0x040300, path="pci0000:00",
                 driver="snd_hda_intel", group=group(4), subsystem="1458:a182"),
    )  # fmt: skip


def hgx_a100() -> tuple[Function, ...]:
    """Addresses, nodes and switches as on a DGX A100: two sockets of four NUMA nodes, two GPUs below each switch.

    Each switch (PEX88096) shows an upstream port, downstream ports, and behind two of those the second level of ports
    at which a GPU and its network card sit. ACS is on, so that every function has a group of its own.
    """
    # root, root port, first and last buses of: switch | first GPU, NIC | second GPU, NIC; NUMA node
    switches = (
        ("00", "00:01.1", 0x01, ("07", "0c"), ("0f", "12"), 3),
        ("40", "40:01.1", 0x41, ("47", "4b"), ("4e", "54"), 1),
        ("80", "80:01.1", 0x81, ("87", "8d"), ("90", "94"), 7),
        ("b0", "b0:01.1", 0xB1, ("b7", "ba"), ("bd", "cc"), 5),
    )
    functions: list[Function] = []

    def add(function: Function) -> Function:
        functions.append(function)
        return function

    def port(address: str, pci_id: str, path: str, numa: int) -> str:
        add(bridge(address, pci_id, path=path, group=len(functions), numa=numa))
        return f"{path}/{address}"

    for root, root_port, bus, first, second, numa in switches:
        above = port(f"0000:{root_port}", "1022:1483", f"pci0000:{root}", numa)
        upstream = port(f"0000:{bus:02x}:00.0", "1000:c010", above, numa)
        for number, (gpu, nic) in enumerate((first, second)):
            downstream = port(f"0000:{bus + 1:02x}:{number * 8:02x}.0", "1000:c010", upstream, numa)
            inner = port(f"0000:{bus + 2 + number * 2:02x}:00.0", "1000:c010", downstream, numa)
            to_gpu = port(f"0000:{bus + 3 + number * 2:02x}:10.0", "1000:c010", inner, numa)
            to_nic = port(f"0000:{bus + 3 + number * 2:02x}:14.0", "1000:c010", inner, numa)
            add(Function(address=f"0000:{gpu}:00.0", id="10de:20b0", pci_class=0x030200, path=to_gpu,
                         subsystem="10de:134f", driver="vfio-pci", group=len(functions), numa=numa))  # fmt: skip
            add(Function(address=f"0000:{nic}:00.0", id="15b3:101b", pci_class=0x020700, path=to_nic,
                         subsystem="15b3:0007", driver="mlx5_core", group=len(functions), numa=numa))  # fmt: skip
    fabric = port("0000:b0:03.1", "1022:1483", "pci0000:b0", 5)
    for number in range(6):
        add(Function(address=f"0000:{0xC4 + number:02x}:00.0", id="10de:1af1", pci_class=0x068000, path=fabric,
                     subsystem="10de:1539", driver="nvidia-nvswitch", group=len(functions), numa=5))  # fmt: skip
    add(Function(address="0000:e2:00.0", id="1a03:2000", pci_class=0x030000, path="pci0000:e0/0000:e0:05.0",
                 subsystem="1a03:2000", driver="ast", group=len(functions), numa=4))  # fmt: skip
    return tuple(functions)


def two_h100() -> tuple[Function, ...]:
    """An EPYC machine with an H100 PCIe of 80 GB below a root port of each socket; all that memory is in one BAR."""
    functions: list[Function] = []
    for node, (root, bus, base) in enumerate((("40", "41", 0x2000_0000_0000), ("c0", "c1", 0x6000_0000_0000))):
        path = f"pci0000:{root}"
        functions += [
            bridge(f"0000:{root}:01.1", "1022:14ab", path=path, group=10 + 2 * node, numa=node),
            Function(address=f"0000:{bus}:00.0", id="10de:2331", pci_class=0x030200, path=f"{path}/0000:{root}:01.1",
                     subsystem="10de:1626", driver="vfio-pci", group=11 + 2 * node, numa=node,
                     resource=bars((base + 0x2004200000, 16 << 20), None, (base, 128 << 30), None,
                                   (base + 0x2002000000, 32 << 20), None)),
        ]  # fmt: skip
    return tuple(functions)


def cards_of_several_groups() -> tuple[Function, ...]:
    """Two cards whose functions have groups of their own: a Radeon RX 6600, which has all on one slot, and an Arc A750,
    whose audio is on another port of the board's own switch. Both have that: a Radeon's has one downstream port."""
    radeon, arc = "pci0000:00/0000:00:01.1", "pci0000:40/0000:40:01.1"
    gpu, audio = card("0000:03:00", ("1002:73ff", "1002:ab28"), subsystem="1458:2405", group=13, numa=0,
                      path=f"{radeon}/0000:01:00.0/0000:02:00.0")  # fmt: skip
    arcs, arcs_audio = card("0000:43:00", ("8086:56a1", "8086:4f90"), subsystem="8086:1021", group=24, numa=1,
                            path=f"{arc}/0000:41:00.0/0000:42:01.0")  # fmt: skip
    return (
        bridge("0000:00:01.1", "1022:1483", path="pci0000:00", group=10, numa=0),
        bridge("0000:01:00.0", "1002:1478", path=radeon, group=11, numa=0),
        bridge("0000:02:00.0", "1002:1479", path=f"{radeon}/0000:01:00.0", group=12, numa=0),
        gpu,
        replace(audio, group=14),
        bridge("0000:40:01.1", "1022:1483", path="pci0000:40", group=20, numa=1),
        bridge("0000:41:00.0", "8086:4fa1", path=arc, group=21, numa=1),
        bridge("0000:42:01.0", "8086:4fa4", path=f"{arc}/0000:41:00.0", group=22, numa=1),
        bridge("0000:42:04.0", "8086:4fa4", path=f"{arc}/0000:41:00.0", group=23, numa=1),
        arcs,
        replace(arcs_audio, address="0000:44:00.0", path=f"{arc}/0000:41:00.0/0000:42:04.0", group=25),
    )


MACHINES: Mapping[str, tuple[Function, ...]] = {
    "rtx-2060": desktop(
        card("0000:01:00", RTX_2060, path="pci0000:00/0000:00:01.0", group=1, subsystem="1462:3756"),
    ),
    "rtx-2060-audio-on-snd-hda-intel": desktop(
        card("0000:01:00", RTX_2060, path="pci0000:00/0000:00:01.0", group=1, subsystem="1462:3756",
             drivers=("vfio-pci", "snd_hda_intel", "vfio-pci", None)),
    ),
    "rtx-2060-without-iommu": desktop(
        card("0000:01:00", RTX_2060, path="pci0000:00/0000:00:01.0", group=None, subsystem="1462:3756",
             drivers=("nouveau", "snd_hda_intel", "xhci_hcd", None)),
        iommu=False,
    ),
    "two-gpus-one-group": desktop(
        (
            *card("0000:01:00", RTX_2060, path="pci0000:00/0000:00:01.0", group=1, subsystem="1462:3756"),
            bridge("0000:00:01.1", "8086:1905", path="pci0000:00", group=1),
            *card("0000:02:00", RTX_3090, path="pci0000:00/0000:00:01.1", group=1, subsystem="1043:87b3"),
        ),
    ),
    "two-rtx-3090": (
        bridge("0000:00:01.1", "1022:1483", path="pci0000:00", group=10, numa=0),
        *card("0000:01:00", RTX_3090, path="pci0000:00/0000:00:01.1", group=11, numa=0, subsystem="1043:87b3"),
        bridge("0000:e0:01.1", "1022:1483", path="pci0000:e0", group=70, numa=1),
        *card("0000:e1:00", RTX_3090, path="pci0000:e0/0000:e0:01.1", group=71, numa=1, subsystem="1043:87b3"),
    ),
    "hgx-a100-8-gpu": hgx_a100(),
    "two-h100": two_h100(),
    "cards-of-several-groups": cards_of_several_groups(),
}  # fmt: skip


#: Of the machines whose processors are looked at as well.
PROCESSORS: Mapping[str, Processors] = {
    "two-rtx-3090": Processors(sockets=2, cores=8),
    "two-h100": Processors(sockets=2, cores=16),
    "cards-of-several-groups": Processors(sockets=2, cores=8),
    "hgx-a100-8-gpu": Processors(sockets=8, cores=16),  # two sockets, four nodes each (NPS4)
}


if __name__ == "__main__":
    import shutil

    for name, functions in MACHINES.items():
        for entry in ("bus", "devices", "kernel"):
            shutil.rmtree(SYSFS / name / entry, ignore_errors=True)
        compose(SYSFS / name, functions, PROCESSORS.get(name))
