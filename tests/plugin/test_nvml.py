"""What NVIDIA's driver says of its cards, and what is kept of it while vfio has them."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pci.address import PCIAddress
from pci.host import Function
from pci.sysfs.functions import read_host
from plugin.cards.config import Bind, Config, Serve
from plugin.cards.names import PCIIDs
from plugin.dra.slices import device_of
from plugin.nvml import Identities, Identity, keep, read_identities, read_information
from tests.conftest import Command
from tests.kernel import bind
from tests.plugin.kinds.bound import GPU, Node, rtx
from tests.snapshots import look_at

ADDRESS = PCIAddress.parse(GPU)
UUID, OTHER_UUID = (f"GPU-8dcd427f-b4c5-4b2a-9f10-00000000000{number}" for number in (1, 2))
NAME = "NVIDIA GeForce RTX 2060"
KNOWN = {ADDRESS: Identity(UUID, NAME)}


def tells(root: Path, uuid: str | None = UUID, address: str = GPU, name: str = NAME) -> None:
    """The driver's file of a card, as drivers 535 to 595 write it."""
    file = root / "proc/driver/nvidia/gpus" / address / "information"
    file.parent.mkdir(parents=True, exist_ok=True)
    line = "" if uuid is None else f"GPU UUID: \t {uuid}\n"
    file.write_text(
        f"Model: \t\t {name}\nIRQ:   \t\t 18\n{line}Video BIOS: \t 90.06.44.80.60\nBus Type: \t PCIe\n"
        f"Bus Location: \t {address}\nDevice Minor: \t 3\nGPU Firmware: \t 535.54\nGPU Excluded:\t No\n"
    )


def silent(root: Path) -> None:
    shutil.rmtree(root / "proc/driver")


def functions(sys: Path) -> tuple[Function, ...]:
    return (read_host(sys).functions[ADDRESS],)


