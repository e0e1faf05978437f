"""Room for large BARs: how much there is asked for, that firmware can place every BAR in it, and that it does."""

import json
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import libvirt_qemu
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree
from lxml.builder import E

from launcher.runtime import guest
from launcher.vm.cards.claims import Claim
from launcher.vm.cards.guest import GuestCard
from launcher.vm.cpu.facts import address_bits
from launcher.vm.domain import socket_directory
from launcher.vm.facts import Facts
from launcher.vm.guest import Guest
from launcher.vm.guest_pci.addresses import HostDev, Layout, PCIBridge, Seat
from launcher.vm.guest_pci.bars import Hole, needed, read_bars
from launcher.vm.guest_pci.bars import hole as hole_of
from launcher.vm.spec import VirtualMachineInstance
from launcher.vm.xml import guest_address
from pci.address import PCIAddress
from pci.host import BAR
from program.errors import Refusal
from program.problem import Problem
from tests.compose import bars as resource
from tests.conftest import Command
from tests.launcher.cases import case
from tests.launcher.guests import a_vm, started
from tests.launcher.vms import (
    RTX_3090,
    RTX_3090_VARIABLE,
    a_guest,
    domain_of,
    entries,
    laid_out,
    read_manifest,
    write_vmi,
)
from tests.processes import FIXTURES
from tests.waiting import allowed

MIB, GIB, TIB = 1 << 20, 1 << 30, 1 << 40
QEMU = "http://libvirt.org/schemas/domain/qemu/1.0"
EFI = "    firmware: {bootloader: {efi: {secureBoot: false}}}\n"
#: A card with all its memory in one BAR, and the 32 MiB of its doorbells beside.
A100 = (64 * GIB, 32 * MIB)
H100 = (16 * MIB, 128 * GIB, 32 * MIB)
B200 = (64 * MIB, 256 * GIB, 32 * MIB)


def large(*sizes: int) -> tuple[BAR, ...]:
    return tuple(
        BAR(number=2 * number, size=size, prefetchable=True, memory_64=True, assigned=True)
        for number, size in enumerate(sizes)
    )


def seats(count: int) -> Layout:
    environ = {RTX_3090_VARIABLE: ",".join(f"0000:{bus:02x}:00.0" for bus in range(1, count + 1))}
    return laid_out(entries(gpus=[(f"gpu{number}", RTX_3090) for number in range(count)]), environ)


BIOS, OVMF = a_guest(), a_guest(is_efi=True)


def hole(guest: Guest, layout: Layout, facts: Facts) -> Hole | None:
    return hole_of(guest, layout, facts)[0]


def warnings(guest: Guest, layout: Layout, facts: Facts) -> tuple[Problem, ...]:
    return hole_of(guest, layout, facts)[1]


def facts(*cards: tuple[int, ...], kvm: bool = True, bits: int | None = None) -> Facts:
    bars = {PCIAddress(0, bus, 0, 0): large(*sizes) for bus, sizes in enumerate(cards, start=1)}
    return Facts(kvm=kvm, bars=bars, address_bits=bits)


@pytest.mark.parametrize(
    ("cards", "window"),
    [
        ((A100,), 129),
        ((A100,) * 8, 1025),
        ((H100,) * 8, 2049),
        ((B200,) * 8, 4097),
        (((64 * GIB,),) * 8, 513),
        ((A100, (256 * MIB, 32 * MIB)), 130),
        ((A100, ()), 129),
    ],
)
def test_each_card_takes_a_multiple_of_its_largest_bar(cards: tuple[tuple[int, ...], ...], window: int) -> None:
    found = needed(BIOS, seats(len(cards)), facts(*cards))
    assert found is not None
    assert found.window == window * GIB


@pytest.mark.parametrize("cards", [(), ((256 * MIB, 32 * MIB),) * 32, ((16 * GIB,),), ((8 * GIB, 32 * MIB),)])
def test_nothing_is_asked_for_where_the_default_is_enough(cards: tuple[tuple[int, ...], ...]) -> None:
    assert needed(OVMF, seats(len(cards)), facts(*cards)) is None
    assert warnings(OVMF, seats(len(cards)), facts(*cards, bits=36)) == ()


