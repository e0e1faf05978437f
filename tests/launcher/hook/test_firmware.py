"""What a guest's firmware makes of the hook's answers: a real QEMU without VFIO, with other devices in place of cards
(tests/launcher/vm/guest_pci/test_guest_pci.py does the same with what render prints)."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import libvirt_qemu
import pytest
from lxml import etree
from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.runtime import guest
from program.ending import Ending
from tests.launcher.guests import a_vm, ending, started
from tests.launcher.hook.domains import CASES
from tests.launcher.hook.kubevirt import understood
from tests.launcher.vm.guest_pci.test_guest_pci import EVENTUALLY, KERNELS, Place, found, one, ways

#: What the test's QEMU can do without: sockets of KubeVirt's, and a CPU of the host's.
_LEFT_OUT = ("graphics", "serial", "console", "channel")
BOOTED = {
    "seabios": ("2 GPUs", "8 GPUs", "numa", "mirror", "pinned seats", "on the root complex"),
    "ovmf": ("mirror",),
}


@pytest.mark.parametrize(
    ("firmware", "name"), [(firmware, name) for firmware, names in BOOTED.items() for name in names]
)
def test_the_domain_boots_and_firmware_finds_the_cards_where_the_hook_says(
    firmware: str, name: str, qemu_driver: Any, short_dir: Path
) -> None:
    """The second define's domain, after KubeVirt has forgotten what it does not know."""
    case = next(case for case in CASES if case.name == name).emulated()
    case = replace(case, parts=replace(case.parts, memory=256 << 20))
    answer = case.answer(understood(case.answer().xml, knows_targets=False))
    kernel = short_dir / "kernel"
    kernel.write_bytes(KERNELS[firmware]())
    domain = without_vfio(answer.xml, kernel, firmware)
    places = enumerated(qemu_driver, domain)
    assert {host: place.way for host, place in places.items()} == ways(domain)
    said = dict(where for line in answer.cards for where in told(line))
    assert {host: place.address for host, place in places.items() if host in said} == said
    assert said or name == "on the root complex"


def told(line: str) -> Iterator[tuple[str, str]]:
    """Of a line of the hook's: each function of the host's, and where it says that the guest has it."""
    functions, _, where = line.partition("; in the guest ")
    if where:
        first, *others = where.split(", ")
        addresses = [first, *(first[:-2] + number for number in others)]
        yield from zip(re.findall(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", functions), addresses, strict=True)


def without_vfio(xml: bytes, kernel: Path, firmware: str) -> Element:
    """The domain with a random number generator for each function of a card, called as the host calls that one."""
    domain = etree.fromstring(xml)
    devices, os, cpu = one(domain, "devices"), one(domain, "os"), one(domain, "cpu")
    if firmware == "ovmf":
        os.set("firmware", "efi")
        os.append(E.firmware(E.feature(enabled="no", name="secure-boot")))
    os.append(E.kernel(str(kernel)))
    del cpu.attrib["mode"]
    cpu.insert(0, E.model("qemu64"))
    domain.append(E.on_crash("preserve"))
    devices.append(E.panic(model="isa"))
    for tag in _LEFT_OUT:
        for device in devices.findall(tag):
            devices.remove(device)
    for card in devices.findall("interface"):
        card.set("type", "user")
        for of_tap in [each for tag in ("source", "target", "mtu") for each in card.findall(tag)]:
            card.remove(of_tap)
    for number, disk in enumerate(devices.findall("disk")):
        image = kernel.with_name(f"{number}.img")
        image.write_bytes(bytes(1 << 20))
        one(disk, "source").set("file", str(image))
        one(disk, "driver").set("cache", "writeback")
    for hostdev in devices.findall("hostdev"):
        source = one(hostdev, "source/address")
        function = "-".join(source.get(part, "")[2:] for part in ("domain", "bus", "slot", "function"))
        backend, alias = E.backend("/dev/urandom", model="random"), E.alias(name=f"ua-{function}")
        devices.replace(hostdev, E.rng(backend, alias, one(hostdev, "address"), model="virtio-non-transitional"))
    return domain


def enumerated(qemu: Any, domain: Element) -> dict[str, Place]:
    made = a_vm()
    xml = etree.tostring(domain, encoding="unicode")
    for empty in re.findall(r"<(?:bios|baseBoard|chassis)/>", xml):
        xml = xml.replace(empty, "")
    with guest.defined(qemu, xml, made) as defined, started(defined, made):
        assert ending(made, EVENTUALLY) is Ending.PANICKED, "expected the kernel to panic"
        answer = json.loads(libvirt_qemu.qemuMonitorCommand(defined, json.dumps({"execute": "query-pci"}), 0))
    return dict(host for root in answer["return"] for host in found(root["devices"], (f"{root['bus']:02x}",)))
