"""The port of a VM's metrics in its pod."""

from pathlib import Path

import pytest
import yaml

from program.errors import UserError
from tests.conftest import Command
from tests.launcher.pod.made import metered_pod

_VM = """\
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: vm%s}
spec:
  domain:
    memory: {guest: 1Gi}
    devices: {interfaces: [{name: default, masquerade: {}%s}]}
  networks: [{name: default, pod: {}}]
"""


def machine(path: Path, ports: str = "", annotations: str = "") -> Path:
    path.write_text(_VM % (annotations, ports))
    return path


def test_the_launcher_serves_them_and_prometheus_finds_them(tmp_path: Path) -> None:
    pod = metered_pod(machine(tmp_path / "vm.yaml"), 9177)
    (container,) = pod["spec"]["containers"]
    assert "--metrics=9177" in container["command"]
    assert container["ports"] == [{"name": "metrics", "containerPort": 9177}]
    found = pod["metadata"]["annotations"]
    assert (found["prometheus.io/scrape"], found["prometheus.io/port"]) == ("true", "9177")


def test_a_guest_that_serves_metrics_itself_keeps_its_annotations(tmp_path: Path) -> None:
    path = machine(tmp_path / "vm.yaml", annotations=", annotations: {prometheus.io/port: '9100'}")
    assert metered_pod(path, 9177)["metadata"]["annotations"]["prometheus.io/port"] == "9100"


def test_the_launcher_is_told_the_names_by_which_they_are_reached(gpu_launcher: Command, tmp_path: Path) -> None:
    vm = machine(tmp_path / "vm.yaml")
    printed = gpu_launcher("pod", vm, "--metrics=9177", "--allow-host=vm.vms.svc", "--allow-host=vm.example").stdout
    (pod,) = (each for each in yaml.safe_load_all(printed) if each["kind"] == "Pod")
    (container,) = pod["spec"]["containers"]
    assert {"--allow-host=vm.vms.svc", "--allow-host=vm.example"} <= {*container["command"]}
    assert gpu_launcher("pod", vm, "--allow-host=vm.vms.svc").stderr == (
        "gpu-launcher: --allow-host: is for --metrics; add --metrics, or leave it out\n"
    )


@pytest.mark.parametrize("ports", [", ports: [{port: 9177}]", ", portRanges: [{start: 9000, end: 9200}]"])
def test_a_port_that_the_manifest_forwards_is_the_guests(tmp_path: Path, ports: str) -> None:
    with pytest.raises(UserError) as error:
        metered_pod(machine(tmp_path / "vm.yaml", ports), 9177)
    assert str(error.value) == (
        "--metrics 9177: the pod's port is forwarded to the guest's, of interface 'default'; name another port"
    )
    assert metered_pod(machine(tmp_path / "vm.yaml", ports), 9300)