def test_bars_that_cannot_be_above_4_gib_are_not_counted() -> None:
    low = BAR(number=0, size=64 * GIB, prefetchable=False, memory_64=True, assigned=True)
    short = BAR(number=0, size=2 * GIB, prefetchable=True, memory_64=False, assigned=True)
    bars = {PCIAddress(0, bus, 0, 0): (low, short) for bus in range(1, 33)}
    assert needed(BIOS, seats(32), Facts(bars=bars)) is None


def test_the_hole_ends_where_firmware_would_end() -> None:
    """1 GiB of memory, so QEMU's hole begins at 4 GiB; SeaBIOS goes on at 64 GiB, OVMF at 128."""
    assert hole(BIOS, seats(1), facts(A100)) == Hole(window=129 * GIB, size=(64 + 129 - 4) * GIB, end=193 * GIB)
    assert hole(OVMF, seats(1), facts(A100)) == Hole(window=129 * GIB, size=(128 + 129 - 4) * GIB, end=257 * GIB)


@pytest.mark.parametrize(("cards", "bits"), [(1, 41), (2, 42), (4, 43), (8, 44), (16, 45)])
def test_address_bits_grow_with_the_cards(cards: int, bits: int) -> None:
    found = needed(OVMF, seats(cards), facts(*(B200,) * cards))
    assert found is not None
    assert found.address_bits == bits


def test_a_hole_that_comes_near_1_tib_is_reckoned_from_there() -> None:
    """An AMD guest's memory moves there, and its hole with it."""
    found = needed(BIOS, seats(8), facts(*(A100,) * 8))
    assert found is not None
    assert found.end > 2 * TIB
    assert found.address_bits == 42


def test_more_cards_with_io_ports_than_firmware_has_room_for_are_a_warning() -> None:
    ports = (BAR(number=5, size=128, prefetchable=False, memory_64=False, assigned=True, is_io=True),)
    cards = Facts(bars={PCIAddress(0, bus, 0, 0): ports for bus in range(1, 33)})
    for machine, firmware, most in ((OVMF, "OVMF", 9), (BIOS, "SeaBIOS", 14)):
        assert warnings(machine, seats(most), cards) == ()
        (problem,) = warnings(machine, seats(most + 1), cards)
        assert problem.wrong.startswith(f"{most + 1} cards have I/O ports, and {firmware} has room for those of {most}")


@pytest.mark.parametrize(
    ("model", "cards", "found"),
    [
        ("host-model", 1, []),
        ("host-model", 8, ["passthrough"]),
        ("EPYC", 8, ["passthrough"]),
        ("host-passthrough", 8, []),
    ],
)
def test_the_hosts_address_bits_are_asked_for_where_40_are_too_few(
    tmp_path: Path, model: str, cards: int, found: list[str]
) -> None:
    """QEMU's host-passthrough has them in any case."""
    gpus = [(f"gpu{number}", RTX_3090) for number in range(cards)]
    path = write_vmi(tmp_path / "vm.yaml", gpus=gpus, domain=f"{EFI}    cpu: {{model: {model}}}\n")
    domain = etree.fromstring(domain_of(read_manifest(path), seats(cards), facts(*(A100,) * cards)))
    assert domain.find("devices/controller/pcihole64") is not None
    assert [element.get("mode") for element in domain.iterfind("cpu/maxphysaddr")] == found


def test_under_emulation_a_hole_that_does_not_fit_is_left_out_and_said() -> None:
    """QEMU would not start with it: phys-bits too low."""
    world = facts(*(A100,) * 8, kvm=False)
    assert hole(OVMF, seats(8), world) is None
    (problem,) = warnings(OVMF, seats(8), world)
    assert str(problem) == (
        "the cards' BARs: need 1025 GiB of the guest's addresses, more than QEMU's own CPU can have with its 40 "
        "address bits; expected KVM"
    )


def test_a_host_with_too_few_address_bits_is_named_with_both_figures() -> None:
    (problem,) = warnings(OVMF, seats(8), facts(*(H100,) * 8, bits=39))
    assert str(problem) == (
        "the cards' BARs: need 2049 GiB of the guest's addresses, which takes 43 address bits, and this node's CPUs "
        "have 39; expected fewer such cards, or a node whose `address sizes` in /proc/cpuinfo are larger"
    )
    assert warnings(OVMF, seats(8), facts(*(H100,) * 8, bits=46)) == ()
    assert warnings(OVMF, seats(8), facts(*(H100,) * 8)) == ()


