"""`inventory --device-classes`: what a cluster applies so that DRA serves a resource by its name. The API server and
scheduler take it in tests/lab/test_device_names.py."""

from pathlib import Path

import yaml

from pci.slices import DRIVER
from pci.sysfs.functions import read_host
from plugin.cards.config import Config, Rule, Serve
from plugin.cards.inventory import take_inventory
from plugin.cards.names import PCIIDs
from plugin.device_classes import device_classes
from tests.compose import RTX_2060, RTX_3090, card, compose
from tests.conftest import Command, Machine
from tests.processes import FIXTURES

PCI_IDS = ("--pci-ids", FIXTURES / "pci.ids")


def test_the_command_prints_a_class_for_each_resource_that_dra_serves(
    gpu_plugin: Command, machine: Machine, tmp_path: Path
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("serve: dra\n")
    flags = ("--sysfs", machine("hgx-a100-8-gpu"), *PCI_IDS, "--config", config)
    result = gpu_plugin("inventory", "--device-classes", *flags)
    resource = "nvidia.com/GA100_A100_SXM4_40GB"
    selects = f'device.attributes["{DRIVER}"].?resource.orValue("") == "{resource}"'
    assert (result.returncode, result.stderr) == (0, "")
    assert yaml.safe_load(result.stdout) == {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "ga100-a100-sxm4-40gb.nvidia.com.gpu-launcher.dev"},
        "spec": {
            "extendedResourceName": resource,
            "selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}" && {selects}'}}],
        },
    }


def test_what_the_device_plugin_serves_is_left_out_and_named(gpu_plugin: Command, machine: Machine) -> None:
    result = gpu_plugin("inventory", "--device-classes", "--sysfs", machine("rtx-2060"), *PCI_IDS)
    resource = "nvidia.com/TU106_GEFORCE_RTX_2060_REV__A"
    assert result.stdout.splitlines() == [
        f"# {resource}: left out, because the device plugin serves it on this node",
        "# DRA serves no device of this node; gpu-plugin inventory and the config's `serve` say why.",
    ]


def test_the_resources_are_those_of_the_config(tmp_path: Path, pci_ids: PCIIDs) -> None:
    cards = [
        *card("0000:01:00", RTX_3090, path="pci0000:00/0000:00:01.0", group=1),
        *card("0000:02:00", RTX_2060, path="pci0000:00/0000:00:02.0", group=2),
    ]
    compose(tmp_path, cards)
    rules = Rule(device="10de:2204", resource="example.com/a_Pool"), Rule(device="10de:1f08", withhold=True)
    config = Config(offer=rules, serve=Serve.DRA)
    (made,) = device_classes(take_inventory(read_host(tmp_path), config, pci_ids))
    assert made["metadata"]["name"] == "a-pool.example.com.gpu-launcher.dev"
    assert made["spec"]["extendedResourceName"] == "example.com/a_Pool"
