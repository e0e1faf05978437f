import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from plugin.commands.node import NodeFlags, in_pod
from tests.compose import SYSFS
from tests.conftest import Command, Machine
from tests.kernel import bind, load
from tests.processes import FIXTURES

PCI_IDS = ("--pci-ids", FIXTURES / "pci.ids")


def test_inventory_is_a_table_that_people_can_read(gpu_plugin: Command, machine: Machine) -> None:
    sys = machine("rtx-2060-audio-on-snd-hda-intel")
    result = gpu_plugin("inventory", "--sysfs", sys, *PCI_IDS, env={"COLUMNS": "250"})
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


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize("name", sorted(path.name for path in SYSFS.iterdir()))
def test_inventory_fits_the_terminal_or_100_columns(
    gpu_plugin: Command, machine: Machine, name: str, columns: int
) -> None:
    env = {"COLUMNS": str(columns)} if columns != 100 else {}
    page = gpu_plugin("inventory", "--sysfs", machine(name), *PCI_IDS, env=env).stdout
    assert max(map(len, page.splitlines()[:-1])) <= columns  # the last names a file
    wide = gpu_plugin("inventory", "--sysfs", machine(name), *PCI_IDS, env={"COLUMNS": "1000"}).stdout
    assert page.split() == wide.split()


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


def test_a_directory_with_something_in_it_is_left_alone(gpu_plugin: Command, machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("keep")
    result = gpu_plugin("record", tmp_path, "--sysfs", machine("rtx-2060"))
    assert "expected a new or empty directory to record into" in result.stderr
    assert result.returncode == 2
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("arguments", "problem", "exit_code"),
    [
        (["inventory", "--sysfs", "/nowhere"], "/nowhere: expected a sysfs tree", 1),
        (["inventory", "--config", "/nowhere.yaml"], "/nowhere.yaml: cannot be read", 2),
        (["inventory", "--config", "/dev/zero"], "/dev/zero: has more than 1048576 bytes", 2),
        (["inventory", "--pci-ids", "/nowhere"], "/nowhere: cannot be read", 2),
        (["inventory", "--pci-ids", "/dev/zero"], "/dev/zero: has more than 16777216 bytes", 2),
        (
            ["serve", "--kubelet-dir", "/nowhere"],
            "/nowhere: no such directory; expected the kubelet's device plugin directory, name it with --kubelet-dir",
            1,
        ),
        (["--", "serve", "--kubelet-dir", "/nowhere"], "/nowhere: no such directory; expected the kubelet's device", 1),
        (
            ["serve", "--kubelet-dir", "/tmp", "--plugins-registry", "/nowhere"],
            "/nowhere: no such directory; expected the kubelet's plugins_registry, name it with --plugins-registry",
            1,
        ),
        *(
            (
                ["serve", "--kubelet-dir", "/tmp", "--rescan", seconds],
                f"Invalid value for '--rescan': {seconds}; expected seconds, 0.1 to 86400 (a day).",
                2,
            )
            for seconds in ("nan", "inf", "-inf", "-1", "0", "86401")
        ),
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
    begins = "ERROR" if "serve" in arguments else "gpu-plugin:"
    assert result.stderr.startswith(f"{begins} {problem}")
    assert (result.stderr.count("\n"), result.stdout, result.returncode) == (1, "", exit_code)


AS_EVER = "by model or type, as nvidia.com/..., amd.com/..., intel.com/..."


def test_config_check_says_all_that_a_config_means(gpu_plugin: Command, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        """
offer:
- {device: "10DE:1f08", driver: vfio-pci, resource: nvidia.com/pgpu}
- {vendor: "15b3", pci_class: "0200", prefix: example.com}
- {address: ["0000:41:00.0", "0000:61:00.0"], withhold: true}
groups: together
prefer: {nvidia.com/pgpu: spread}
node_devices: {tun: 110}
"""
    )
    result = gpu_plugin("config", "check", path)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        f"{path}: fine",
        "1. device 10de:1f08, driver vfio-pci: as nvidia.com/pgpu",
        "2. vendor 15b3, pci_class 0200: by model or type, as example.com/...",
        "3. address 0000:41:00.0 or 0000:61:00.0: withheld",
        f"other GPUs of NVIDIA, AMD and Intel, and their mediated devices: {AS_EVER}",
        "anything else: not offered",
        "an IOMMU group of several of these: one unit (groups: together)",
        "models that do not survive a reset: offered, and the doctor warns (deadly_resets: offer)",
        "of the free nvidia.com/pgpu: spread",
        "of all others: those nearest to each other",
        "/dev/net/tun: as devices.gpu-launcher.dev/tun, for 110 containers at once",
    ]


def test_config_check_has_a_form_for_programs_which_is_a_config_itself(gpu_plugin: Command, tmp_path: Path) -> None:
    path, again = tmp_path / "config.yaml", tmp_path / "again.yaml"
    rules = "- {device: '10DE:1f08', resource: nvidia.com/pgpu}\n- {device: '10DE:1f08', withhold: true}\n"
    path.write_text(f"offer:\n{rules}node_devices: {{tun: 110}}\n")
    result = gpu_plugin("config", "check", path, "--json")
    assert result.returncode == 0
    assert result.stderr == (
        f"gpu-plugin: warning: {path}:3: offer.1: never counts, as offer.0 fits each device that it fits, and comes "
        "first; write it before offer.0, or leave it out\n"
    )
    written = json.loads(result.stdout)
    assert (written["groups"], written["node_devices"]) == ("withhold", {"tun": 110})
    assert written["offer"][0]["device"] == ["10de:1f08"]
    again.write_text(result.stdout)
    assert (
        gpu_plugin("config", "check", again).stdout.splitlines()[1:]
        == (gpu_plugin("config", "check", path).stdout.splitlines()[1:])
    )


def test_config_check_says_what_a_config_leaves_out(gpu_plugin: Command, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("{}\n")
    assert gpu_plugin("config", "check", path).stdout.splitlines() == [
        f"{path}: fine",
        f"GPUs of NVIDIA, AMD and Intel, and their mediated devices: {AS_EVER}",
        "anything else: not offered",
        "an IOMMU group of several of these: withheld (groups: withhold)",
        "models that do not survive a reset: offered, and the doctor warns (deadly_resets: offer)",
        "of the free devices: those nearest to each other",
        "node devices, like /dev/kvm: none",
    ]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("serve: dra", "by DRA, a card that is not on vfio: withheld (bind: beforehand)"),
        (
            "{serve: dra, bind: when-claimed}",
            "by DRA, a card that is not on vfio: bound for the claim that gets it (bind: when-claimed)",
        ),
    ],
)
def test_config_check_says_what_is_bound_when(gpu_plugin: Command, tmp_path: Path, words: str, line: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"{words}\n")
    assert line in gpu_plugin("config", "check", path).stdout.splitlines()


