"""The PCIe errors of functions since the plugin's first look, from the kernel's counters (AER)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from pci.address import PCIAddress
from pci.host import Errors


@dataclass(frozen=True, slots=True)
class ErrorCounts:
    """The counts at the `first` look at each function, and those `now`."""

    first: Mapping[PCIAddress, Errors] = field(default_factory=dict)
    now: Mapping[PCIAddress, Errors] = field(default_factory=dict)

    def then(self, now: Mapping[PCIAddress, Errors]) -> Self:
        """Return the counts after another look, whose counts are `now`. A function without counts keeps its last ones;
        for a function whose counters restarted, since it was removed and found again, this is the first look."""
        first = {
            address: errors if any(map(int.__lt__, errors, self.first.get(address, errors))) else self.first[address]
            for address, errors in now.items()
            if address in self.first
        }
        return type(self)({**self.first, **now, **first}, {**self.now, **now})

    def grown(self, address: PCIAddress) -> Errors:
        """Return how many errors a function has had since the first look."""
        if address not in self.now:
            return Errors(0, 0, 0)
        now, first = self.now[address], self.first[address]
        return Errors(*(after - before for after, before in zip(now, first, strict=True)))
