"""One ResourceClaim for a whole VM: a card of ours, and four CPUs of its NUMA node of another driver, cpu_driver.py.

The kubelet pins nothing here: the guest's vCPUs are pinned to the claim's CPUs since its container has only these.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lxml import etree

from pci.slices import NUMA_NODE
from tests.clusters import card_and_cpus
from tests.lab import build, cpu_driver, pods
from tests.lab.lab import Lab
from tests.lab.machine import CARD, FAR, LEGACY

MACHINE = replace(LEGACY, isolates=True)

CLASS: dict[str, Any] = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": cpu_driver.DRIVER},
    "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{cpu_driver.DRIVER}"'}}]},
}
#: FAR's, and all of the CPUs' driver on its NUMA node.
CARD_NAME, CPUS = f"pci-{FAR.replace(':', '-')}-0", ("5", "6", "7", "8")
#: docs/choosing.md's claim of such a VM, and the VM's part.
TEMPLATE, VM = card_and_cpus()
#: The guest's Linux starts one of its vCPUs: a single thread emulates them all, and they would wait for each other.
_ONE = {"domain": {"firmware": {"kernelBoot": {"kernelArgs": f"{pods.KERNEL_ARGUMENTS} maxcpus=1"}}}}
WISH: dict[str, Any] = {
    "annotations": {"gpu-launcher.dev/topology": "numa", "gpu-launcher.dev/topology-policy": "strict"},
    "more": pods.merged(VM["spec"], _ONE),
}


@pytest.fixture(scope="module")
def drivers(lab: Lab) -> None:
    """Both drivers run, and the node's CPUs are published but the first one."""
    lab.start_plugin({**pods.CARDS, "serve": "dra"}, base="dra")
    lab.cluster.apply(CLASS, TEMPLATE, _slice(lab), *_driver())
    lab.until("the CPUs' driver serves", lambda: "True" in lab.cluster.kubectl("logs", "cpu-driver"), 150)
    lab.until("the card is published", lambda: CARD_NAME in lab.published(), 150)


@pytest.fixture(scope="module")
def vm(lab: Lab, drivers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A VM with the whole claim, as foretold: its log, once it runs."""
    foretold = _fit(lab, tmp_path_factory.mktemp("fit"))
    assert {entry["device"] for entry in foretold["nodes"][0]["takes"]} == _devices()
    with lab.vm("first", 1, **WISH) as log:
        yield log


@pytest.fixture(scope="module")
def domain(lab: Lab, vm: str) -> etree._Element:
    """The VM's, as libvirt has it."""
    return etree.fromstring(lab.cluster.kubectl("exec", "first", "--", "gpu-launcher", "ctl", "xml"))


def test_the_claim_has_four_cpus_of_the_cards_node(lab: Lab, vm: str) -> None:
    assert {*lab.allocated("first")} == _devices()
    assert len(lab.cluster.get("pod", "first")["status"]["resourceClaimStatuses"]) == 1


def test_the_vcpus_are_pinned_to_the_claims_cpus(lab: Lab, domain: etree._Element) -> None:
    pins = {pin.get("vcpu"): pin.get("cpuset") for pin in domain.iterfind("cputune/vcpupin")}
    assert pins == {str(number): cpu for number, cpu in enumerate(CPUS)}
    tasks = lab.node.sh(
        "for comm in $(grep -ls '^CPU ./KVM$' /proc/[0-9]*/task/*/comm); do"
        " echo $(cat $comm) $(grep Cpus_allowed_list ${comm%comm}status); done"
    )
    assert dict(re.findall(r"^CPU (\d+)/KVM Cpus_allowed_list: (\S+)$", tasks, re.MULTILINE)) == pins


def test_the_card_is_in_the_cell_of_those_cpus(lab: Lab, vm: str, domain: etree._Element) -> None:
    places = re.findall(rf"host {FAR}\.[01] -> guest (\S+)", vm)
    console = lab.console("first")
    functions, nodes = console.functions(), console.nodes()
    assert [(functions[place], nodes[place]) for place in places] == [(its, "0") for its in CARD]
    assert [cell.get("cpus") for cell in domain.iterfind("cpu/numa/cell")] == ["0-3"]
    assert [node.get("nodeset") for node in domain.iterfind("numatune/memnode")] == ["1"]


def test_another_vm_with_that_wish_waits_until_the_first_has_ended(lab: Lab, vm: str, tmp_path: Path) -> None:
    with lab.pod("second", 1, sleeps=True, **WISH):
        assert "cannot allocate all claims" in lab.unschedulable("second")
        foretold = _fit(lab, tmp_path)
        assert not foretold["fits"]
        assert "of pod first" in str(foretold["nodes"])
        assert not lab.allocated("second")
        lab.cluster.delete("pod", "first")
        lab.until("the second runs", lambda: lab.phase("second") == "Running", 150)
        assert {*lab.allocated("second")} == _devices()
        cpuset = lab.cluster.kubectl("exec", "second", "--", "cat", "/sys/fs/cgroup/cpuset.cpus.effective")
        assert cpuset.strip() == "5-8"


def _devices() -> set[str]:
    return {CARD_NAME, *(f"{cpu_driver.DEVICE}{cpu}" for cpu in CPUS)}


def _slice(lab: Lab) -> dict[str, Any]:
    """What the CPUs' driver would publish: each CPU but the first, with its numbers in the node's sysfs."""
    said = lab.node.sh(
        "cd /sys/devices/system/cpu; for cpu in cpu[1-9]*; do"
        " echo $cpu $(cat $cpu/topology/core_id $cpu/topology/physical_package_id) $(ls -d $cpu/node*); done"
    )
    devices = []
    for cpu, core, socket, node in re.findall(r"^cpu(\d+) (\d+) (\d+) \S+/node(\d+)$", said, re.MULTILINE):
        numbers = {"cpuID": cpu, "coreID": core, "socketID": socket, NUMA_NODE: node}
        attributes = {name: {"int": int(number)} for name, number in numbers.items()}
        devices.append({"name": f"{cpu_driver.DEVICE}{cpu}", "attributes": attributes})
    name = lab.node.name
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{name}-cpus"},
        "spec": {
            "driver": cpu_driver.DRIVER,
            "nodeName": name,
            "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
            "devices": devices,
        },
    }


def _driver() -> tuple[dict[str, Any], ...]:
    """The driver in a pod of the plugin's image, with the plugin's rights to read claims."""
    places = {"sockets": cpu_driver.SOCKETS, "cdi": cpu_driver.CDI}
    mounts = [{"name": name, "mountPath": str(path)} for name, path in places.items()]
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "cpu-driver"}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "cpu-driver"},
        "spec": {
            "serviceAccountName": "gpu-plugin",
            "containers": [
                {
                    "name": "cpu-driver",
                    "image": build.PLUGIN,
                    "command": ["python3", "-u", "/driver/cpu_driver.py"],
                    "env": pods.WAY_TO_SERVER,
                    "volumeMounts": [*mounts, {"name": "driver", "mountPath": "/driver"}],
                }
            ],
            "volumes": [
                *({"name": name, "hostPath": {"path": str(path)}} for name, path in places.items()),
                {"name": "driver", "configMap": {"name": "cpu-driver"}},
            ],
        },
    }
    return {**config, "data": {"cpu_driver.py": Path(cpu_driver.__file__).read_text()}}, pod


def _fit(lab: Lab, directory: Path) -> dict[str, Any]:
    """What `fit` says of that VM."""
    return lab.fit(directory, pods.manifest("vm", 1, **WISH), "nodes", "pods", "resourceclaimtemplates")