def known(root: Path) -> Identities:
    return read_identities(root / "sys", functions(root / "sys"), proc=root / "proc", state=root / "state")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A card that the nvidia driver has, whose UUID and name it tells."""
    node = Node(tmp_path, rtx("nvidia", "snd_hda_intel", "xhci_hcd", "nvidia-gpu"))
    tells(tmp_path)
    return node


def kept_and_bound(node: Node, root: Path) -> None:
    keep(node.sys, functions(node.sys), proc=node.roots.proc, state=node.roots.state)
    bind(node.sys, GPU, "vfio-pci")
    silent(root)


def test_the_driver_tells_uuid_and_name_of_the_cards_that_it_has(node: Node, tmp_path: Path) -> None:
    assert known(tmp_path).by_address == KNOWN
    bind(node.sys, GPU, "vfio-pci")
    assert known(tmp_path) == Identities()


@pytest.mark.parametrize("uuid", [None, "GPU-????????-????-????-????-????????????", "GPU-1", f"{UUID}\x1b"])
def test_a_card_that_nobody_has_used_has_no_uuid_yet(node: Node, tmp_path: Path, uuid: str | None) -> None:
    tells(tmp_path, uuid)
    assert known(tmp_path).by_address == {ADDRESS: Identity(None, NAME)}
    assert read_information(node.proc)[GPU].minor == 3


def test_what_was_kept_is_the_cards_while_vfio_has_it(node: Node, tmp_path: Path) -> None:
    kept_and_bound(node, tmp_path)
    assert known(tmp_path).by_address == KNOWN
    bind(node.sys, GPU, "nvidia")
    tells(tmp_path, None)  # after a boot, before anybody has used it
    assert known(tmp_path).by_address == KNOWN
    keep(node.sys, functions(node.sys), proc=node.roots.proc, state=node.roots.state)
    assert known(tmp_path).by_address == KNOWN


@pytest.mark.parametrize(
    "change",
    [
        {"device_id": 0x1E04},
        {"subsystem_device_id": 0x3757},
        {"bridges": (PCIAddress.parse("0000:00:03.1"),)},  # a card came or went, and buses have other numbers
        {"root": "pci0000:40"},
        {"serial": "00-80-ee-00-00-00-00-02"},
    ],
    ids=str,
)
def test_another_card_at_that_address_has_not_its_uuid(node: Node, tmp_path: Path, change: dict[str, Any]) -> None:
    serial = node.sys / "bus/pci/devices" / GPU / "serial_number"
    serial.write_text("00-80-ee-00-00-00-00-01\n")
    kept_and_bound(node, tmp_path)
    assert known(tmp_path).by_address == KNOWN
    serial.write_text(f"{change.pop('serial', '00-80-ee-00-00-00-00-01')}\n")
    (other,) = (replace(each, **change) for each in functions(node.sys))
    assert read_identities(node.sys, [other], proc=node.roots.proc, state=node.roots.state) == Identities()


def test_a_card_that_the_driver_has_in_another_slot_is_not_in_the_first(node: Node, tmp_path: Path) -> None:
    kept_and_bound(node, tmp_path)
    tells(tmp_path, UUID, "0000:02:00.0")
    assert known(tmp_path).by_address == {}


def test_a_card_that_came_from_another_slot_is_kept_there_no_more(node: Node, tmp_path: Path) -> None:
    kept_and_bound(node, tmp_path)
    tells(tmp_path, UUID, "0000:02:00.0")
    moved = replace(functions(node.sys)[0], address=PCIAddress.parse("0000:02:00.0"), driver="nvidia")
    keep(node.sys, [moved], proc=node.roots.proc, state=node.roots.state)
    silent(tmp_path)
    assert known(tmp_path).by_address == {}
    assert read_identities(node.sys, [moved], proc=node.roots.proc, state=node.roots.state).by_address == {
        moved.address: KNOWN[ADDRESS]
    }


def test_a_damaged_file_is_told_and_keeps_nothing_else_from_being_known(node: Node, tmp_path: Path) -> None:
    (node.roots.state / "nvml.json").write_text("{")
    found = known(tmp_path)
    assert found.by_address == KNOWN
    assert "nvml.json: is not what bind wrote (it ends too early); remove it" in str(found.trouble)


def test_what_a_crash_left_of_it_is_kept_anew_and_what_is_wrong_stays_and_keeps_no_card_from_being_bound(
    node: Node, tmp_path: Path
) -> None:
    file = node.roots.state / "nvml.json"
    for text, stays in (("", False), ("{", False), ("[]", True), ('{"0000:01:00.0": {"later": 1}}', True)):
        file.write_text(text)
        keep(node.sys, functions(node.sys), proc=node.roots.proc, state=node.roots.state)
        assert (file.read_text() == text) is stays, text


def test_bind_keeps_it_before_the_driver_lets_go(gpu_plugin: Command, node: Node, tmp_path: Path) -> None:
    result = gpu_plugin("bind", GPU, "--sysfs", node.sys, "--state", node.roots.state)
    # Files in a directory are no kernel: the first write to a driver fails.
    assert "No such file or directory" in result.stderr
    bind(node.sys, GPU, "vfio-pci")
    silent(tmp_path)
    assert known(tmp_path).by_address == KNOWN


def test_bind_has_nvidia_smi_use_a_card_that_nobody_has_used(gpu_plugin: Command, node: Node, tmp_path: Path) -> None:
    tells(tmp_path, None)
    file = node.proc / "driver/nvidia/gpus" / GPU / "information"
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n[ $1 = -L ] && echo 'GPU UUID: {UUID}' >> {file}\n")
    program.chmod(0o755)
    gpu_plugin("bind", GPU, "--sysfs", node.sys, "--state", node.roots.state, "--nvidia-smi", program)
    assert known(tmp_path).by_address == KNOWN
    tells(tmp_path, None)
    (node.roots.state / "nvml.json").unlink()
    result = gpu_plugin("bind", GPU, "--sysfs", node.sys, "--state", node.roots.state, "--nvidia-smi", "/none")
    assert result.stderr.startswith(
        f"gpu-plugin: NVML's UUID of {GPU} is not known, and no VM can ask for it: /none No such file or directory\n"
    )


def test_a_look_at_the_node_has_it_and_its_slices(node: Node, tmp_path: Path, pci_ids: PCIIDs) -> None:
    snapshot = look_at(node.sys, pci_ids, Config(serve=Serve.DRA, bind=Bind.WHEN_CLAIMED))
    (device,) = (each for each in snapshot.inventory.devices if each.id == GPU)
    published = device_of(snapshot, device, "node")["attributes"]
    assert (published["nvmlUUID"], published["nvmlName"]) == ({"string": UUID}, {"string": NAME})
    unit = replace(device, functions=(device.lead, replace(device.lead, address=PCIAddress.parse("0000:02:00.0"))))
    assert snapshot.identity(unit) == Identity(None, NAME)
