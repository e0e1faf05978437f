import json
import re
from pathlib import Path

import pytest

from pci.address import PCIAddress
from plugin.cards.config import Fabric
from plugin.fabric.modules import keep, read_module_ids, read_nvidia_smi
from program.errors import Refusal

ONE, FIVE = PCIAddress.parse("0000:86:00.0"), PCIAddress.parse("0000:0f:00.0")

NVIDIA_SMI = """
==============NVSMI LOG==============

Driver Version                            : 570.133.20
Attached GPUs                             : 3

GPU 00000000:0F:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    Platform Info
        Chassis Serial Number             : N/A
        Module Id                         : 5
        Peer Type                         : Switch Connected
    PCI
        Bus Id                            : 00000000:0F:00.0

GPU 00000000:86:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    GPU Module ID                         : 1

GPU 00000000:99:00.0
    Product Name                          : NVIDIA L4
    Module ID                             : N/A
"""


def test_what_nvidia_smi_prints() -> None:
    assert read_nvidia_smi(NVIDIA_SMI) == {FIVE: 5, ONE: 1}
    assert read_nvidia_smi("") == {}
    assert read_nvidia_smi("    Module ID : 3\nGPU what:ever\n    Module ID : 4\n") == {}


def test_kept_ids_are_read_again(tmp_path: Path) -> None:
    keep(tmp_path / "state", {FIVE: 5})
    keep(tmp_path / "state", {ONE: 1})
    assert read_module_ids(Fabric(), tmp_path / "state").by_address == {FIVE: 5, ONE: 1}


def test_cards_that_were_moved_leave_no_old_id(tmp_path: Path) -> None:
    keep(tmp_path, {FIVE: 5, ONE: 1})
    keep(tmp_path, {ONE: 5})
    assert read_module_ids(Fabric(), tmp_path).by_address == {ONE: 5}


def test_the_config_comes_before_the_operators_file_and_that_before_what_was_kept(tmp_path: Path) -> None:
    keep(tmp_path, {FIVE: 3, ONE: 4})
    operators = tmp_path / "map.json"
    operators.write_text(json.dumps({"0000:0f:00.0": "5", "00000000:86:00.0": 2}))
    assert read_module_ids(Fabric(modules_file=str(operators)), tmp_path).by_address == {FIVE: 5, ONE: 2}
    named = Fabric(modules_file=str(operators), modules={"0000:86:00.0": 1})
    assert read_module_ids(named, tmp_path).by_address == {FIVE: 5, ONE: 1}


def test_two_cards_of_one_id_are_both_unknown(tmp_path: Path) -> None:
    keep(tmp_path, {FIVE: 1})
    ids = read_module_ids(Fabric(modules={"0000:86:00.0": 1}), tmp_path)
    assert ids.by_address == {}
    assert ids.faults == ("0000:86:00.0, 0000:0f:00.0: are both said to be module 1",)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"gpu": 1}', '{"0000:0f:00.0": "x"}', '{"0000:0f:00.0": -1}', '{"0000:0f:00.0": 99}',
     '{"0000:0f:00.0": null}', "[" * 100_000, " " * 2_000_000 + "{}"],
)  # fmt: skip
def test_a_file_that_is_none(text: str, tmp_path: Path) -> None:
    operators = tmp_path / "map.json"
    operators.write_text(text)
    ids = read_module_ids(Fabric(modules_file=str(operators), modules={"0000:86:00.0": 1}), tmp_path)
    assert ids.by_address == {ONE: 1}
    (fault,) = ids.faults
    assert re.match(rf"{operators}: has no module IDs in it \(.+\); expected module IDs by PCI address", fault)


def test_a_file_may_be_what_nvidia_smi_prints(tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi.txt").write_text(NVIDIA_SMI)
    ids = read_module_ids(Fabric(modules_file=str(tmp_path / "nvidia-smi.txt")), tmp_path)
    assert ids.by_address == {FIVE: 5, ONE: 1}
    assert ids.faults == ()


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    ids = read_module_ids(Fabric(modules_file=str(tmp_path / "none")), tmp_path)
    assert ids.faults == (f"{tmp_path}/none: does not exist; expected module IDs by PCI address, in JSON",)


def test_ids_that_cannot_be_kept_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Refusal, match=r"cannot be written: .*; run as root, or name a directory with --state"):
        keep(tmp_path / "file", {ONE: 1})
