from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pci.address import PCIAddress
from pci.resource import (
    DeviceKind,
    InvalidValue,
    USBAddress,
    cards,
    decode,
    decode_mdevs,
    decode_partitions,
    decode_usb,
    encode,
    partition_variable,
    variable,
)
from tests.pci.test_address import addresses


def parse(*texts: str) -> tuple[PCIAddress, ...]:
    return tuple(map(PCIAddress.parse, texts))


@pytest.mark.parametrize(
    ("resource", "kind", "expected"),
    [
        # KubeVirt's bytes, spelled out: everywhere else the name comes from variable().
        (
            "nvidia.com/TU106_GEFORCE_RTX_2060_REV__A",
            DeviceKind.PCI,
            "PCI_RESOURCE_NVIDIA_COM_TU106_GEFORCE_RTX_2060_REV__A",
        ),
        ("nvidia.com/1b80", DeviceKind.PCI, "PCI_RESOURCE_NVIDIA_COM_1B80"),
        ("nvidia.com/GRID_T4-1Q", DeviceKind.MDEV, "MDEV_PCI_RESOURCE_NVIDIA_COM_GRID_T4-1Q"),
        ("kubevirt.io/usb-storage", DeviceKind.USB, "USB_RESOURCE_KUBEVIRT_IO_USB-STORAGE"),
    ],
)
def test_a_variable_has_the_name_that_kubevirt_gives_it(resource: str, kind: DeviceKind, expected: str) -> None:
    assert variable(resource, kind) == expected


@given(st.lists(addresses))
def test_what_the_plugin_encodes_the_launcher_decodes(given: list[PCIAddress]) -> None:
    assert decode("V", encode(given)) == tuple(sorted(set(given)))


@given(st.lists(st.uuids()))
def test_mediated_devices_are_encoded_and_decoded_alike(given: list[UUID]) -> None:
    assert decode_mdevs("V", encode(given)) == tuple(sorted(set(given)))


@given(st.dictionaries(st.integers(0, 2**32 - 1), st.lists(addresses)))
def test_partitions_are_encoded_and_decoded_alike(given: dict[int, list[PCIAddress]]) -> None:
    environ = {partition_variable(number): encode(each) for number, each in given.items()}
    others = {"FABRIC_PARTITION_": "?", "FABRIC_PARTITION_A": "?", "FABRIC_PARTITION_12345678901": "?", "PATH": "/"}
    decoded = decode_partitions({**others, **environ})
    assert list(decoded.items()) == [(number, tuple(sorted(set(its)))) for number, its in sorted(given.items())]


def test_what_is_no_address_in_a_partition_is_named_with_its_variable() -> None:
    with pytest.raises(InvalidValue, match=r"^FABRIC_PARTITION_3: 'x' is not a PCI address like 0000:41:00\.0$"):
        decode_partitions({"FABRIC_PARTITION_3": "0000:41:00.0,x"})


def test_one_trailing_comma_and_repeats_are_dropped() -> None:
    assert decode("V", "0000:e1:00.0,0000:01:00.0,0000:e1:00.0,") == parse("0000:e1:00.0", "0000:01:00.0")
    assert decode("V", "") == decode("V", ",") == ()


@pytest.mark.parametrize(
    ("value", "item"),
    [
        ("0000:41:00x0", "0000:41:00x0"),
        ("0000:41:00.0,,0000:42:00.0", ""),
        ("0000:41:00.0,,", ""),
        ("0000:41:00.0, 0000:42:00.0", " 0000:42:00.0"),
    ],
)
def test_what_is_no_address_is_named_with_its_variable(value: str, item: str) -> None:
    with pytest.raises(InvalidValue) as error:
        decode("PCI_RESOURCE_X", value)
    assert str(error.value) == f"PCI_RESOURCE_X: {item!r} is not a PCI address like 0000:41:00.0"


@pytest.mark.parametrize(
    "value", ["nonsense", "{83b8f4f2-509f-382f-3c1e-e6bfe0fa1001}", "83b8f4f2509f382f3c1ee6bfe0fa1001"]
)
def test_what_is_no_uuid_is_named_with_its_variable(value: str) -> None:
    with pytest.raises(InvalidValue, match=r"^MDEV_X: .* is not the UUID of a mediated device$"):
        decode_mdevs("MDEV_X", value)


def test_as_many_addresses_as_entries_stand_for_themselves_even_on_one_slot() -> None:
    both = parse("0000:e1:00.0", "0000:e1:00.1")
    assert cards(both, wanted=2) == both


def test_more_addresses_than_entries_are_the_older_dialect_and_collapse_to_cards() -> None:
    value = decode("V", "0000:e1:00.0,0000:e1:00.1,0000:01:00.0,0000:01:00.1")
    assert cards(value, wanted=2) == parse("0000:e1:00.0", "0000:01:00.0")


def test_a_card_too_many_is_still_a_card_of_its_own() -> None:
    value = parse("0000:86:00.0", "0000:af:00.0")
    assert cards(value, wanted=1) == value


def test_where_sysfs_is_known_it_decides_what_a_card_is() -> None:
    virtual_functions = parse("0000:02:00.1", "0000:02:00.2", "0000:02:00.3")
    assert cards(virtual_functions, wanted=2, same_card=lambda one, other: False) == virtual_functions


@given(st.lists(addresses, unique=True), st.integers(0, 8))
def test_collapsing_keeps_order_and_one_address_of_every_slot(given: list[PCIAddress], wanted: int) -> None:
    found = cards(tuple(given), wanted=wanted)
    assert [address for address in given if address in found] == list(found)
    assert all(any(address.shares_slot(first) for first in found) for address in given)


def test_usb_devices_are_bus_and_number_in_decimal_with_or_without_noughts() -> None:
    # libvirt would take 010 for octal.
    assert decode_usb("V", "1:3,002:010,1:3,") == (USBAddress(1, 3), USBAddress(2, 10))
    assert str(USBAddress(2, 10)) == "2:10"


@pytest.mark.parametrize("item", ["1", "1:", ":1", "1:2:3", "0:1", "1:0", "1:128", "1000:1", "a:1", " 1:2", "1.2"])
def test_what_is_no_usb_device_is_named_with_its_variable(item: str) -> None:
    with pytest.raises(InvalidValue) as error:
        decode_usb("USB_RESOURCE_X", f"1:2,{item}")
    assert str(error.value) == f"USB_RESOURCE_X: {item!r} is not a USB device's bus and number like 1:4"
