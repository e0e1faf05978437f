"""What nvidia-smi in the guest reports of its GPUs. The guest may be hostile: the form is checked, and the size
bounded.

The fields: `nvidia-smi --help-query-gpu`. Fields that some driver since 450 lacks are left out, since nvidia-smi
answers nothing if one of the requested fields is unknown to it.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from launcher.runtime.agent import Ended
from pci.address import PCIAddress, address_or_none
from pci.driver_version import is_version
from program.errors import Refusal

PROGRAM = "nvidia-smi"
_FIELDS = ("pci.bus_id", "driver_version", "utilization.gpu", "memory.used", "memory.total", "temperature.gpu")
ARGUMENTS = (f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits")

_MOST = 256  # lines: a guest has fewer PCI buses
_SAID = 200  # characters of what it says of an error
_NUMBER = re.compile("[0-9]{1,9}", re.ASCII)
_NOT_TOLD = re.compile(r"N/A|\[[A-Za-z/ ]{1,40}\]", re.ASCII)  # [N/A], [Not Supported], [GPU requires reset]


@dataclass(frozen=True, slots=True)
class GPUReading:
    """What the guest's driver reports of a GPU: `utilization` in percent, memory in bytes, `temperature` in degrees
    Celsius; None for a value that it does not report."""

    driver_version: str
    utilization: int | None
    memory_used: int | None
    memory_total: int | None
    temperature: int | None


def parse_output(ended: Ended) -> Mapping[PCIAddress, GPUReading]:
    """Return what nvidia-smi printed for ARGUMENTS, by the GPU's address in the guest. Refusal if it failed, or printed
    anything else."""
    text = ended.out.decode("ascii", errors="backslashreplace")
    if ended.code or ended.signal:
        words = (text.strip() or ended.err.decode("ascii", errors="backslashreplace").strip())[:_SAID].partition("\n")[
            0
        ]
        how = f"signal {ended.signal} has ended it" if ended.signal else f"has ended with {ended.code}"
        raise _refusal(f"{how}{f': {words}' if words else ''}", "see in the guest what its driver lacks")
    gpus: dict[PCIAddress, GPUReading] = {}
    for address, gpu in map(_gpu, _lines(text)):
        if address in gpus:
            raise _refusal(f"tells of {address} twice", "see in the guest which nvidia-smi that is")
        gpus[address] = gpu
    return gpus


def other_driver(readings: Mapping[PCIAddress, GPUReading], fabric_manager: str | None) -> str:
    """Return a line if the guest's driver has another version than the Fabric Manager; "" if not, or if the manager's
    version is unknown."""
    others = sorted({gpu.driver_version for gpu in readings.values()} - {fabric_manager})
    if fabric_manager is None or not others:
        return ""
    return (
        f"the guest's driver is {', '.join(others)}, and the Fabric Manager of this node {fabric_manager}: CUDA fails "
        "with error 802 (system not yet initialized) until both are of one version"
    )


def _lines(text: str) -> Iterator[str]:
    lines = text.splitlines()
    if len(lines) > _MOST:
        raise _refusal(f"says {len(lines)} lines", f"expected one for each GPU, at most {_MOST}")
    return (line for line in lines if line.strip())


def _gpu(line: str) -> tuple[PCIAddress, GPUReading]:
    values = [value.strip() for value in line.split(",")]
    address = address_or_none(values[0])
    if len(values) != len(_FIELDS) or address is None or not is_version(values[1]):
        raise _nonsense(line)
    utilization, used, total, temperature = (_number(value, line) for value in values[2:])
    if (utilization or 0) > 100 or (temperature or 0) > 1000:
        raise _nonsense(line)
    return address, GPUReading(values[1], utilization, _bytes(used), _bytes(total), temperature)


def _number(value: str, line: str) -> int | None:
    if _NOT_TOLD.fullmatch(value):
        return None
    if not _NUMBER.fullmatch(value):
        raise _nonsense(line)
    return int(value)


def _bytes(mebibytes: int | None) -> int | None:
    return None if mebibytes is None else mebibytes << 20


def _nonsense(line: str) -> Refusal:
    return _refusal(f"says {line[:_SAID]!r}", f"expected {', '.join(_FIELDS)}")


def _refusal(wrong: str, fix: str) -> Refusal:
    return Refusal("nvidia-smi in the guest", wrong, fix)
