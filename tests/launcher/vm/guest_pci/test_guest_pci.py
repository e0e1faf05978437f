"""What a guest's firmware makes of our layouts: a real QEMU without VFIO, with other devices in the cards' places.

The domain is render's. Its guest ends in a kernel of one thought, which the firmware boots when it is through, and
then stands still; QEMU says which buses and addresses the firmware has given out (QMP's query-pci).
"""

import json
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import libvirt_qemu
import pytest
from lxml import etree
from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.runtime import guest
from launcher.vm.domain import socket_directory
from launcher.vm.facts import Facts
from program.ending import Ending
from tests.conftest import Command
from tests.launcher import kernels
from tests.launcher.guests import a_vm, ending, started
from tests.launcher.vms import read_manifest
from tests.processes import FIXTURES

EVENTUALLY = 120  # seconds until the firmware is through; OVMF takes 6 of them without KVM
OTHERS = 5  # disks, and as many network cards
BOOTLOADERS = {"seabios": {"bios": {}}, "ovmf": {"efi": {"secureBoot": False}}}
KERNELS = {"seabios": kernels.multiboot, "ovmf": kernels.efi_application}


@dataclass(frozen=True, kw_only=True)
class Cards:
    """The host's functions that the guest gets, each for one entry, on a machine of fixtures/sysfs; without one, they
    have no companions."""

    claimed: tuple[str, ...]
    sysfs: str | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)

    def flags(self) -> list[str | Path]:
        """Of render and of explain."""
        sysfs = ("--sysfs", FIXTURES / "sysfs" / self.sysfs) if self.sysfs is not None else ()
        return ["--emulation", "--env", f"PCI_RESOURCE_EXAMPLE_COM_CARD={','.join(self.claimed)}", *sysfs]


@dataclass(frozen=True)
class Place:
    """Where in the guest a function is: its address, and the way there: a root's bus, bridge after bridge, itself."""

    address: str
    way: tuple[str, ...]


def numbered(count: int) -> tuple[str, ...]:
    return tuple(f"0000:{0x10 + number:02x}:00.0" for number in range(count))


A100S = tuple(f"0000:{bus}:00.0" for bus in ("07", "0f", "47", "4e", "87", "90", "b7", "bd"))
NUMA = {"gpu-launcher.dev/topology": "numa"}
MIRROR = {"gpu-launcher.dev/topology": "mirror"}
LAYOUTS = {
    "1 seat": Cards(claimed=("0000:01:00.0",), sysfs="rtx-2060"),
    "2 seats": Cards(claimed=("0000:01:00.0", "0000:e1:00.0"), sysfs="two-rtx-3090"),
    "8 seats": Cards(claimed=A100S, sysfs="hgx-a100-8-gpu"),
    "16 seats": Cards(claimed=numbered(16)),
    "32 seats": Cards(claimed=numbered(32)),
    "numa": Cards(claimed=A100S, sysfs="hgx-a100-8-gpu", annotations=NUMA),
    "numa, one on bus 0": Cards(claimed=("0000:01:00.0", "0000:41:00.0"), sysfs="lab-modern", annotations=NUMA),
    "mirror": Cards(claimed=A100S, sysfs="hgx-a100-8-gpu", annotations=MIRROR),
    "pinned": Cards(claimed=numbered(2), annotations={"gpu-launcher.dev/seats": '{"gpu0": 9}'}),
}
#: OVMF, which takes five times as long as SeaBIOS, has the largest of the flat ones, and each with other devices beside
#: the cards; with --thorough it has them all, and without other devices too.
SMALLER = ("1 seat", "2 seats", "8 seats", "16 seats", "pinned")


