"""Whatever has become of partitions.json, the GPUs of the board wait, and the node's other cards are served."""

from dataclasses import replace
from pathlib import Path

import pytest

from plugin.cards.config import Config, Rule
from plugin.cards.names import PCIIDs
from plugin.fabric.activations import Owners, owners_file
from program.errors import Refusal
from tests.conftest import Machine
from tests.fabric.standin import Manager
from tests.kernel import bind
from tests.plugin.broken_files import BREAKS, assert_all_else_is_healthy, break_file
from tests.plugin.fabric.boards import NODE
from tests.plugin.fabric.node import INVENTORY, Node, run
from tests.plugin.test_state_files import OWNERS
from tests.snapshots import snapshot_of


def test_whatever_has_become_of_the_book_only_the_boards_gpus_wait(
    manager: Manager, copied_machine: Machine, tmp_path: Path, pci_ids: PCIIDs, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(manager, tmp_path)
    bind(sys := copied_machine(NODE.name), "0000:0c:00.0", "vfio-pci")
    settings = node.settings
    assert settings is not None
    file = tmp_path / "partitions.json"
    config = Config(fabric=node.settings, offer=(Rule(pci_class="0207", resource="example.com/nic"),))
    gpus = {device.id for device in INVENTORY.devices}

    async def life() -> None:
        for kind in BREAKS:
            owners_file(tmp_path).write(OWNERS)
            break_file(kind, file, file.read_text())
            caplog.clear()
            partitions = node.partitions()
            await partitions.reconcile()
            assert f"{file}: is not what gpu-plugin wrote, and nobody knows who has which partition (" in caplog.text
            seen = snapshot_of(sys, pci_ids, config, partitions=node.told[-1])
            board = {device.id for device in seen.inventory.offered if device.id in gpus}
            assert_all_else_is_healthy(seen, *board)
            reason = str(seen.reason(seen.inventory.by_id[min(board)]))
            assert reason.startswith(f"may be in the partition of a guest: {file}: is not what gpu-plugin wrote"), kind
            assert "end the guests of the node, deactivate all partitions (fmpm), then remove the file" in reason
            with pytest.raises(Refusal, match="nobody knows who has which partition"):
                await node.allocate(partitions, "default/vm", 1, 3)
            node.inventory = seen.inventory
            await partitions.release("claim", ["0000:0c:00.0"])  # its pod can end
            for its in (None, [min(board)], ["0000:0c:00.0", "gone"]):
                with pytest.raises(Refusal, match="nobody knows who has which partition"):
                    await partitions.release("claim", its)
            assert (manager.log, partitions.claims()) == ([], frozenset())
            break_file("empty", file, "")
            owners_file(tmp_path).write(Owners())
            node.settings = replace(settings, library="/nowhere")
            await partitions.reconcile()
            waits = snapshot_of(sys, pci_ids, config, partitions=node.told[-1])
            assert "partitions" in seen.unknown
            assert "partitions" in waits.unknown
            assert not node.told[-1].lacks_owners, "now it is the manager that it waits for"
            node.settings = settings
            file.unlink()
            await partitions.reconcile()
            assert_all_else_is_healthy(snapshot_of(sys, pci_ids, config, partitions=node.told[-1]))

    run(life())
