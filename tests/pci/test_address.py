import pytest
from hypothesis import given
from hypothesis import strategies as st

from pci.address import InvalidPCIAddress, PCIAddress

addresses = st.builds(
    PCIAddress,
    domain=st.integers(0, 0xFFFFFFFF),
    bus=st.integers(0, 0xFF),
    slot=st.integers(0, 0x1F),
    function=st.integers(0, 7),
)


@given(addresses)
def test_what_is_written_is_read_back(address: PCIAddress) -> None:
    assert PCIAddress.parse(str(address)) == address


@given(addresses)
def test_upper_case_is_the_same_address(address: PCIAddress) -> None:
    assert PCIAddress.parse(str(address).upper()) == address


@pytest.mark.parametrize(
    "text",
    [
        "0000:41:00x0",  # a dot that matches anything
        "0000:41:00.0\n",  # an end that matches before a newline
        "0000:41:20.0",  # a slot has five bits
        "0000:41:00.8",  # a function has three
        "41:00.0",
        "000:41:00.0",
        "0000:41:00",
        " 0000:41:00.0",
        "\u0660000:41:00.0",  # a digit, but not one of ours
        "",
    ],
)
def test_what_only_looks_like_an_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidPCIAddress, match=r"not a PCI address; expected domain:bus:slot\.function"):
        PCIAddress.parse(text)


def test_a_domain_behind_vmd_has_five_digits() -> None:
    assert str(PCIAddress.parse("10000:e1:00.0")) == "10000:e1:00.0"


def test_addresses_order_as_numbers() -> None:
    assert sorted(map(PCIAddress.parse, ["0000:e1:00.0", "0000:01:00.1", "10000:01:00.0", "0000:01:00.0"])) == [
        PCIAddress(0, 0x01, 0, 0),
        PCIAddress(0, 0x01, 0, 1),
        PCIAddress(0, 0xE1, 0, 0),
        PCIAddress(0x10000, 0x01, 0, 0),
    ]
