"""Whether a function still answers, and that the kubelet hears of one that does not. The config space of a composed
machine is a file."""

from pathlib import Path

import pytest

from pci.address import PCIAddress
from pci.sysfs.details import is_off_the_bus
from tests.compose import look_closely
from tests.conftest import Machine
from tests.kernel import bind
from tests.kubelet import Kubelet
from tests.plugin.daemon import BOTH, RTX_3090, serve

GPU = "0000:01:00.0"
ONES = b"\xff" * 64


def config_space(sys: Path, address: str, content: bytes) -> None:
    (sys / "bus/pci/devices" / address / "config").write_bytes(content)


@pytest.mark.parametrize(
    ("power_state", "content", "is_off"),
    [
        ("D0", ONES, True),
        ("D0", b"\xde\x10\x08\x1f" + ONES, False),
        # Reading would wake it.
        ("D3hot", ONES, False),
        ("D3cold", ONES, False),
        ("unknown", ONES, False),
        ("D0", b"", False),
    ],
)
def test_a_powered_function_whose_config_space_reads_as_ones_fell_off_the_bus(
    copied_machine: Machine, power_state: str, content: bytes, is_off: bool
) -> None:
    sys = copied_machine("two-rtx-3090")
    look_closely(sys, GPU, power_state=power_state)
    config_space(sys, GPU, content)
    assert is_off_the_bus(sys, PCIAddress.parse(GPU)) is is_off


def test_a_function_whose_files_say_nothing_is_not_called_fallen(machine: Machine) -> None:
    assert not is_off_the_bus(machine("two-rtx-3090"), PCIAddress.parse(GPU))


def test_a_card_that_fell_off_the_bus_is_unhealthy_until_it_answers(copied_machine: Machine, kubelet: Kubelet) -> None:
    sys = copied_machine("two-rtx-3090")
    for address in BOTH:
        look_closely(sys, address, power_state="D0")
        config_space(sys, address, b"\xde\x10")
    with serve(sys, kubelet.directory, "--pod-resources", kubelet.pod_resources) as plugin:
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
        config_space(sys, GPU, ONES)
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == ("0000:e1:00.0",))
        plugin.wait_for_line("fell off the bus")
        config_space(sys, GPU, b"\xde\x10")
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)


def test_a_card_that_fell_stays_unhealthy_when_the_kubelet_falls_silent(
    copied_machine: Machine, kubelet: Kubelet
) -> None:
    sys = copied_machine("two-rtx-3090")
    for address in BOTH:
        look_closely(sys, address, power_state="D0")
        config_space(sys, address, ONES if address == GPU else b"\xde\x10")
    with serve(sys, kubelet.directory, "--pod-resources", kubelet.pod_resources) as plugin:
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == ("0000:e1:00.0",))
        kubelet.pod_resources.unlink()
        plugin.wait_for_line("what other plugins gave out is not seen")
        # A look at everything later, it has still fallen.
        bind(sys, "0000:e1:00.1", None)
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == ())
        bind(sys, "0000:e1:00.1", "vfio-pci")
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == ("0000:e1:00.0",))


def test_a_card_in_a_guests_hands_is_never_read(copied_machine: Machine, kubelet: Kubelet) -> None:
    """Its config space reads as ones while the guest resets it."""
    sys = copied_machine("two-rtx-3090")
    for address in BOTH:
        look_closely(sys, address, power_state="D0")
        config_space(sys, address, b"\xde\x10")
    kubelet.pods["vms/one"] = {RTX_3090: {GPU}}
    with serve(sys, kubelet.directory, "--pod-resources", kubelet.pod_resources):
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
        for address in BOTH:
            config_space(sys, address, ONES)
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == (GPU,))


def test_where_nobody_says_who_has_what_nothing_is_read(copied_machine: Machine, kubelet: Kubelet) -> None:
    sys = copied_machine("two-rtx-3090")
    for address in BOTH:
        look_closely(sys, address, power_state="D0")
        config_space(sys, address, ONES)
    with serve(sys, kubelet.directory, "--pod-resources", "/nowhere") as plugin:
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
        plugin.wait_for_line("what other plugins gave out is not seen")
        # Two looks at everything, the second after whatever the first one began.
        bind(sys, "0000:e1:00.1", None)
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == (GPU,))
        bind(sys, "0000:e1:00.1", "vfio-pci")
        kubelet.wait_until(lambda: kubelet.healthy(RTX_3090) == BOTH)
