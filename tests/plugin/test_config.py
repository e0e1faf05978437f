from pathlib import Path

import pytest

from pci.address import PCIAddress
from plugin.config import Config, Rule, read_config
from plugin.errors import UserError


def test_a_rule_names_a_device_or_an_address(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        "offer:\n"
        '- {device: "1234:1111", resource: example.com/bochs}\n'
        '- {address: "0000:41:00.0", resource: example.com/the-good-one}\n'
    )
    assert read_config(path) == Config(
        offer=(
            Rule(device="1234:1111", resource="example.com/bochs"),
            Rule(address=PCIAddress(0, 0x41, 0, 0), resource="example.com/the-good-one"),
        )
    )


def test_an_empty_file_asks_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("# nothing yet\n")
    assert read_config(path) == Config()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("offer: [", "is not YAML"),
        ("[]", "the file: "),
        ("ofer: []", "ofer: Extra inputs are not permitted"),
        ("offer: [{device: '1234:1111'}]", "offer.0.resource: Field required"),
        ("offer: [{resource: a/b}]", "offer.0: expected either device (vendor:device) or address"),
        ("offer: [{resource: a/b, device: '1234:1111', address: '0000:41:00.0'}]", "offer.0: expected either device"),
        ("offer: [{resource: a/b, device: 'bochs'}]", "offer.0: device 'bochs'; expected vendor:device in hexadecimal"),
        ("offer: [{resource: a/b, address: '41:00.0'}]", "offer.0.address: '41:00.0' is not a PCI address"),
        (
            "offer: [{resource: bochs, device: '1234:1111'}]",
            "offer.0.resource: 'bochs' is not an extended resource name",
        ),
        (
            "offer: [{resource: a/b, address: 0000:41:00.0}]",
            "offer.0.address: found 2460.0; expected an address",
        ),
        ("offer: [{resource: a/b, address: {domain: 0}}]", "offer.0.address: found {'domain': 0}; expected an address"),
        ("offer: []\noffer: []", "is not YAML: the key 'offer' is there twice"),
        ("offer: 2001-99-99", "is not YAML: "),
        ("offer: !!bool maybe", "is not YAML: "),
        ("offer: " + "[" * 3000, "is not YAML: "),
        ("offer: [{resource: a/b, device: 1234}]", "offer.0.device: Input should be a valid string"),
    ],
)
def test_nonsense_is_refused_by_its_path(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        read_config(path)
    assert str(error.value).startswith(f"{path}: {problem}")
    assert "\n" not in str(error.value)