@dataclass(frozen=True, kw_only=True)
class Booted:
    """What a manifest's domain asks for, and what firmware has made of it: by the host's functions."""

    vm: Path
    ways: Mapping[str, tuple[str, ...]]
    places: Mapping[str, Place]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if {"layout", "firmware"} <= {*metafunc.fixturenames}:
        has_all = metafunc.config.getoption("--thorough")
        pairs = [(layout, "seabios") for layout in LAYOUTS]
        pairs += [(layout, "ovmf") for layout in LAYOUTS if has_all or layout not in SMALLER]
        metafunc.parametrize(("layout", "firmware"), pairs)


def test_firmware_finds_each_card_where_explain_says_whatever_else_the_vm_has(
    layout: str, firmware: str, qemu_driver: Any, gpu_launcher: Command, short_dir: Path, pytestconfig: pytest.Config
) -> None:
    def boot(others: int) -> Booted:
        return booted(layout, firmware, others, qemu_driver, gpu_launcher, short_dir)

    has_both = firmware == "seabios" or pytestconfig.getoption("--thorough")
    with ThreadPoolExecutor() as both:  # much of a start and of an end is waiting
        *bare, full = both.map(boot, (0, OTHERS) if has_both else (OTHERS,))
    for each in (*bare, full):
        assert {host: place.way for host, place in each.places.items()} == each.ways
        assert {host: place.address for host, place in each.places.items()} == explained(
            gpu_launcher, each.vm, LAYOUTS[layout]
        )
        assert set(LAYOUTS[layout].claimed) <= set(each.places)
        assert each.places == full.places


def booted(layout: str, firmware: str, others: int, qemu: Any, gpu_launcher: Command, directory: Path) -> Booted:
    cards = LAYOUTS[layout]
    home = directory / f"{firmware}-{others}"
    home.mkdir()
    kernel = home / "kernel"
    kernel.write_bytes(KERNELS[firmware]())
    vm = written(home / f"{home.name}.yaml", cards, firmware, others)
    domain = without_vfio(printed(gpu_launcher("render", vm, *cards.flags())), kernel)
    return Booted(vm=vm, ways=ways(domain), places=enumerated(qemu, vm, domain))


def written(path: Path, cards: Cards, firmware: str, others: int) -> Path:
    """A manifest of a guest with these cards, and so many disks; of the network cards it has the one that it may."""
    disks = [f"disk{number}" for number in range(others)]
    networks = ["default"] if others else []
    devices = {
        "gpus": [{"name": f"gpu{number}", "deviceName": "example.com/card"} for number in range(len(cards.claimed))],
        "panicDevices": [{}],
        "disks": [{"name": disk, "cache": "writeback", "disk": {"bus": "virtio"}} for disk in disks],
        "interfaces": [{"name": network, "passt": {}} for network in networks],
        "autoattachPodInterface": False,
    }
    boot = {"bootloader": BOOTLOADERS[firmware], "kernelBoot": {"container": {"image": "x", "kernelPath": "/kernel"}}}
    spec = {
        "domain": {"cpu": {"model": "qemu64"}, "memory": {"guest": "256Mi"}, "firmware": boot, "devices": devices},
        "networks": [{"name": network, "pod": {}} for network in networks],
        "volumes": [{"name": disk, "hostDisk": {"path": f"/data/{disk}.img", "type": "Disk"}} for disk in disks],
    }
    metadata = {"name": path.stem, "annotations": dict(cards.annotations)}
    vmi = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": metadata, "spec": spec}
    path.write_text(json.dumps(vmi))
    return path


