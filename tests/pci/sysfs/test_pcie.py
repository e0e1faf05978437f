"""The link, the errors, the resets and the power state of a function, as the kernel writes them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pci.address import PCIAddress
from pci.host import Errors, Link
from pci.sysfs.attribute import Unreadable
from pci.sysfs.pcie import read_errors, read_link, read_power_state, read_reset_methods
from pci.sysfs.record import record
from tests.compose import look_closely
from tests.conftest import Machine
from tests.kernel import aer

NAME = "0000:01:00.0"
GPU = PCIAddress.parse(NAME)
LINK = {
    "current_link_speed": "2.5 GT/s PCIe",
    "current_link_width": "8",
    "max_link_speed": "16.0 GT/s PCIe",
    "max_link_width": "16",
}


@pytest.fixture
def sys(copied_machine: Machine) -> Path:
    return copied_machine("two-rtx-3090")


def test_a_link_is_read_with_the_most_it_could_be(sys: Path) -> None:
    look_closely(sys, NAME, **LINK)
    assert read_link(sys, GPU) == Link(speed=2.5, lanes=8, max_speed=16.0, max_lanes=16)


def test_older_kernels_write_the_speed_otherwise(sys: Path) -> None:
    look_closely(sys, NAME, **{**LINK, "current_link_speed": "8 GT/s"})
    assert read_link(sys, GPU) == Link(8.0, 8, 16.0, 16)


def test_what_the_kernel_does_not_know_of_a_link_is_none(sys: Path) -> None:
    unknown = {"current_link_speed": "Unknown", "current_link_width": "0", "max_link_width": "255"}
    look_closely(sys, NAME, **{**LINK, **unknown})
    assert read_link(sys, GPU) == Link(None, None, 16.0, None)


def test_a_function_on_the_root_complex_has_no_link(sys: Path) -> None:
    assert read_link(sys, GPU) is None


@pytest.mark.parametrize("state", ["D3hot", "D3cold", "unknown"])
def test_a_sleeping_function_is_not_woken_for_its_link(sys: Path, state: str) -> None:
    look_closely(sys, NAME, power_state=state, current_link_speed="nonsense")
    assert read_link(sys, GPU) is None
    assert read_power_state(sys, GPU) == state


def test_errors_are_the_totals_of_their_files(sys: Path) -> None:
    aer(sys, NAME, correctable=7, nonfatal=2, fatal=18446744073709551615)
    assert read_errors(sys, GPU) == Errors(correctable=7, nonfatal=2, fatal=18446744073709551615)


def test_a_function_without_all_counters_counts_no_errors(sys: Path) -> None:
    assert read_errors(sys, GPU) is None
    aer(sys, NAME)
    look_closely(sys, NAME, aer_dev_fatal=None)
    assert read_errors(sys, GPU) is None


def test_resets_are_in_the_kernels_order(sys: Path) -> None:
    assert read_reset_methods(sys, GPU) is None
    look_closely(sys, NAME, reset_method="flr bus")
    assert read_reset_methods(sys, GPU) == ("flr", "bus")
    look_closely(sys, NAME, reset_method="")
    assert read_reset_methods(sys, GPU) == ()


@pytest.mark.parametrize(
    ("read", "file", "content", "expected"),
    [
        (read_errors, "aer_dev_fatal", "Undefined 0", "expected a line TOTAL_ERR_FATAL with a number"),
        (read_errors, "aer_dev_fatal", "TOTAL_ERR_FATAL -1", "expected a line TOTAL_ERR_FATAL with a number"),
        (read_link, "max_link_speed", "fast", "holds 'fast'; expected a speed, like 16.0 GT/s PCIe"),
        (read_link, "current_link_width", "x16", "holds 'x16'; expected a number of lanes"),
    ],
)
def test_nonsense_is_refused_with_its_file(
    sys: Path, read: Callable[[Path, PCIAddress], object], file: str, content: str, expected: str
) -> None:
    aer(sys, NAME)
    look_closely(sys, NAME, **{**LINK, file: content})
    with pytest.raises(Unreadable) as refused:
        read(sys, GPU)
    assert str(refused.value) == f"bus/pci/devices/{NAME}/{file}: {expected}"


def test_all_of_it_is_recorded(sys: Path, tmp_path: Path) -> None:
    aer(sys, NAME, nonfatal=1)
    look_closely(sys, NAME, **LINK, power_state="D0", reset_method="flr")
    record(sys, tmp_path / "out")
    assert read_errors(tmp_path / "out", GPU) == Errors(0, 1, 0)
    assert read_link(tmp_path / "out", GPU) == Link(2.5, 8, 16.0, 16)
    assert read_power_state(tmp_path / "out", GPU) == "D0"
    assert read_reset_methods(tmp_path / "out", GPU) == ("flr",)
