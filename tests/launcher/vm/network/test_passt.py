"""passt as libvirt calls it, by what a guest's DHCP client is told: a real passt, without libvirt, QEMU and guest."""

from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from uuid import UUID

from launcher.vm.facts import PodInterface
from launcher.vm.from_spec import guest_of
from launcher.vm.network.guest import attached, script
from launcher.vm.network.xml import interface
from tests.launcher.cases import case
from tests.launcher.vm.network.passt import ADDRESS, GATEWAY, called
from tests.launcher.vm.network.vms import vmi_of
from tests.launcher.vms import read_manifest

ONE = UUID("3d32482b-b9d1-57d4-9236-16f33103e002")


def test_a_masqueraded_guest_is_told_kubevirts_address_and_a_gateway_in_its_subnet(
    short_dir: Path, tmp_path: Path
) -> None:
    vmi = vmi_of(tmp_path, "masquerade: {}, ports: [{port: 8080}, {port: 53, protocol: UDP}]")
    cards = attached(vmi.spec)
    text = script(cards)
    assert text is not None
    (element,) = (interface(card, guest_of(vmi), ONE) for card in cards)
    with called(short_dir, text, element) as passt:
        assert (passt.listening("tcp"), passt.listening("udp")) == ({8080}, {53})
        lease = passt.lease()
    assert (str(lease.address), str(lease.mask), str(lease.router)) == ("10.0.2.2", "255.255.255.0", "10.0.2.1")
    assert lease.routes == b"", "no route to a gateway elsewhere, which some clients pass over"


def test_with_a_subnet_of_its_own_it_is_told_that_ones(short_dir: Path, tmp_path: Path) -> None:
    listed = "masquerade: {}, portRanges: [{start: 8000, end: 8003}]"
    vmi = vmi_of(tmp_path, listed, "vmNetworkCIDR: 172.16.9.64/27")
    cards = attached(vmi.spec)
    text = script(cards)
    assert text is not None
    (element,) = (interface(card, guest_of(vmi), ONE) for card in cards)
    with called(short_dir, text, element) as passt:
        assert passt.listening("tcp") == {8000, 8001, 8002, 8003}
        lease = passt.lease()
    assert (str(lease.address), str(lease.mask), str(lease.router)) == (
        "172.16.9.66",
        "255.255.255.224",
        "172.16.9.65",
    )


def test_a_guest_on_a_bridge_is_told_the_pods_address_and_gateway(short_dir: Path, tmp_path: Path) -> None:
    vmi = vmi_of(tmp_path, "passt: {}, ports: [{port: 8080}]")
    cards = attached(vmi.spec)
    text = script(cards)
    assert text is not None
    (element,) = (interface(card, guest_of(vmi), ONE) for card in cards)
    with called(short_dir, text, element) as passt:
        lease = passt.lease()
    assert (lease.address, lease.mask, lease.router) == (ADDRESS, IPv4Address("255.255.255.0"), GATEWAY)


def test_on_a_second_network_without_a_gateway_there_is_dhcp_all_the_same(short_dir: Path) -> None:
    """passt has none for an interface without a gateway (conf.c); any address of the subnet will do, since passt
    answers for all."""
    vmi = read_manifest(case("networks-untold").vm)
    there = {
        "seven": PodInterface(device="net1", has_address=True, subnet=IPv4Network("192.0.2.0/24")),
        "nine": PodInterface(device="net2", has_address=True),
    }
    cards = attached(vmi.spec, there)
    text = script(cards)
    assert text is not None
    element = interface(cards[1], guest_of(vmi), ONE)
    with called(short_dir, text, element) as passt:
        lease = passt.lease()
    assert (str(lease.address), str(lease.router)) == ("192.0.2.17", "192.0.2.1")


def test_a_vm_without_a_network_has_nothing_called_for_it(tmp_path: Path) -> None:
    assert script(attached(vmi_of(tmp_path, None).spec)) is None
