"""The cards of a running VM in words, for `ctl guest gpus`."""

from collections.abc import Iterator
from typing import Any


def lines_of(found: Any) -> Iterator[str]:
    """Yield a few lines for each GuestGPU, and a last one if nobody in the guest has told anything."""
    if not found.gpus:
        yield "the VM has none of the host's cards"
    for gpu in found.gpus:
        yield f"{gpu.name}: host {gpu.host} -> guest {gpu.guest}"
        if words := _told(gpu):
            yield f"  in the guest: {words}"
        elif not found.silence:
            yield "  in the guest: nvidia-smi does not tell of it"
    if found.silence:
        yield found.silence


def _told(gpu: Any) -> str:
    """`driver 580.126.09, 34% busy, 10.2 of 79.6 GiB used, 41 °C`, as far as it is told."""
    said = {field.name for field, _ in gpu.ListFields()}
    words = [f"driver {gpu.driver_version}"] * ("driver_version" in said)
    words += [f"{gpu.utilization}% busy"] * ("utilization" in said)
    if {"memory_used", "memory_total"} <= said:
        words.append(f"{gpu.memory_used / (1 << 30):.1f} of {gpu.memory_total / (1 << 30):.1f} GiB used")
    words += [f"{gpu.temperature} °C"] * ("temperature" in said)
    return ", ".join(words)
