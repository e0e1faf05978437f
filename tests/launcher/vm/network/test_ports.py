from pathlib import Path

from launcher.vm.network.checks import ports
from launcher.vm.network.guest import attached
from tests.launcher.vm.trees import vmi

RANGE = "32768\t60999\n"
ENOUGH = 72_560  # two for each of the 64512 - 28232 ports that are left


def test_a_socket_for_each_port_needs_as_many_open_files(tmp_path: Path) -> None:
    vm = vmi(tmp_path, devices="      rng: {}\n")
    assert ports(attached(vm.spec), RANGE, ENOUGH) is ports(attached(vm.spec), RANGE, None) is None
    found = ports(attached(vm.spec), RANGE, ENOUGH - 1)
    assert found is not None
    assert str(found).startswith(
        "interface 'default': gets all ports of the pod, and passt listens on each: that takes 72560"
    )
    assert "list the ports that are to reach the guest" in found.problem.fix
    assert ports(attached(vm.spec), "", ENOUGH) is None, "Linux's own range, where it is not known"


def test_listed_ports_and_no_network_need_none(tmp_path: Path) -> None:
    listed = "      interfaces: [{name: default, passt: {}, ports: [{port: 22}]}]\n"
    vm = vmi(tmp_path, devices=listed, below="  networks: [{name: default, pod: {}}]\n")
    assert ports(attached(vm.spec), RANGE, 1024) is None
    assert ports(attached(vmi(tmp_path).spec), RANGE, 1024) is None
