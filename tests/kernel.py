"""What the kernel does to its trees, done to a copy of a recorded machine."""

import errno
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Event, Thread
from types import MappingProxyType

from pci.functions import is_on_vfio, is_vfio_driver
from pci.sysfs.functions import DEVICES, IOMMU_GROUPS, MDEVS, VFIO_DEV, read_host
from plugin.changes.engine import Write

_DRIVERS = "bus/pci/drivers"
_NO_OVERRIDE = "(null)"


def tell() -> None:
    """Let the kernel that runs here send an event about a PCI function of its own: `change`, which changes nothing
    (Documentation/ABI/testing/sysfs-uevent). OSError where that takes root, ValueError where there is no function."""
    min(Path("/sys/bus/pci/devices").glob("*/uevent")).write_text("change")


@cache
def tells() -> bool:
    """Whether it can be made to, and is heard here."""
    kernel, uevents = 1, 15  # include/uapi/linux/netlink.h
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, uevents) as listener:
        listener.bind((0, kernel))
        listener.settimeout(1.0)
        try:
            tell()
            return bool(listener.recv(1 << 13))
        except (OSError, ValueError):
            return False


def bind(sys: Path, address: str, driver: str | None) -> None:
    """Let a driver have the function, or none; `driver` and `uevent` change together, and what vfio made of the
    function goes with its driver, as in sysfs."""
    function = (sys / DEVICES / address).resolve()
    link = function / "driver"
    link.unlink(missing_ok=True)
    uevent = function / "uevent"
    lines = re.sub(r"^DRIVER=.*\n", "", uevent.read_text())
    if driver is not None:
        link.symlink_to(os.path.relpath(sys.resolve() / _DRIVERS / driver, function))
        lines = f"DRIVER={driver}\n{lines}"
    # Whoever looks meanwhile finds the old file or the new one.
    new = sys / f"{address}.uevent"
    new.write_text(lines)
    new.replace(uevent)
    if driver is None or not is_vfio_driver(driver):
        shutil.rmtree(function / VFIO_DEV, ignore_errors=True)


def becomes(sys: Path, address: str, pci_id: str) -> None:
    """Have another model in the place of a function."""
    uevent = sys / DEVICES / address / "uevent"
    uevent.write_text(re.sub("^PCI_ID=.*$", f"PCI_ID={pci_id.upper()}", uevent.read_text(), flags=re.MULTILINE))


def aer(sys: Path, address: str, *, correctable: int = 0, nonfatal: int = 0, fatal: int = 0) -> None:
    """Have so many errors of a function counted, in files as of aer_stats_dev_attr in drivers/pci/pcie/aer.c."""
    counters = {
        "correctable": f"RxErr {correctable}\nBadTLP 0\nTOTAL_ERR_COR {correctable}\n",
        "nonfatal": f"Undefined 0\nCmpltTO {nonfatal}\nTOTAL_ERR_NONFATAL {nonfatal}\n",
        "fatal": f"Undefined 0\nDLP {fatal}\nTOTAL_ERR_FATAL {fatal}\n",
    }
    for counter, lines in counters.items():
        (sys / DEVICES / address / f"aer_dev_{counter}").write_text(lines)


def unplug(sys: Path, address: str) -> None:
    """Take a function off the bus, and out of its group."""
    group = (sys / DEVICES / address / "iommu_group").readlink().name
    (sys / "unplugged").mkdir(exist_ok=True)
    (sys / DEVICES / address).rename(sys / "unplugged" / address)
    (sys / IOMMU_GROUPS / group / "devices" / address).rename(sys / "unplugged" / f"{address} in {group}")


def plug(sys: Path, address: str) -> None:
    """Put it back, as it was."""
    (member,) = (sys / "unplugged").glob(f"{address} in *")
    member.rename(sys / IOMMU_GROUPS / member.name.rpartition(" ")[2] / "devices" / address)
    (sys / "unplugged" / address).rename(sys / DEVICES / address)


def platform_device(sys: Path, group: int, name: str, driver: str | None) -> None:
    """Put a device of the platform bus into an IOMMU group, on that driver or on none."""
    place = sys.resolve() / "devices/platform" / name
    place.mkdir(parents=True, exist_ok=True)
    (place / "driver").unlink(missing_ok=True)
    if driver is not None:
        (place / "driver").symlink_to(f"../../../bus/platform/drivers/{driver}")
    member = sys.resolve() / IOMMU_GROUPS / str(group) / "devices" / name
    if not member.is_symlink():
        member.symlink_to(f"../../../../devices/platform/{name}")


