from pathlib import Path

import pytest

from launcher.manifest.reading import read_manifest
from launcher.network.attachments import Forwards, attached
from tests.launcher.cases import case
from tests.launcher.network.vms import vmi_of
from tests.launcher.vms import vmi_text


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
    ((_, to),) = attached(vmi_of(tmp_path, "masquerade: {}", pod).spec)
    assert [(str(address.guest), str(address.gateway)) for address in to.addresses] == addresses


@pytest.mark.parametrize("binding", ["bridge: {}", "passt: {}", "passtBinding: {}", "binding: {name: passt}"])
def test_any_other_guest_has_the_pods_own_addresses(tmp_path: Path, binding: str) -> None:
    ((_, to),) = attached(vmi_of(tmp_path, binding).spec)
    assert to.addresses == ()


@pytest.mark.parametrize("binding", ["masquerade: {}", "passt: {}"])
def test_the_ports_that_are_listed_reach_the_guest_and_without_a_list_all(tmp_path: Path, binding: str) -> None:
    ((_, every),) = attached(vmi_of(tmp_path, binding).spec)
    assert every.forwards.are_all
    listed = "ports: [{port: 22}, {protocol: UDP, port: 53}], portRanges: [{start: 80, end: 89}]"
    ((_, some),) = attached(vmi_of(tmp_path, f"{binding}, {listed}").spec)
    assert some.forwards == Forwards(listed={"TCP": ((22, 22), (80, 89)), "UDP": ((53, 53),)})


def test_a_guest_on_a_bridge_has_all_ports_whatever_is_listed(tmp_path: Path) -> None:
    ((_, to),) = attached(vmi_of(tmp_path, "bridge: {}, ports: [{port: 22}]").spec)
    assert to.forwards.are_all


def test_a_vm_that_wants_no_network_has_none(tmp_path: Path) -> None:
    path = tmp_path / "vm.yaml"
    path.write_text(vmi_text())
    assert attached(read_manifest(path).spec) == ()
