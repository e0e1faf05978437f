from pathlib import Path

import pytest

from launcher.vm.network.guest import GATEWAY, GUEST, PROTOCOLS, Forwards, PasstAttachment, Range, attached
from launcher.vm.spec import Spec
from tests.launcher.cases import case
from tests.launcher.vm.network.vms import vmi_of
from tests.launcher.vms import read_manifest, vmi_text


def by_passt(spec: Spec) -> list[PasstAttachment]:
    cards = [card.to for card in attached(spec)]
    return [to for to in cards if isinstance(to, PasstAttachment)]


def test_a_vm_that_says_nothing_of_networks_and_its_dump_give_the_same_domain(tmp_path: Path) -> None:
    """What KubeVirt's webhook writes into it (SetDefaultNetworkInterface)."""
    silent = case("kubevirt-nocloud")
    text = silent.vm.read_text()
    assert "interfaces" not in text
    dumped = tmp_path / "dumped.yaml"
    dumped.write_text(
        text.replace("    devices:\n", "    devices:\n      interfaces: [{masquerade: {}, name: default}]\n")
        + "  networks: [{name: default, pod: {}}]\n"
    )
    assert read_manifest(dumped).spec.domain.devices.interfaces
    assert silent.world().xml(dumped) == silent.xml()


@pytest.mark.parametrize(
    ("pod", "addresses"),
    [
        ("", [("10.0.2.2", "10.0.2.1"), ("fd10:0:2::2", "fd10:0:2::1")]),
        (
            "vmNetworkCIDR: 10.1.2.77/24, vmIPv6NetworkCIDR: 'fd00::/64'",
            [("10.1.2.2", "10.1.2.1"), ("fd00::2", "fd00::1")],
        ),
        ("vmNetworkCIDR: 192.0.2.252/30", [("192.0.2.254", "192.0.2.253"), ("fd10:0:2::2", "fd10:0:2::1")]),
    ],
)
def test_a_masqueraded_guest_has_the_second_address_and_its_gateway_the_first(
    tmp_path: Path, pod: str, addresses: list[tuple[str, str]]
) -> None:
    (to,) = by_passt(vmi_of(tmp_path, "masquerade: {}", pod).spec)
    assert [(str(subnet[GUEST]), str(subnet[GATEWAY])) for subnet in to.subnets] == addresses


@pytest.mark.parametrize("binding", ["bridge: {}", "passt: {}", "passtBinding: {}", "binding: {name: passt}"])
def test_any_other_guest_has_the_pods_own_addresses(tmp_path: Path, binding: str) -> None:
    (to,) = by_passt(vmi_of(tmp_path, binding).spec)
    assert to.subnets == ()


@pytest.mark.parametrize("binding", ["masquerade: {}", "passt: {}"])
def test_the_ports_that_are_listed_reach_the_guest_and_without_a_list_all(tmp_path: Path, binding: str) -> None:
    (every,) = by_passt(vmi_of(tmp_path, binding).spec)
    assert every.forwards.are_all
    listed = "ports: [{port: 22}, {protocol: UDP, port: 53}], portRanges: [{start: 80, end: 89}]"
    (some,) = by_passt(vmi_of(tmp_path, f"{binding}, {listed}").spec)
    assert some.forwards == Forwards(ports={"TCP": ((22, 22), (80, 89)), "UDP": ((53, 53),)})


def test_a_guest_on_a_bridge_has_all_ports_whatever_is_listed(tmp_path: Path) -> None:
    (to,) = by_passt(vmi_of(tmp_path, "bridge: {}, ports: [{port: 22}]").spec)
    assert to.forwards.are_all


def test_a_vm_that_wants_no_network_has_none(tmp_path: Path) -> None:
    path = tmp_path / "vm.yaml"
    path.write_text(vmi_text())
    assert attached(read_manifest(path).spec) == ()


def test_a_port_reaches_the_guest_at_the_first_card_that_has_it() -> None:
    first, second = by_passt(read_manifest(case("networks").vm).spec)[:2]
    assert [first.forwards.ranges(protocol) for protocol in PROTOCOLS] == [((22, 22),), ()]
    assert [second.forwards.ranges(protocol) for protocol in PROTOCOLS] == [((0, 21), (23, 65535)), ((0, 65535),)]


@pytest.mark.parametrize(
    ("taken", "left"),
    [
        ((0, 65535), ()),
        ((80, 89), ()),
        ((80, 80), ((81, 89),)),
        ((70, 84), ((85, 89),)),
        ((85, 99), ((80, 84),)),
        ((84, 85), ((80, 83), (86, 89))),
        ((22, 22), ((80, 89),)),
        ((90, 99), ((80, 89),)),
    ],
)
def test_of_a_range_what_is_elsewhere_is_left_out(taken: Range, left: tuple[Range, ...]) -> None:
    forwards = Forwards(ports={"TCP": ((80, 89),)}, elsewhere={"TCP": (taken,)})
    assert forwards.ranges("TCP") == left
    assert forwards.ranges("UDP") == ()


def test_a_virtual_function_is_no_card_that_qemu_emulates() -> None:
    cards = attached(read_manifest(case("networks").vm).spec)
    assert [card.interface.name for card in cards] == ["default", "vlan", "trunk"]