def mediated_device(
    sys: Path, parent: str, uuid: str, type_name: str | None, *, directory: str = "nvidia-231", group: int | None
) -> None:
    """Let the parent's driver make a mediated device. Types of i915 have no name but their directory's."""
    above = (sys / DEVICES / parent).resolve()
    place = above / uuid
    place.mkdir()
    kind = above / "mdev_supported_types" / directory
    kind.mkdir(parents=True)
    if type_name is not None:
        (kind / "name").write_text(f"{type_name}\n")
    (place / "mdev_type").symlink_to(f"../mdev_supported_types/{directory}")
    if group is not None:
        (place / "iommu_group").symlink_to(os.path.relpath(sys.resolve() / IOMMU_GROUPS / str(group), place))
        (sys / IOMMU_GROUPS / str(group) / "devices").mkdir(parents=True, exist_ok=True)
        (sys / IOMMU_GROUPS / str(group) / "name").write_text("vfio-noiommu\n")  # though its node has a plain number
    link = sys / MDEVS / uuid
    link.parent.mkdir(parents=True)
    link.symlink_to(Path("../../..") / place.relative_to(sys.resolve()))


def make_nodes(sys: Path, dev: Path, *, cdevs: bool = False) -> Path:
    """VFIO's nodes for what it has in that tree, as files: by group, and with `cdevs` for each function too. Returns
    the directory that stands for /dev."""
    (dev / "vfio").mkdir(parents=True, exist_ok=True)
    (dev / "vfio/vfio").touch()
    on_vfio = [function for function in read_host(sys).functions.values() if is_on_vfio(function)]
    for group in {function.iommu_group for function in on_vfio}:
        (dev / "vfio" / str(group)).touch()
    if cdevs:
        (dev / "iommu").touch()
        (dev / "vfio/devices").mkdir()
        for number, function in enumerate(on_vfio):
            name = f"vfio{number}"
            (sys / DEVICES / str(function.address) / VFIO_DEV / name).mkdir(parents=True, exist_ok=True)
            (dev / "vfio/devices" / name).touch()
    return dev


def load(sys: Path, *drivers: str) -> None:
    """Load these drivers; none takes a function."""
    for driver in drivers:
        (sys / _DRIVERS / driver).mkdir(parents=True, exist_ok=True)


def part(sys: Path, address: str, path: str, subsystem: str, node: str | None = None, **files: str) -> None:
    """Let the function's driver make a part of it: `drm/card0`, whose device file is /dev/`node`."""
    device(sys, f"bus/pci/devices/{address}/{path}", subsystem, node, **files)


def device(sys: Path, path: str, subsystem: str, node: str | None = None, **files: str) -> None:
    """The same anywhere in sysfs."""
    place = sys / path
    place.mkdir(parents=True)
    lines = ""
    if node is not None:
        major, minor = files["dev"].split(":") if "dev" in files else _number(node)
        lines = f"MAJOR={major}\nMINOR={minor}\nDEVNAME={node}\n"
    (place / "uevent").write_text(lines)
    (place / "subsystem").symlink_to(f"/class/{subsystem}")
    for name, content in files.items():
        (place / name).write_text(f"{content}\n")


#: Device files that every machine has, in the place of those that only some have: what counts is their number.
STAND_INS = {
    "dri/card0": "/dev/tty",
    "dri/card1": "/dev/zero",
    "dri/renderD129": "/dev/full",
    "snd/controlC1": "/dev/random",
    "input/event7": "/dev/urandom",
    "nvidia3": "/dev/zero",
    "vfio/1": "/dev/zero",
    "vfio/noiommu-1": "/dev/full",
    "vfio/devices/vfio0": "/dev/random",
}


def _number(node: str) -> tuple[int, int]:
    number = Path(STAND_INS.get(node, "/dev/null")).stat().st_rdev
    return os.major(number), os.minor(number)


def vfio_group(sys: Path, name: str) -> None:
    """Let vfio make the node of a group: `1`, `noiommu-1`."""
    place = sys / "class/vfio" / name
    place.mkdir(parents=True)
    (place / "dev").write_text("{}:{}\n".format(*_number(f"vfio/{name}")))


def process(proc: Path, number: int, name: str, *opened: str | Path, mounts: Iterable[str] = ()) -> None:
    """Let a process run that has these files open, and these lines in its mountinfo."""
    place = proc / str(number)
    (place / "fd").mkdir(parents=True)
    (place / "comm").write_text(f"{name}\n")
    (place / "mountinfo").write_text("".join(f"{line}\n" for line in mounts))
    for descriptor, path in enumerate(opened, start=3):
        (place / "fd" / str(descriptor)).symlink_to(STAND_INS.get(str(path).removeprefix("/dev/"), path))


@contextmanager
def answering(sys: Path, dev: Path, chooses: Mapping[str, str]) -> Iterator["Kernel"]:
    """Let a kernel answer what other processes write to a copied tree to bind and unbind. It has vfio-pci, whose nodes
    are made in the directory that stands for /dev, and the drivers that `chooses` has for addresses."""
    load(sys, "vfio-pci", *chooses.values())
    kernel = Kernel(sys, dev, chooses)
    thread = Thread(target=kernel.run)
    thread.start()
    try:
        yield kernel
    finally:
        kernel.ending.set()
        thread.join()
        kernel.close()


