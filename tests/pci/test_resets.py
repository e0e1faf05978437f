"""Models that do not survive a reset, by what their kernel would do."""

from dataclasses import replace

import pytest

from pci.address import PCIAddress
from pci.host import Function
from pci.resets import DEADLY, deadly_reset, is_listed
from pci.sysfs.functions import read_host
from tests.compose import look_closely
from tests.conftest import Machine
from tests.kernel import becomes
from tests.processes import ROOT

RTX_5090, MI300X, RX_5700, RX_9070, AUDIO = "10de:2b85", "1002:74a1", "1002:731f", "1002:7550", "1022:1487"
NAME = "0000:01:00.0"
GPU = PCIAddress.parse(NAME)


@pytest.fixture
def a_function(machine: Machine) -> Function:
    return read_host(machine("two-rtx-3090")).functions[GPU]


def model(function: Function, pci_id: str) -> Function:
    vendor, device = (int(part, 16) for part in pci_id.split(":"))
    return replace(function, vendor_id=vendor, device_id=device)


@pytest.mark.parametrize(
    ("pci_id", "methods", "says"),
    [
        (RTX_5090, ("flr", "bus"), "may not come back from a function-level reset"),
        # As a kernel with the quirk has it, or a rule of the config.
        (RTX_5090, ("bus",), None),
        (RTX_5090, (), None),
        (RTX_5090, None, None),
        (MI300X, ("flr",), "reads as ones after any reset"),
        (MI300X, ("bus",), "reads as ones after any reset"),
        (MI300X, None, "reads as ones after any reset"),
        (RX_5700, ("pm", "bus"), "no reset of the kernel's brings back"),
        (RX_5700, ("device_specific", "bus"), None),
        (RX_9070, ("bus",), "does not come back from a reset or from D3cold"),
        (AUDIO, ("flr", "bus"), "hangs in a function-level reset"),
        (AUDIO, ("bus",), None),
        ("10de:2204", ("flr", "bus"), None),
    ],
)
def test_what_the_kernel_would_do_decides(
    a_function: Function, pci_id: str, methods: tuple[str, ...] | None, says: str | None
) -> None:
    found = deadly_reset(model(a_function, pci_id), methods)
    assert (found is None) if says is None else (found is not None and says in found.wrong)


def test_a_virtual_function_is_fine(a_function: Function) -> None:
    virtual = replace(model(a_function, MI300X), physical_function=GPU)
    assert not is_listed(virtual)
    assert deadly_reset(virtual, ("flr",)) is None


def test_no_model_is_listed_twice() -> None:
    every = [pci_id for deadly in DEADLY for pci_id in deadly.ids.split()]
    assert sorted(every) == sorted(set(every))


def test_the_page_has_each_model() -> None:
    rows = [row.split(" | ")[1] for row in (ROOT / "docs/resets.md").read_text().splitlines() if row.startswith("| ")]
    assert [ids.split() for ids in rows if ":" in ids] == [deadly.ids.split() for deadly in DEADLY]


def test_resets_are_read_of_these_models_alone(copied_machine: Machine) -> None:
    sys = copied_machine("two-rtx-3090")
    look_closely(sys, NAME, reset_method="flr bus")
    look_closely(sys, "0000:e1:00.0", reset_method="flr bus")
    becomes(sys, NAME, RTX_5090)
    functions = read_host(sys).functions
    assert {str(each.address): each.reset_methods for each in functions.values() if each.reset_methods} == {
        NAME: ("flr", "bus")
    }