def test_the_inventory_says_of_a_card_that_is_bound_when_claimed_whether_it_could_be(
    gpu_plugin: Command, copied_machine: Machine, tmp_path: Path
) -> None:
    sys, config = copied_machine("two-rtx-3090"), tmp_path / "config.yaml"
    config.write_text("{serve: dra, bind: when-claimed}\n")
    load(sys, "vfio-pci")
    bind(sys, "0000:01:00.0", "nouveau")
    arguments = ("inventory", "--sysfs", sys, "--config", config, *PCI_IDS, "--json")
    first, _ = json.loads(gpu_plugin(*arguments).stdout)["devices"]
    assert (first["listed"], first["healthy"]) == (True, False)
    assert first["reason"]["wrong"].startswith("cannot be bound to vfio: who uses it cannot be seen: ")
    (sys.parent / "proc").mkdir()
    first, _ = json.loads(gpu_plugin(*arguments).stdout)["devices"]
    assert (first["listed"], first["healthy"]) == (True, True)


def test_in_the_plugins_pod_every_look_is_by_the_plugins_config_and_the_nodes_trees(tmp_path: Path) -> None:
    assert in_pod(NodeFlags(), tmp_path) == NodeFlags()
    config, host = tmp_path / "etc" / "gpu-plugin" / "config.yaml", tmp_path / "host"
    config.parent.mkdir(parents=True)
    config.touch()
    (host / "dev").mkdir(parents=True)
    assert in_pod(NodeFlags(), tmp_path) == NodeFlags(config=config, dev=host / "dev")
    (host / "sys").mkdir()
    (host / "proc").mkdir()
    every = NodeFlags(config=config, sysfs=host / "sys", proc=host / "proc", dev=host / "dev")
    assert in_pod(NodeFlags(), tmp_path) == every
    named = NodeFlags(config=Path("other.yaml"), proc=Path("/proc"), dev=Path("/dev"))
    assert in_pod(named, tmp_path) == replace(named, sysfs=host / "sys")
    recorded = NodeFlags(sysfs=Path("recorded"))
    assert in_pod(recorded, tmp_path) == recorded


def test_a_path_too_long_for_sockets_is_refused(gpu_plugin: Command, machine: Machine, tmp_path: Path) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    result = gpu_plugin("serve", "--kubelet-dir", long, "--sysfs", machine("rtx-2060"), *PCI_IDS)
    assert "107 is the most Linux takes" in result.stderr.splitlines()[-1]
    assert result.returncode == 1
    assert list(long.iterdir()) == []
