import json
from pathlib import Path

import pytest

from launcher.facts import PodInterface
from launcher.network.multus import NETWORKS, annotations, attached_to_the_pod, read_status
from launcher.pod import scheduling
from pci.address import PCIAddress
from program.errors import UserError
from tests.launcher import cases
from tests.launcher.cases import case
from tests.launcher.vms import read_manifest

SPEC = read_manifest(case("networks").vm).spec
STATUS = (cases.NETWORKS / "pod.json").read_text()


def test_each_second_network_is_asked_for_by_name_with_an_interface_and_an_address_of_its_own() -> None:
    assert {name: json.loads(value) for name, value in annotations(SPEC).items()} == {
        NETWORKS: [
            {"name": "vlan-7", "namespace": "lab", "interface": "net1"},
            {"name": "trunk", "namespace": "lab", "interface": "net2", "mac": "02:00:00:00:00:07"},
            {"name": "sriov-25g", "namespace": "lab", "interface": "net3", "mac": "02:00:00:00:00:08"},
        ]
    }


def test_one_in_place_of_the_pods_is_asked_for_so_and_one_that_is_absent_is_not() -> None:
    spec = read_manifest(case("networks-untold").vm).spec
    assert annotations(spec) == {
        "v1.multus-cni.io/default-network": "lab/vlan-6",
        NETWORKS: '[{"name": "vlan-7", "interface": "net1"}, '
        '{"name": "vlan-9", "namespace": "lab", "interface": "net2"}]',
    }


def test_a_vm_without_second_networks_leaves_the_annotation_to_who_writes_it() -> None:
    assert annotations(read_manifest(case("no-devices").vm).spec) == {}


def test_networks_in_both_places_are_refused(tmp_path: Path) -> None:
    said = case("networks").vm.read_text()
    path = tmp_path / "vm.yaml"
    path.write_text(said.replace("  name: networks\n", f"  name: networks\n  annotations: {{{NETWORKS}: lab/other}}\n"))
    vmi = read_manifest(path)
    with pytest.raises(UserError, match=f"metadata.annotations: {NETWORKS} is made of spec.networks"):
        scheduling.annotations(vmi.metadata, vmi.spec)


def test_what_multus_says_is_found_by_the_interface_and_the_definition() -> None:
    assert attached_to_the_pod(SPEC, read_status(STATUS, "FILE")) == {
        "vlan": PodInterface(device="net1", has_address=True),
        "trunk": PodInterface(device="net2", is_tap=True),
        "fast": PodInterface(device="net3", function=PCIAddress.parse("0000:41:02.3")),
    }


def test_in_a_pod_of_kubevirts_whose_interfaces_have_other_names_it_is_found_by_the_definition() -> None:
    others = STATUS.replace('"net', '"pod16477688c0')
    known = attached_to_the_pod(SPEC, read_status(others, "FILE"))
    assert {name: interface.device[-1:] for name, interface in known.items()} == {
        "vlan": "1",
        "trunk": "2",
        "fast": "3",
    }


def test_two_interfaces_on_one_definition_have_one_each(tmp_path: Path) -> None:
    text = case("networks").vm.read_text().replace("lab/trunk", "lab/vlan-7")
    path = tmp_path / "vm.yaml"
    path.write_text(text)
    status = (
        '[{"name": "lab/vlan-7", "interface": "b"}, {"name": "lab/vlan-7", "interface": "a", "ips": ["192.0.2.1"]}]'
    )
    known = attached_to_the_pod(read_manifest(path).spec, read_status(status, "FILE"))
    assert [known[name].device for name in ("vlan", "trunk")] == ["b", "a"]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("[", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("{}", "is no list of networks"),
        ("[1]", "is no list of networks"),
        (" " * (1 << 21), "is no list of networks"),
        (
            '[{"device-info": {"pci": {"pci-address": "41:02.3"}}}]',
            "device-info.pci.pci-address: '41:02.3'",
        ),
    ],
)
def test_what_is_no_status_is_refused(text: str, wrong: str) -> None:
    with pytest.raises(UserError) as error:
        read_status(text, "--network-status FILE")
    assert str(error.value).startswith(f"--network-status FILE: {wrong}")


@pytest.mark.parametrize("odd", ['[{"name": 1, "interface": [], "device-info": 7}]', '[{"device-info": {"pci": []}}]'])
def test_what_is_odd_in_a_status_is_nobodys(odd: str) -> None:
    assert attached_to_the_pod(SPEC, read_status(odd, "FILE")) == {}
