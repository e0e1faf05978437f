import json
from pathlib import Path

import pytest

from launcher.pod import metadata as of_the_pod
from launcher.pod.security import Level
from launcher.vm.facts import PodInterface
from launcher.vm.network.multus import NETWORKS, annotations, attached_to_the_pod, read_status, says_the_same
from launcher.vm.spec import VirtualMachineInstance
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


def asked_for_twice(tmp_path: Path, text: str) -> VirtualMachineInstance:
    said = case("networks").vm.read_text()
    path = tmp_path / "vm.yaml"
    path.write_text(
        said.replace("  name: networks\n", f"  name: networks\n  annotations: {json.dumps({NETWORKS: text})}\n")
    )
    return read_manifest(path)


_ELEMENTS = (
    {"name": "vlan-7", "namespace": "lab"},
    {"name": "trunk", "namespace": "lab", "mac": "02:00:00:00:00:07"},
    {"name": "sriov-25g", "namespace": "lab", "interface": "net3"},
)


@pytest.mark.parametrize(
    "text",
    [
        "lab/vlan-7,lab/trunk,lab/sriov-25g",
        " lab/sriov-25g , lab/trunk@net2,lab/vlan-7 ",
        json.dumps(_ELEMENTS),
    ],
)
def test_multus_own_annotation_may_name_the_same_networks(tmp_path: Path, text: str) -> None:
    vmi = asked_for_twice(tmp_path, text)
    assert of_the_pod.annotations(vmi.metadata, vmi.spec, Level.PRIVILEGED, []) == annotations(SPEC)


@pytest.mark.parametrize(
    ("namespace", "text", "is_same"),
    [
        ("lab", "vlan-7,trunk,sriov-25g", True),
        ("other", "vlan-7,trunk,sriov-25g", False),
        ("lab", "vlan-7,trunk", False),
        ("lab", "vlan-7,trunk,sriov-25g,vlan-7", False),
        ("lab", "vlan-7@eth1,trunk,sriov-25g", False),
        ("lab", '[{"name": "vlan-7", "ips": ["192.0.2.7"]}, {"name": "trunk"}, {"name": "sriov-25g"}]', False),
        ("lab", "[1]", False),
        ("lab", "[" * 100_000, False),
        ("lab", "a/b/c", False),
        ("lab", "", False),
    ],
)
def test_nothing_that_it_says_beside_is_lost(namespace: str, text: str, is_same: bool) -> None:
    assert says_the_same(text, SPEC, namespace) is is_same


def test_other_networks_in_both_places_are_refused(tmp_path: Path) -> None:
    vmi = asked_for_twice(tmp_path, "lab/other")
    with pytest.raises(UserError) as refused:
        of_the_pod.annotations(vmi.metadata, vmi.spec, Level.PRIVILEGED, [])
    assert str(refused.value) == (
        f"metadata.annotations: {NETWORKS} is made of spec.networks, which has multus, and says something else; leave "
        "it out, or have it name the same networks and nothing more"
    )


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
