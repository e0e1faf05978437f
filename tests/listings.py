"""Machines as listings, a line a function: the form in which a report becomes a test.

    root pci0000:00
    0000:00:01.1 8086:1905 060400 pcieport g1
     0000:01:00.0 10de:1b81 030000 vfio-pci g1 boot_vga=0 bars=16+256 reset=flr+bus
    other g1 INTC1055:00 intel-lpss
    sys class/iommu/dmar0/name=
    proc cmdline=quiet intel_iommu=on

A function is `ADDRESS VENDOR:DEVICE CLASS DRIVER GROUP [KEY=VALUE...]`, `-` for no driver or group, indented below the
bridge above it. `root` begins a host bridge, also below a function, as Intel's VMD has it. `other GROUP NAME DRIVER` is
a member of a group that is not on PCI. `sys` and `proc` write a line into a file of /sys or /proc, the same path again
another line. `#` begins a comment. KEY is numa, subsys, physfn, vfio, boot_vga, reset (methods, joined by +), d3cold,
bars (MiB, joined by +; ! after one without a place), or file:NAME.

What a listing leaves out is as on a node that is well: vfio-pci and vfio_iommu_type1 are loaded, with IOMMU groups
interrupts are remapped, and VFIO's nodes are there.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.compose import Function, add, bars
from tests.kernel import load, make_nodes, platform_device
from tests.processes import FIXTURES

#: Listings and the verdict on each: NAME.lst, NAME.txt.
MACHINES = FIXTURES / "machines"

_MIB = 2**20
_FILES = {"boot_vga": "boot_vga", "reset": "reset_method", "d3cold": "d3cold_allowed"}
_KEYS = {"numa", "subsys", "physfn", "vfio", "bars", *_FILES}
_FUNCTION = re.compile(r"(\S+) ([0-9a-f]{4}:[0-9a-f]{4}) ([0-9a-f]{6}) (\S+) (g[0-9]+|-)((?: \S+=\S*)*)")


@dataclass(frozen=True)
class Tree:
    """The directories that stand for a machine's /sys, /proc and /dev."""

    sys: Path
    proc: Path
    dev: Path


class NoListing(ValueError):
    """A line of a listing that makes no sense."""


def compose_listing(root: Path, listing: str) -> Tree:
    """Write the machine of a listing below `root`; NoListing for a line that makes no sense."""
    tree = Tree(root / "sys", root / "proc", root / "dev")
    (tree.sys / "bus/pci/devices").mkdir(parents=True)
    tree.proc.mkdir(parents=True)
    load(tree.sys, "vfio-pci")
    written: dict[Path, list[str]] = defaultdict(list)
    above: list[tuple[int, str]] = []  # what is open: how far it is indented, and its path in the device tree
    has_groups = False
    for number, line in enumerate(listing.splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        indent = len(line) - len(line.lstrip())
        kind, _, rest = text.partition(" ")
        if kind in ("sys", "proc"):
            file, _, content = rest.partition("=")
            written[root / kind / file].append(content)
            continue
        if kind == "other":
            group, name, driver = rest.split()
            (tree.sys / "kernel/iommu_groups" / group[1:] / "devices").mkdir(parents=True, exist_ok=True)
            platform_device(tree.sys, int(group[1:]), name, None if driver == "-" else driver)
            continue
        # What a host bridge has is not indented below it, so a `root` stands half a step further out.
        depth = 2 * indent - (kind == "root")
        while above and above[-1][0] >= depth:
            above.pop()
        path = above[-1][1] if above else ""
        if kind == "root":
            above.append((depth, f"{path}/{rest}" if path else rest))
            continue
        match = _FUNCTION.fullmatch(text)
        if match is None or not path:
            raise NoListing(f"line {number}: {text!r} is no function below a root")
        function, files = _function(match, path, number)
        add(tree.sys, function)
        if function.driver is not None:
            load(tree.sys, function.driver)
        has_groups |= function.group is not None
        place = tree.sys / "bus/pci/devices" / function.address
        written |= {place / name: [content] for name, content in {"driver_override": "(null)", **files}.items()}
        above.append((depth, f"{path}/{function.address}"))
    for target, lines in (*_on_a_well_node(tree, has_groups=has_groups), *written.items()):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("".join(f"{line}\n" for line in lines))
    make_nodes(tree.sys, tree.dev)
    return tree


def _on_a_well_node(tree: Tree, *, has_groups: bool) -> Iterator[tuple[Path, list[str]]]:
    yield tree.sys / "module/vfio_iommu_type1/parameters/allow_unsafe_interrupts", ["N"]
    if has_groups:
        yield tree.sys / "kernel/irq/0/chip_name", ["IR-IO-APIC"]
    yield tree.proc / "cmdline", ["ro quiet"]


def _function(match: re.Match[str], path: str, number: int) -> tuple[Function, dict[str, str]]:
    """Return the function of a line, and its other files."""
    address, pci_id, pci_class, driver, group, rest = match.groups()
    values = dict(word.split("=", 1) for word in rest.split())
    files = {key.removeprefix("file:"): values.pop(key) for key in list(values) if key.startswith("file:")}
    if unknown := values.keys() - _KEYS:
        raise NoListing(f"line {number}: {', '.join(sorted(unknown))} is none of {', '.join(sorted(_KEYS))}")
    files |= {_FILES[key]: values[key].replace("+", " ") for key in _FILES if key in values}
    function = Function(
        address=address,
        id=pci_id,
        pci_class=int(pci_class, 16),
        path=path,
        subsystem=values.get("subsys", "0000:0000"),
        driver=None if driver == "-" else driver,
        group=None if group == "-" else int(group[1:]),
        numa=int(values.get("numa", -1)),
        physfn=values.get("physfn"),
        vfio=int(values["vfio"]) if "vfio" in values else None,
        resource=_resource(values["bars"]) if "bars" in values else None,
    )
    return function, files


def _resource(sizes: str) -> str:
    at, registers = 0x4000_0000_0000, list[tuple[int, int]]()
    for size in sizes.split("+"):
        length = int(size.removesuffix("!")) * _MIB
        registers.append((0 if size.endswith("!") else at, length))
        at += 2 * length
    return bars(*registers)