def test_bios_and_memory_above_4_gib_are_warned_of() -> None:
    assert warnings(BIOS, seats(1), facts(A100)) == ()
    (problem,) = warnings(a_guest(memory=8 * GIB), seats(1), facts(A100))
    assert str(problem) == (
        "the cards' BARs: need 129 GiB of the guest's addresses, and SeaBIOS 1.16.3 (Debian 13) puts such BARs on top "
        "of each other; expected EFI"
    )


def test_an_arm64_guest_gets_no_hole_and_a_warning_beyond_its_window() -> None:
    arm = a_guest(architecture="arm64", machine="virt", is_efi=True)
    assert hole(arm, seats(8), facts(*(A100,) * 8)) is None
    assert warnings(arm, seats(1), facts(A100)) == ()
    (problem,) = warnings(arm, seats(8), facts(*(A100,) * 8))
    assert str(problem) == (
        "the cards' BARs: need 1025 GiB of the guest's addresses, and an arm64 machine has 512; "
        "expected fewer such cards"
    )


def cards_of(*addresses: str) -> tuple[GuestCard, ...]:
    (first, *_) = seats(1).seats
    return (GuestCard(claim=first.claim, functions=tuple(map(PCIAddress.parse, addresses)), missing=None),)


def entry(sys: Path, content: str) -> Path:
    place = sys / "bus/pci/devices/0000:01:00.0"
    place.mkdir(parents=True)
    (place / "resource").write_text(content)
    return sys


def test_only_the_six_bars_of_resource_count(tmp_path: Path) -> None:
    """The ROM comes after them, then the BARs of virtual functions, which may be as large as the card's own."""
    own = (None, (0x4000000000, 64 * GIB), None, (0x5000000000, 32 * MIB), None, None)
    sys = entry(tmp_path, resource(*own, None, None, (0x8000000000, 64 * GIB)) + "\n")
    found = read_bars(sys, cards_of("0000:01:00.0"))
    assert [bar.size for bar in found[PCIAddress(0, 1, 0, 0)]] == [64 * GIB, 32 * MIB]


def test_a_card_that_was_recorded_without_its_bars_changes_nothing() -> None:
    assert read_bars(FIXTURES / "sysfs" / "rtx-2060", cards_of("0000:01:00.0", "0000:01:00.1")) == {}
    assert read_bars(None, cards_of("0000:01:00.0")) == {}


def test_a_resource_that_makes_no_sense_is_refused_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=r"0000:01:00\.0/resource: holds 'nonsense'; expected three hexadecimal numbers"):
        read_bars(entry(tmp_path, "nonsense\n"), cards_of("0000:01:00.0"))


@pytest.mark.parametrize(
    ("said", "bits"),
    [
        ("processor\t: 0\naddress sizes\t: 46 bits physical, 57 bits virtual\n\nprocessor\t: 1\n", 46),
        ("processor\t: 0\nBogoMIPS\t: 243.75\n", None),
    ],
)
def test_address_bits_are_what_cpuinfo_says(tmp_path: Path, said: str, bits: int | None) -> None:
    (tmp_path / "cpuinfo").write_text(said)
    assert address_bits(tmp_path / "cpuinfo") == bits
    assert address_bits(tmp_path / "none") is None


_sizes = st.lists(st.sampled_from([MIB, 32 * MIB, 256 * MIB, 8 * GIB, 64 * GIB, 256 * GIB]), max_size=3)