class Kernel:
    """Where one writes to bind and unbind are pipes, which it reads. `refusing` are functions with drivers that do not
    take them."""

    def __init__(self, sys: Path, dev: Path, chooses: Mapping[str, str]) -> None:
        self.ending = Event()
        self.refusing: set[tuple[str, str]] = set()
        self.bound: list[tuple[str, str]] = []  # address and driver, in order
        self._sys, self._dev, self._chooses = sys, dev, chooses
        self._functions = sorted((sys / DEVICES).iterdir())
        self._groups = {str(one.address): str(one.iommu_group) for one in read_host(sys).functions.values()}
        for function in self._functions:
            (function / "driver_override").write_text(f"{_NO_OVERRIDE}\n")
        self._unbind = [_pipe(driver / "unbind") for driver in sorted((sys / _DRIVERS).iterdir())]
        self._probe = _pipe(sys / "bus/pci/drivers_probe")

    def run(self) -> None:
        while not self.ending.wait(0.002):
            # One who asks for a probe has asked for the unbinding before.
            probes = _lines(self._probe)
            for unbind in self._unbind:
                for address in _lines(unbind):
                    self._let_go(address)
            for function in self._functions:
                self._mend(function / "driver_override")
            for address in probes:
                self._give(address)

    def close(self) -> None:
        for pipe in (*self._unbind, self._probe):
            os.close(pipe)

    def _mend(self, override: Path) -> None:
        """In a file a shorter line leaves the end of the one before it, in sysfs it does not. Whoever writes is done
        after a moment."""
        lines = override.read_text().splitlines()
        if (len(lines) > 1 or lines == [""]) and override.stat().st_mtime < time.time() - 0.1:
            override.write_text(f"{lines[0] or _NO_OVERRIDE}\n")

    def _driver(self, address: str) -> str | None:
        link = self._sys / DEVICES / address / "driver"
        return link.readlink().name if link.is_symlink() else None

    def _let_go(self, address: str) -> None:
        bind(self._sys, address, None)
        if not any(
            self._driver(other) == "vfio-pci" for other in self._groups if self._node(other) == self._node(address)
        ):
            self._node(address).unlink(missing_ok=True)

    def _give(self, address: str) -> None:
        override, *_ = (self._sys / DEVICES / address / "driver_override").read_text().splitlines()
        driver = self._chooses.get(address) if override in ("", _NO_OVERRIDE) else override
        if driver is not None and self._driver(address) is None and (address, driver) not in self.refusing:
            self.bound.append((address, driver))
            if driver == "vfio-pci":
                self._node(address).touch()  # it is there when the driver is
            bind(self._sys, address, driver)

    def _node(self, address: str) -> Path:
        return self._dev / "vfio" / self._groups[address]


def _pipe(path: Path) -> int:
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK)


def _lines(pipe: int) -> list[str]:
    try:
        return os.read(pipe, 4096).decode().split()
    except BlockingIOError:
        return []


class Sysfs:
    """The kernel's side of writes to `driver_override`, `unbind` and `drivers_probe`.

    Without an override a function is for the driver that `chooses` has for its address. `turned_down` are functions
    with drivers that do not take them. Instead of write number n, from 1, what `instead` has for n is raised. What was
    written is in `log`.
    """

    def __init__(
        self,
        sys: Path,
        chooses: Mapping[str, str] = MappingProxyType({}),
        turned_down: Container[tuple[str, str]] = (),
        instead: Callable[[int], BaseException | None] = lambda number: None,
    ) -> None:
        self.log: list[str] = []
        self._sys = sys
        self._chooses = chooses
        self._turned_down = turned_down
        self._instead = instead
        self._number = 0

    def __call__(self, write: Write) -> None:
        self._number += 1
        if (error := self._instead(self._number)) is not None:
            raise error
        path = self._sys / write.path
        if not path.parent.exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        self.log.append(str(write))
        if path.name == "driver_override":
            path.write_text(f"{write.text or _NO_OVERRIDE}\n")
        elif path.name == "unbind":
            bind(self._sys, write.text, None)
        elif path.name in ("reset_method", "d3cold_allowed"):
            path.write_text(f"{write.text}\n")
        else:
            self._probe(write.text)

    def _probe(self, address: str) -> None:
        function = self._sys / "bus/pci/devices" / address
        override = (function / "driver_override").read_text().strip()
        driver = self._chooses.get(address) if override == _NO_OVERRIDE else override
        if (
            driver is not None
            and not (function / "driver").is_symlink()
            and (self._sys / _DRIVERS / driver).is_dir()
            and (address, driver) not in self._turned_down
        ):
            bind(self._sys, address, driver)
