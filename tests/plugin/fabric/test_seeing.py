"""What inventory and the doctor say of the partitions."""

import json
from pathlib import Path

import pytest

from plugin.cards.config import Config, Fabric
from plugin.cards.names import PCIIDs
from plugin.doctor import examine
from plugin.fabric.activations import Activation, Owners, owners_file
from plugin.fabric.board import Board
from plugin.fabric.modules import ModuleIDs
from plugin.fabric.partitions import Table
from plugin.fabric.status import FabricStatus
from tests.conftest import Command
from tests.fabric.standin import SOCKET, Manager
from tests.pictures import assert_nothing_overlaps, read_back, squeezed
from tests.plugin.fabric.boards import ADDRESSES, NODE
from tests.snapshots import snapshot_of

PAIR = tuple(sorted((ADDRESSES[1], ADDRESSES[3])))


@pytest.fixture
def flags(manager: Manager, tmp_path: Path) -> tuple[str | Path, ...]:
    """A node with eight GPUs, of which one's module is not known; a pod has a pair, and another program a card."""
    config, state = tmp_path / "config.yaml", tmp_path / "state"
    modules = {address: module for module, address in ADDRESSES.items() if module != 8}
    config.write_text(json.dumps({"fabric": {"library": str(manager.library), "manager": SOCKET, "modules": modules}}))
    owners_file(state).write(Owners((Activation(3, (1, 3), PAIR, "default/vm", None, True),)))
    manager.activated_by_another(1, 3)
    manager.activated_by_another(5)
    return ("--sysfs", NODE, "--config", config, "--state", state)


def test_inventory_shows_who_has_which_partition(gpu_plugin: Command, flags: tuple[str | Path, ...]) -> None:
    lines = gpu_plugin("inventory", *flags).stdout.splitlines()
    table = [line.split(maxsplit=2) for line in lines if line.split() and line.split()[0].isdecimal()]
    shown = {number: " ".join(words.split()) for number, _, words in table}
    assert shown["3"] == f"active for pod default/vm {ADDRESSES[1]} {ADDRESSES[3]}"
    assert shown["11"] == f"active, and nobody knows for whom {ADDRESSES[5]}"
    assert shown["4"] == f"free {ADDRESSES[2]} {ADDRESSES[4]}"
    assert shown["0"].startswith("overlaps 3, 11 0000:")
    assert shown["0"].endswith(" ?")
    fix = "let gpu-plugin bind read it, or write it to fabric.modules of the config"
    assert f"{ADDRESSES[8]}: its module ID is not known, so it is for guests of one GPU only; {fix}" in lines


def test_inventory_as_json(gpu_plugin: Command, flags: tuple[str | Path, ...]) -> None:
    found = json.loads(gpu_plugin("inventory", "--json", *flags).stdout)["fabric"]
    assert found["trouble"] is None
    assert found["unknownModules"] == [ADDRESSES[8]]
    assert found["partitions"][3] == {
        "id": 3,
        "modules": [1, 3],
        "devices": [ADDRESSES[1], ADDRESSES[3]],
        "active": True,
        "state": "active for pod default/vm",
    }
    assert found["partitions"][6]["devices"] == [ADDRESSES[6], None]


def test_the_picture_says_of_each_card_which_module_it_is_and_who_has_its_partition(
    gpu_plugin: Command, flags: tuple[str | Path, ...]
) -> None:
    drawn = read_back(gpu_plugin("inventory", "--svg", "-", *flags).stdout)
    assert_nothing_overlaps(drawn)
    said = {card[0].split(": ")[0]: " ".join(card[1:]) for card in drawn.cards()}
    for module in (1, 3):
        assert f" module {module}; partition 3: active for pod default/vm on " in said[ADDRESSES[module]]
    assert " module 2 on " in said[ADDRESSES[2]]
    assert " module 5; partition 11: active, and nobody knows for whom on " in said[ADDRESSES[5]]
    assert " module ID not known on " in said[ADDRESSES[8]]
    assert squeezed(f"partitions {ADDRESSES[8]}: its module ID is not known, so it is for") in drawn.words


def test_the_picture_says_that_the_manager_is_away(
    gpu_plugin: Command, manager: Manager, flags: tuple[str | Path, ...]
) -> None:
    manager.stop()
    drawn = read_back(gpu_plugin("inventory", "--svg", "-", *flags).stdout)
    assert squeezed("partitions no partitions: the Fabric Manager: the Fabric Manager cannot list") in drawn.words


def test_inventory_without_a_manager_says_so(
    gpu_plugin: Command, manager: Manager, flags: tuple[str | Path, ...]
) -> None:
    manager.stop()
    shown = gpu_plugin("inventory", *flags)
    assert (
        "no partitions: the Fabric Manager: the Fabric Manager cannot list its partitions: CONNECTION" in shown.stdout
    )
    assert shown.returncode == 0
    assert json.loads(gpu_plugin("inventory", "--json", *flags).stdout)["fabric"]["partitions"] == []


def test_inventory_of_a_recorded_node_asks_nobody(gpu_plugin: Command, flags: tuple[str | Path, ...]) -> None:
    shown = gpu_plugin("inventory", "--json", *flags[:4])
    assert json.loads(shown.stdout)["fabric"] is None


def test_the_doctor_says_what_is_wrong_with_each_fix(gpu_plugin: Command, flags: tuple[str | Path, ...]) -> None:
    page = json.loads(gpu_plugin("doctor", "--json", *flags).stdout)
    found = {(each["severity"], each["device"]): each for each in page["findings"] if each["check"] == "fabric"}
    assert found["ok", None]["wrong"] == (
        "the Fabric Manager (of unknown version) lists 15 partitions of GPUs, 2 active; module IDs are known for 7 "
        "of 8 GPUs"
    )
    assert found["warning", ADDRESSES[8]]["wrong"] == "has no known module ID: it is for guests of one GPU only"
    stranger = found["warning", None]
    assert stranger["wrong"].startswith("partition 11 is active, and gpu-plugin does not know for whom")
    assert stranger["fix"].endswith("fmpm -d 11")


def test_the_doctor_misses_the_manager(gpu_plugin: Command, manager: Manager, flags: tuple[str | Path, ...]) -> None:
    manager.mode(0)
    result = gpu_plugin("doctor", "--json", *flags)
    (found,) = [each for each in json.loads(result.stdout)["findings"] if each["check"] == "fabric"]
    assert found["severity"] == "error"
    assert found["wrong"].startswith("has no partitions of GPUs, so that guests of several have no NVLink: ")
    assert "NOT_SUPPORTED (-3)" in found["wrong"]
    assert "FABRIC_MODE=1" in found["fix"]
    assert "what the config says" in found["steps"][0]
    assert result.returncode == 4


def test_the_doctor_says_which_partitions_the_manager_has_taken_off_its_table(pci_ids: PCIIDs) -> None:
    board = Board(Table((), failed=("GPU-3 at 00000000:03:00.0",), unsupported=(3, 7)), ModuleIDs({}))
    seen = snapshot_of(NODE, pci_ids, Config(fabric=Fabric()), partitions=FabricStatus(board))
    told = [finding.problem.wrong for finding in examine(seen) if finding.check == "fabric"]
    assert "GPU-3 at 00000000:03:00.0 has NVLinks that failed" in told
    assert "the Fabric Manager has taken these partitions off its table, for NVLinks that failed: 3, 7" in told