def without_vfio(xml: str, kernel: Path) -> Element:
    """The domain with a random number generator for each function of a card, called as the host calls that one; with
    this kernel, and files of its directory for disks; as many network cards as disks, of QEMU's own network."""
    domain = etree.fromstring(xml)
    devices = one(domain, "devices")
    one(domain, "os/kernel").text = str(kernel)
    domain.append(E.on_crash("preserve"))
    for hostdev in devices.findall("hostdev"):
        source, address = one(hostdev, "source/address"), one(hostdev, "address")
        function = "-".join(source.get(part, "")[2:] for part in ("domain", "bus", "slot", "function"))
        backend, alias = E.backend("/dev/urandom", model="random"), E.alias(name=f"ua-{function}")
        devices.replace(hostdev, E.rng(backend, alias, address, model="virtio-non-transitional"))
    disks = devices.findall("disk/source")
    for number, source in enumerate(disks):
        image = kernel.with_name(f"{number}.img")
        image.write_bytes(bytes(1 << 20))
        source.set("file", str(image))
    for card in devices.findall("interface"):
        for passts in [*card.findall("backend"), *card.findall("portForward")]:
            card.remove(passts)
        for number in range(1, len(disks)):
            other, mac = deepcopy(card), E.mac(address=f"02:00:00:00:00:{number:02x}")
            other.replace(one(other, "mac"), mac)
            other.remove(one(other, "alias"))
            devices.append(other)
    return domain


def enumerated(qemu: Any, vm: Path, domain: Element) -> dict[str, Place]:
    """Where the firmware has found each function of the host's. Every one has addresses for all of its BARs."""
    made = a_vm()
    # Two tests at a time may start a VM of that name: its sockets are beside its manifest.
    xml = etree.tostring(domain, encoding="unicode").replace(
        str(socket_directory(read_manifest(vm), Facts())), str(vm.parent)
    )
    with guest.defined(qemu, xml, made) as defined, started(defined, made):
        assert ending(made, EVENTUALLY) is Ending.PANICKED, "expected the kernel to panic"
        answer = json.loads(libvirt_qemu.qemuMonitorCommand(defined, json.dumps({"execute": "query-pci"}), 0))
    return dict(host for root in answer["return"] for host in found(root["devices"], (f"{root['bus']:02x}",)))


def found(devices: Iterable[Mapping[str, Any]], way: tuple[str, ...]) -> Iterator[tuple[str, Place]]:
    """https://qemu.readthedocs.io/en/v7.2.0/interop/qemu-qmp-ref.html#qapidoc-2447, of these devices and below."""
    for device in devices:
        here = f"{device['slot']:02x}.{device['function']}"
        if device["qdev_id"].startswith("ua-0000-"):
            assert all(region["address"] != -1 for region in device["regions"]), device
            yield host_of(device["qdev_id"]), Place(f"0000:{device['bus']:02x}:{here}", (*way, here))
        yield from found(device.get("pci_bridge", {}).get("devices", ()), (*way, here))


def ways(domain: Element) -> dict[str, tuple[str, ...]]:
    """The way that the domain asks for, to each function of the host's."""
    controllers = {element.get("index"): element for element in domain.iterfind("devices/controller[@type='pci']")}

    def way(element: Element) -> tuple[str, ...]:
        if element.get("model") == "pcie-expander-bus":
            return (f"{int(one(element, 'target').get('busNr', '')):02x}",)
        bus, slot, function = (int(one(element, "address").get(part, ""), 16) for part in ("bus", "slot", "function"))
        return (*(way(controllers[str(bus)]) if bus else ("00",)), f"{slot:02x}.{function}")

    return {host_of(one(rng, "alias").get("name", "")): way(rng) for rng in domain.iterfind("devices/rng")}


def explained(gpu_launcher: Command, vm: Path, cards: Cards) -> dict[str, str]:
    """The guest's address of each function of the host's, as explain has it."""
    entries = json.loads(printed(gpu_launcher("explain", "--json", vm, *cards.flags())))["entries"]
    return {passed["host"]: passed["guest"] for entry in entries for passed in entry["passed"]}


def host_of(alias: str) -> str:
    """The host's function that a device is called by: ua-0000-41-00-0 is 0000:41:00.0's."""
    domain, bus, slot, function = alias.removeprefix("ua-").split("-")
    return f"{domain}:{bus}:{slot}.{function}"


def one(element: Element, path: str) -> Element:
    found = element.find(path)
    assert found is not None, f"no {path} in {element.tag!r}"
    return found


def printed(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 0, result.stderr
    return result.stdout
