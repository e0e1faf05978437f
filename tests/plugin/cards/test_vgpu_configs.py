"""The config of NVIDIA's vgpu-device-manager, as its README and examples have it."""

from pathlib import Path

import pytest

from pci.sysfs.functions import read_host
from plugin.cards.vgpu_configs import rules_of
from plugin.cards.vgpu_rules import VGPURule
from program.errors import UserError
from tests.plugin.kinds.cut import Node
from tests.vgpu_kernel import a10, b60, l40s

FILE = """
version: v1
vgpu-configs:
  default:
  - device-filter: ["0x26B910DE", "0x20B510DE"]
    devices: all
    vgpu-devices: {"L40S-24Q": 2}
  - device-filter: "0x223610de"
    devices: all
    vgpu-devices:
      "A10-4Q": 3
      "A10-6Q": 2
  second: [{devices: [1], vgpu-devices: {A10-24Q: 1, A10-8Q: 0}}]
  none: [{devices: all, vgpu-devices: {}}]
  twice: [{devices: all, vgpu-devices: {A10-4Q: 1}}, {devices: [0], vgpu-devices: {}}]
  third: [{devices: [2], vgpu-devices: {}}]
  words: [{devices: some, vgpu-devices: {}}]
  filter: [{devices: all, device-filter: A10, vgpu-devices: {}}]
  list: [{devices: all, vgpu-devices: [A10-4Q]}]
  many: [{devices: all, vgpu-devices: {A10-4Q: 9999}}]
  text: [all]
"""
L40S, A10 = "0000:41:00.0", "0000:61:00.0"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text(FILE)
    return tmp_path / "config.yaml"


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("default", {L40S: {"L40S-24Q": 2}, A10: {"A10-4Q": 3, "A10-6Q": 2}}),
        ("second", {A10: {"A10-24Q": 1}}),
        ("none", {}),
    ],
)
def test_a_configuration_is_rules_for_the_nodes_cards(
    file: Path, tmp_path: Path, name: str, rules: dict[str, dict[str, int]]
) -> None:
    host = read_host(Node(tmp_path, b60(), l40s(), a10()).sys)
    expected = tuple(VGPURule(address=address, types=types) for address, types in rules.items())
    assert rules_of(file, name, host) == expected


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("nothing", "has no configuration 'nothing'; expected one of default, second, none, twice"),
        ("twice", f"vgpu-configs.twice.1: {L40S} has an entry already; expected one for each card"),
        ("third", "vgpu-configs.third.0: there is no GPU 2; this node has 2, from 0 on"),
        ("words", "vgpu-configs.words.0: found devices 'some'; expected all, or numbers"),
        ("filter", "vgpu-configs.filter.0: found device-filter 'A10'; expected device and vendor"),
        ("list", "vgpu-configs.list.0: found vgpu-devices ['A10-4Q']; expected how many of each type"),
        ("many", "vgpu-configs.many.0: types: A10-4Q: found 9999; expected how many"),
        ("text", "vgpu-configs.text.0: found vgpu-devices None; expected how many"),
    ],
)
def test_a_mistake_is_named_with_its_place(file: Path, tmp_path: Path, name: str, problem: str) -> None:
    host = read_host(Node(tmp_path, l40s(), a10()).sys)
    with pytest.raises(UserError) as error:
        rules_of(file, name, host)
    assert str(error.value).startswith(f"{file}: {problem}")


@pytest.mark.parametrize("text", ["", "[]", "vgpu-configs: []", "vgpu-configs: ["])
def test_a_file_that_is_none_is_an_error(file: Path, tmp_path: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(UserError, match=r"config\.yaml"):
        rules_of(file, "default", read_host(Node(tmp_path, l40s()).sys))


def test_a_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read: No such file"):
        rules_of(tmp_path / "none.yaml", "default", read_host(Node(tmp_path, l40s()).sys))
