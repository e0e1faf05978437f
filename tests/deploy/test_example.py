"""deploy/example as it stands: its VM asks for what the shipped config offers, gets it over the kubelet's protocol, and
has what a first VM needs. That it boots is the lab's to show."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from lxml import etree

from pci.sysfs.functions import read_host
from plugin.config_file import read_config
from plugin.kinds.card import offered_cards
from tests.conftest import Command, Machine
from tests.kernel import make_nodes
from tests.kubelet import Kubelet
from tests.plugin.daemon import serve
from tests.processes import FIXTURES, ROOT

CONFIG = ROOT / "deploy" / "plugin" / "config.yaml"
VM = ROOT / "deploy" / "example" / "vm.yaml"
POOL, KVM = "nvidia.com/pgpu", "devices.gpu-launcher.dev/kvm"


def _pod(gpu_launcher: Command) -> dict[str, Any]:
    printed = gpu_launcher("pod", VM)
    assert printed.returncode == 0, printed.stderr
    (pod,) = (one for one in yaml.safe_load_all(printed.stdout) if one["kind"] == "Pod")
    return dict(pod["spec"])


def _devices(pod: dict[str, Any]) -> dict[str, str]:
    """What it asks for that a device plugin has to offer, all of which the cluster has to know of."""
    (container,) = pod["containers"]
    return {name: number for name, number in container["resources"]["limits"].items() if "/" in name}


@pytest.mark.parametrize("name", ["two-rtx-3090", "two-h100", "rtx-2060"])
def test_the_vm_gets_all_that_it_asks_for_from_the_plugin_with_the_shipped_config(
    name: str, machine: Machine, kubelet: Kubelet, gpu_launcher: Command
) -> None:
    """On machines with different models: one name is enough for all."""
    dev = make_nodes(machine(name), kubelet.directory / "dev")
    (dev / "kvm").touch()
    asked = _devices(_pod(gpu_launcher))
    assert asked == {POOL: "1", KVM: "1"}
    with serve(machine(name), kubelet.directory, "--config", CONFIG):
        kubelet.wait_until(lambda: all(kubelet.healthy(resource) for resource in asked))
        assert len(kubelet.healthy(KVM)) == 110
        answers = [kubelet.allocate(resource, int(number)) for resource, number in asked.items()]
    nodes = [node.host_path for answer in answers for node in answer.devices]
    assert {"/dev/vfio/vfio", "/dev/kvm"} <= {*nodes}
    env = {key: value for answer in answers for key, value in answer.envs.items()}
    result = gpu_launcher("render", VM, "--sysfs", machine(name), env=env)
    assert result.returncode == 0, result.stderr
    assert etree.fromstring(result.stdout).findall("devices/hostdev")


def test_where_there_is_no_kvm_none_is_on_offer(machine: Machine, kubelet: Kubelet) -> None:
    with serve(machine("two-rtx-3090"), kubelet.directory, "--config", CONFIG):
        kubelet.wait_until(lambda: len(kubelet.healthy(POOL)) == 2)
        kubelet.wait_until(lambda: KVM in kubelet.endpoints and len(kubelet.endpoints[KVM].devices) == 110)
        assert kubelet.healthy(KVM) == ()


def test_the_shipped_configs_one_name_is_for_whole_gpus_and_no_vgpu(gpu_plugin: Command, machine: Machine) -> None:
    (rule,) = read_config(CONFIG).offer
    assert rule.resource == POOL
    assert "nvidia" not in rule.driver  # what has a vGPU; it has its type's name
    arguments = ("--sysfs", machine("rtx-2060"), "--pci-ids", FIXTURES / "pci.ids", "--config", CONFIG)
    listed = Counter(line.split()[-1] for line in gpu_plugin("inventory", *arguments).stdout.splitlines())
    assert listed[POOL] == 1


def test_a_gpu_on_its_host_driver_is_one_that_the_init_container_binds(machine: Machine) -> None:
    """Though the rule is for those that are on vfio."""
    cards = offered_cards(read_host(machine("rtx-2060-without-iommu")), read_config(CONFIG))
    leads = {str(card[0].address): card[0].driver for card in cards}
    assert leads["0000:01:00.0"] == "nouveau"


def test_without_the_rule_each_gpu_has_its_models_name(gpu_plugin: Command, machine: Machine, tmp_path: Path) -> None:
    """As the file's comment says to who asks for models."""
    config = yaml.safe_load(CONFIG.read_text())
    del config["offer"]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    arguments = ("--sysfs", machine("two-rtx-3090"), "--pci-ids", FIXTURES / "pci.ids")
    result = gpu_plugin("inventory", *arguments, "--config", tmp_path / "config.yaml")
    assert result.stdout.count("nvidia.com/GA102_GEFORCE_RTX_3090") == 2


def test_the_vm_has_a_disk_a_network_and_a_console_to_log_in_at(gpu_launcher: Command) -> None:
    spec = yaml.safe_load(VM.read_text())["spec"]["template"]["spec"]
    kinds = {next(iter(set(volume) - {"name"})) for volume in spec["volumes"]}
    assert kinds == {"containerDisk", "cloudInitNoCloud"}
    assert {volume["name"] for volume in spec["volumes"]} == {
        disk["name"] for disk in spec["domain"]["devices"]["disks"]
    }
    (seed,) = (volume["cloudInitNoCloud"]["userData"] for volume in spec["volumes"] if "cloudInitNoCloud" in volume)
    assert seed.startswith("#cloud-config\n")
    data = yaml.safe_load(seed)
    assert data["password"]
    assert data["chpasswd"] == {"expire": False}
    assert "ssh_pwauth" not in data  # the password is no secret: it must not be one for the network
    domain = etree.fromstring(gpu_launcher("render", VM, "--env", "PCI_RESOURCE_NVIDIA_COM_PGPU=0000:01:00.0").stdout)
    assert domain.find("devices/interface") is not None
    assert domain.find("devices/serial") is not None
