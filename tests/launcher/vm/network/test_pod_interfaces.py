"""What is read in a pod: a tree that stands for its /sys, /proc and the file of the downward API."""

import shutil
from ipaddress import IPv4Network
from pathlib import Path
from threading import Timer

import pytest

from launcher.vm import paths
from launcher.vm.facts import PodInterface
from launcher.vm.network.facts import read_pod_interfaces
from pci.address import PCIAddress
from program.errors import UserError
from tests.launcher import cases
from tests.launcher.cases import case
from tests.launcher.vms import read_manifest

SPEC = read_manifest(case("networks").vm).spec
ROUTES = """\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t0101F40A\t0003\t0\t0\t0\t00000000\t0\t0\t0
net1\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
"""
LINK_LOCAL = "fe8000000000000000000000000000ff 05 40 20 80     net2\n"
GLOBAL = "fd0000000000000000000000000000ff 05 40 00 80     net2\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for device in ("eth0", "net1", "net2"):
        (tmp_path / "sys/class/net" / device).mkdir(parents=True)
    (tmp_path / "sys/class/net/net2/tun_flags").write_text("0x5002\n")
    (tmp_path / "proc/net").mkdir(parents=True)
    (tmp_path / "proc/net/route").write_text(ROUTES)
    (tmp_path / "proc/net/if_inet6").write_text(LINK_LOCAL)
    return tmp_path


def write_status(root: Path) -> None:
    status = paths.below(root, paths.NETWORK_STATUS)
    status.parent.mkdir(parents=True, exist_ok=True)
    half = status.with_name("half")
    shutil.copy(cases.NETWORKS / "pod.json", half)
    half.rename(status)


def test_an_interface_with_an_address_and_a_tap_are_told_by_the_kernel(root: Path) -> None:
    assert read_pod_interfaces(SPEC, root) == {
        "vlan": PodInterface(device="net1", has_address=True, subnet=IPv4Network("192.0.2.0/24")),
        "trunk": PodInterface(device="net2", is_tap=True),
    }


def test_where_the_network_has_a_gateway_the_guest_is_told_that_one(root: Path) -> None:
    behind = "net1\t00C633C0\t010200C0\t0003\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
    (root / "proc/net/route").write_text(ROUTES + behind)
    assert read_pod_interfaces(SPEC, root)["vlan"] == PodInterface(device="net1", has_address=True)


def test_an_address_of_ipv6_is_one_too_and_a_link_local_one_is_none(root: Path) -> None:
    (root / "sys/class/net/net2/tun_flags").unlink()
    assert read_pod_interfaces(SPEC, root)["trunk"] == PodInterface(device="net2")
    (root / "proc/net/if_inet6").write_text(LINK_LOCAL + GLOBAL)
    assert read_pod_interfaces(SPEC, root)["trunk"] == PodInterface(device="net2", has_address=True)


def test_what_multus_has_not_made_is_not_there(root: Path) -> None:
    (root / "sys/class/net/net1").rmdir()
    assert set(read_pod_interfaces(SPEC, root)) == {"trunk"}


def test_the_address_of_a_virtual_function_is_waited_for(root: Path) -> None:
    Timer(0.3, write_status, [root]).start()
    known = read_pod_interfaces(SPEC, root, seconds=30)
    assert known["fast"].function == PCIAddress.parse("0000:41:02.3")
    assert known["vlan"].has_address, "told by the kernel, and not by the status"


def test_a_status_that_is_not_multuss_is_refused(root: Path) -> None:
    write_status(root)
    paths.below(root, paths.NETWORK_STATUS).write_text("{}")
    with pytest.raises(UserError, match="is no list of networks"):
        read_pod_interfaces(SPEC, root)


def test_a_vm_without_second_networks_has_nothing_read(tmp_path: Path) -> None:
    assert read_pod_interfaces(read_manifest(case("no-devices").vm).spec, tmp_path) == {}