@st.composite
def _trees(draw: st.DrawFn) -> tuple[Layout, Mapping[PCIAddress, tuple[BAR, ...]]]:
    """Cards behind root ports of bus 0, behind those of expanders, and behind switches there."""
    claim = seats(1).seats[0].claim
    bridges: list[PCIBridge] = []
    seated: list[Seat] = []
    bars: dict[PCIAddress, tuple[BAR, ...]] = {}

    def bridge(model: str, bus: int, number: int, bus_number: int | None = None) -> int:
        index = len(bridges) + 1
        place = PCIAddress(0, bus, number, 0)
        bridges.append(PCIBridge(model=model, index=index, address=place, bus_number=bus_number))  # type: ignore[arg-type]
        return index

    def seat(bus: int, sizes: list[int]) -> None:
        source = PCIAddress(0, bus, 0, 0)
        bars[source] = large(*sizes)
        seated.append(Seat(claim=claim, bus=bus, hostdevs=(_hostdev(source, bus, claim),)))

    for expander in range(draw(st.integers(0, 3))):
        root = bridge("pcie-expander-bus", 0, 16 + expander, bus_number=64 * (expander + 1))
        for number in range(draw(st.integers(0, 2))):
            port = bridge("pcie-root-port", root, number)
            if draw(st.booleans()):
                upstream = bridge("pcie-switch-upstream-port", port, 0)
                for downstream in range(draw(st.integers(1, 3))):
                    seat(bridge("pcie-switch-downstream-port", upstream, downstream), draw(_sizes))
            else:
                seat(port, draw(_sizes))
    for number in range(draw(st.integers(0, 4))):
        seat(bridge("pcie-root-port", 0, number), draw(_sizes))
    return Layout(bridges=tuple(bridges), seats=tuple(seated)), bars


def _hostdev(source: PCIAddress, bus: int, claim: Claim) -> HostDev:
    return HostDev(source=source, address=PCIAddress(0, bus, 0, 0), claim=claim, multifunction=False)


