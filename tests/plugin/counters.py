"""Devices with counters in common, as Kubernetes' scheduler allocates them."""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import TypeVar

Device = TypeVar("Device")
Name = TypeVar("Name")


def fitting(
    left: Mapping[Name, int], consumed: Mapping[Device, Mapping[Name, int]], claimed: Collection[Device]
) -> list[Device]:
    """Return those beside the `claimed` devices whose counters are not used up, in their order: what is `left` of each
    counter, and what each device has `consumed` of it once it is claimed."""
    used: Counter[Name] = Counter()
    for device in claimed:
        used.update(consumed[device])
    return [
        device
        for device, wants in consumed.items()
        if device not in claimed and all(used[name] + value <= left[name] for name, value in wants.items())
    ]
