"""How much memory a GPU has at least."""

from dataclasses import replace

import pytest

from pci.address import PCIAddress
from pci.memory import memory_of
from pci.sysfs.functions import read_host
from tests.conftest import Machine

GIB = 1 << 30


@pytest.mark.parametrize(
    ("device_id", "model", "bar", "memory"),
    [
        (0x20B0, "GA100 [A100 SXM4 40GB]", 64, 40),  # by its name
        (0x2331, "GH100 [H100 PCIe]", 128, 80),  # by its ID
        (0x2204, "GA102 [GeForce RTX 3090]", 0.25, 24),  # a window of 256 MiB
        (0x2204, "GA102 [GeForce RTX 3090]", 64, 32),  # with other memory than was sold
        (0x2345, "GH100 [GH200 480GB]", 128, 96),  # the name has the CPU's memory
        (0x3182, "3182", 512, 256),  # unknown: more than half of its BAR
        (0x3182, "3182", 0.25, None),
        (0x3182, "3182", 0, None),
        (0x24DC, "GA104M [GeForce RTX 3080 Mobile / Max-Q 8GB/16GB]", 0.25, None),  # either
        (0x15F8, "GP100GL [Tesla P100 PCIe 16GB]", 16, 16),
    ],
)
def test_it_is_what_is_sold_or_more_than_half_of_the_bar(
    machine: Machine, device_id: int, model: str, bar: float, memory: int | None
) -> None:
    function = read_host(machine("two-h100")).functions[PCIAddress.parse("0000:41:00.0")]
    gpu = replace(function, device_id=device_id, memory_bar=int(bar * GIB))
    assert memory_of(gpu, model) == memory
    assert memory_of(replace(gpu, physical_function=function.address), model) is None


def test_the_bar_is_read_of_gpus(machine: Machine) -> None:
    bars = {function.memory_bar for function in read_host(machine("two-h100")).functions.values()}
    assert bars == {0, 128 * GIB}