@given(tree=_trees(), order=st.randoms(use_true_random=False), is_efi=st.booleans())
def test_firmware_finds_room_for_every_bar_in_the_hole(tree: Any, order: Any, is_efi: bool) -> None:
    """As firmware does it: in each bus the largest first; bus 0 with its other devices, and the expanders in any
    order, each at the next multiple of what is largest on it."""
    layout, bars = tree
    found = needed(OVMF if is_efi else BIOS, layout, Facts(bars=bars))
    size = found.window if found is not None else 32 * GIB
    roots = [(0, 1 * GIB), *((bridge.index, 0) for bridge in layout.bridges if bridge.bus_number is not None)]
    order.shuffle(roots)
    largest = max((bar.size for each in bars.values() for bar in each), default=1)
    start = 1 << (size.bit_length() - 1) if is_efi else largest
    at = start
    for bus, others in roots:
        length, align = _placed(bus, layout, bars)
        at = -(-at // align) * align + length + others
    assert at <= start + size
    if found is not None:
        assert start + size <= found.end


def _placed(bus: int, layout: Layout, bars: Mapping[PCIAddress, tuple[BAR, ...]]) -> tuple[int, int]:
    """Length and alignment of a bus' window."""
    inside = [
        (bar.size, bar.size) for seat in layout.seats if seat.bus == bus for bar in bars[PCIAddress(0, bus, 0, 0)]
    ]
    for bridge in layout.bridges:
        if bridge.address.bus == bus and bridge.bus_number is None:
            length, align = _placed(bridge.index, layout, bars)
            if length:
                inside.append((-(-length // align) * align, align))
    at = 0
    for length, align in sorted(inside, key=lambda window: window[1], reverse=True):
        at = -(-at // align) * align + length
    return at, max((align for _, align in inside), default=1)


@pytest.mark.parametrize("firmware", ["bios", "efi"])
def test_real_firmware_gives_every_bar_an_address(
    qemu_driver: Any, firmware: str, tmp_path: Path, short_dir: Path
) -> None:
    gpus = [("gpu0", RTX_3090), ("gpu1", RTX_3090)]
    path = write_vmi(tmp_path / "vm.yaml", gpus=gpus, domain=EFI if firmware == "efi" else "")
    vmi = read_manifest(path)
    started_with(qemu_driver, short_dir, vmi, domain_of(vmi, seats(2), facts(A100, A100, kvm=False)), A100)


def test_without_a_hole_seabios_gives_every_bar_an_address_below_4_gib(qemu_driver: Any, short_dir: Path) -> None:
    """Of a card as large as such guests know them."""
    asked = case("without-hole")
    card = (256 * MIB, 32 * MIB)
    started_with(qemu_driver, short_dir, read_manifest(asked.vm), asked.xml("--emulation"), card, end=4 * GIB)


@pytest.mark.parametrize("name", ["large-bar-numa", "large-bar-efi-numa"])
def test_real_firmware_gives_every_bar_behind_an_expander_an_address(
    qemu_driver: Any, name: str, short_dir: Path
) -> None:
    asked = case(name)
    started_with(qemu_driver, short_dir, read_manifest(asked.vm), asked.xml("--emulation"), H100)


def started_with(
    connection: Any, sockets: Path, vmi: VirtualMachineInstance, xml: str, card: tuple[int, ...], end: int = TIB
) -> None:
    """Start the domain with test devices for cards, and see where firmware puts their BARs: below `end`, which is what
    QEMU's own CPU can reach at most. Its sockets are in a directory of the test's own: two tests at a time may start a
    VM of that name."""
    tree = etree.fromstring(xml.replace(str(socket_directory(vmi, Facts())), str(sockets)))
    assert tree.find("devices/controller/pcihole64") is not None
    wanted = _with_test_devices(tree, card)
    made = a_vm()
    with (
        guest.defined(connection, etree.tostring(tree, encoding="unicode"), made) as domain,
        started(domain, made),
    ):
        deadline = time.monotonic() + allowed(120)
        while True:
            found = _test_devices(domain)
            if found.keys() == wanted and all(at > 0 for at, _ in found.values()):
                break
            assert time.monotonic() < deadline, found
            time.sleep(0.5)
    places = sorted((at, at + size) for at, size in found.values())
    assert {until - at for at, until in places} == set(card)
    assert all(before[1] <= after[0] for before, after in pairwise(places)), "one on another"
    assert all(at % (until - at) == 0 for at, until in places)
    assert places[-1][1] <= end


def _with_test_devices(tree: Any, card: tuple[int, ...]) -> set[str]:
    """Put pci-testdevs where the hostdevs are, one for each BAR of the card; the names that QEMU has for them."""
    command = tree.find(f"{{{QEMU}}}commandline")
    if command is None:
        command = etree.SubElement(tree, f"{{{QEMU}}}commandline")
    names = set()
    for hostdev in tree.findall("devices/hostdev"):
        bus = int(hostdev.find("address").get("bus"), 16)
        for function, size in enumerate(card, start=1):
            names.add(f"card{bus}-{function}")
            device = {
                "driver": "pci-testdev",
                "id": f"card{bus}-{function}",
                "bus": f"pci.{bus}",
                "addr": f"0.{function}",
                "membar": size,
            }
            for argument in ("-device", json.dumps(device)):
                etree.SubElement(command, f"{{{QEMU}}}arg", value=argument)
        # Function 0 is libvirt's, or it takes the port for empty and puts a device of its own there.
        address = guest_address(PCIAddress(0, bus, 0, 0), multifunction=True)
        hostdev.getparent().replace(hostdev, E.rng(E.backend("/dev/urandom", model="random"), address, model="virtio"))
    for binding in tree.xpath("numatune"):
        tree.remove(binding)  # to nodes that this machine has not
    return names


def _test_devices(domain: Any) -> dict[str, tuple[int, int]]:
    """Address and size of the prefetchable BAR of each, as QEMU sees it at this moment."""
    answer = json.loads(libvirt_qemu.qemuMonitorCommand(domain, '{"execute": "query-pci"}', 0))
    found = {}
    buses = [bus["devices"] for bus in answer["return"]]
    while buses:
        for device in buses.pop():
            buses.append(device.get("pci_bridge", {}).get("devices", []))
            for region in device["regions"]:
                if device["qdev_id"].startswith("card") and region.get("prefetch"):
                    found[device["qdev_id"]] = (region["address"], region["size"])
    return found


@pytest.mark.parametrize("command", ["render", "explain"])
def test_what_speaks_against_the_bars_is_a_warning_beside_the_answer(gpu_launcher: Command, command: str) -> None:
    emulated = case("large-bars-efi-emulated")
    result = gpu_launcher(command, *emulated.arguments())
    assert result.returncode == 0
    (line,) = result.stderr.splitlines()
    assert line.startswith(
        "gpu-launcher: warning: the cards' BARs: need 513 GiB of the guest's addresses, more than QEMU"
    )
