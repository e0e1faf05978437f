import json
import re
from pathlib import Path

import pytest

from tests.conftest import Command, Machine
from tests.processes import FIXTURES

PCI_IDS = ("--pci-ids", FIXTURES / "pci.ids")


def test_inventory_is_a_table_that_people_can_read(gpu_plugin: Command, machine: Machine) -> None:
    result = gpu_plugin("inventory", "--sysfs", machine("rtx-2060-audio-on-snd-hda-intel"), *PCI_IDS)
    header, _, card, names = result.stdout.splitlines()
    assert header.split(maxsplit=5) == ["ADDRESS", "MODEL", "DRIVER", "GROUP", "NUMA", "OFFERED AS"]
    address, model, driver, group, node, reason = re.split("  +", card)
    assert (address, model) == ("0000:01:00.0", "TU106 [GeForce RTX 2060 Rev. A]")
    assert (driver, group, node) == ("vfio-pci", "1", "-")
    assert reason.startswith(
        "nvidia.com/TU106_GEFORCE_RTX_2060_REV__A, unhealthy: "
        "is in group 1, which is not viable: 0000:01:00.1 (audio) is bound to snd_hda_intel"
    )
    assert names.endswith("pci.ids of 2023-04-10.")
    assert (result.returncode, result.stderr) == (0, "")


def test_inventory_has_a_form_for_programs(gpu_plugin: Command, machine: Machine) -> None:
    result = gpu_plugin("inventory", "--json", "--sysfs", machine("two-rtx-3090"), *PCI_IDS)
    found = json.loads(result.stdout)
    assert found["pciIDs"]["date"] == "2023-04-10"
    assert [(device["id"], device["healthy"], device["iommuGroup"]) for device in found["devices"]] == [
        ("0000:01:00.0", True, 11),
        ("0000:e1:00.0", True, 71),
    ]


def test_inventory_reports_what_it_could_not_read(gpu_plugin: Command, copied_machine: Machine) -> None:
    sys = copied_machine("rtx-2060")
    (sys / "bus/pci/devices/0000:00:14.0/uevent").write_text("?\n")
    result = gpu_plugin("inventory", "--sysfs", sys, *PCI_IDS)
    assert "not read: bus/pci/devices/0000:00:14.0/uevent: holds '?'" in result.stdout
    assert result.returncode == 0


def test_a_machine_without_gpus_says_so(gpu_plugin: Command, machine: Machine) -> None:
    result = gpu_plugin("inventory", "--sysfs", machine("virtual-machine-without-iommu"), *PCI_IDS)
    assert result.stdout.startswith("This node has no GPU, and no device that the config offers.\n")


def test_what_was_recorded_can_be_read_back(gpu_plugin: Command, machine: Machine, tmp_path: Path) -> None:
    result = gpu_plugin("record", tmp_path / "node", "--sysfs", machine("rtx-2060"))
    assert result.stdout.startswith("recorded 10 PCI functions")
    again = gpu_plugin("inventory", "--sysfs", tmp_path / "node", *PCI_IDS)
    assert again.stdout == gpu_plugin("inventory", "--sysfs", machine("rtx-2060"), *PCI_IDS).stdout


@pytest.mark.parametrize(
    ("arguments", "problem", "exit_code"),
    [
        (["inventory", "--sysfs", "/nowhere"], "/nowhere: expected a sysfs tree", 1),
        (["inventory", "--config", "/nowhere.yaml"], "/nowhere.yaml: cannot read the config", 2),
        (["inventory", "--pci-ids", "/nowhere"], "/nowhere: cannot read the names of PCI devices", 2),
        (["serve", "--kubelet-dir", "/nowhere"], "/nowhere: no such directory", 1),
        (["inventry"], "No such command 'inventry'. Did you mean 'inventory'?", 2),
        (["record"], "Missing argument 'DIR'.", 2),
        ([], "Missing command.", 2),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    gpu_plugin: Command, arguments: list[str], problem: str, exit_code: int
) -> None:
    if arguments and arguments[0] in ("inventory", "serve"):
        sysfs = [] if "--sysfs" in arguments else ["--sysfs", FIXTURES / "sysfs" / "rtx-2060"]
        pci_ids = [] if "--pci-ids" in arguments else PCI_IDS
        result = gpu_plugin(*arguments, *sysfs, *pci_ids)
    else:
        result = gpu_plugin(*arguments)
    assert result.stderr.startswith(f"gpu-plugin: {problem}")
    assert (result.stderr.count("\n"), result.stdout, result.returncode) == (1, "", exit_code)


def test_a_path_too_long_for_sockets_is_refused(gpu_plugin: Command, machine: Machine, tmp_path: Path) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    result = gpu_plugin("serve", "--kubelet-dir", long, "--sysfs", machine("rtx-2060"), *PCI_IDS)
    assert "107 is the most Linux takes" in result.stderr.splitlines()[-1]
    assert result.returncode == 1
    assert list(long.iterdir()) == []
