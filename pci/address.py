"""A PCI address, parsed once at the edge and carried as four numbers from there on."""

import re
from dataclasses import dataclass
from typing import Self

_ADDRESS = re.compile(
    r"(?P<domain>[0-9a-f]{4,8}):(?P<bus>[0-9a-f]{2}):(?P<slot>[01][0-9a-f])\.(?P<function>[0-7])",
    re.ASCII | re.IGNORECASE,
)


class InvalidPCIAddress(ValueError):
    """The text is not a PCI address."""

    def __init__(self, text: str) -> None:
        super().__init__(
            f"{text!r} is not a PCI address; expected domain:bus:slot.function in hexadecimal, like 0000:41:00.0"
        )


@dataclass(frozen=True, order=True, slots=True)
class PCIAddress:
    """One function of one slot: libvirt's four words for it.

    The kernel writes it as the name of a directory in /sys/bus/pci/devices (`%04x:%02x:%02x.%d`,
    drivers/pci/probe.c). A domain has more than four digits behind Intel's VMD.
    """

    domain: int
    bus: int
    slot: int
    function: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `0000:41:00.0`, in either case of hexadecimal; anything else is InvalidPCIAddress."""
        match = _ADDRESS.fullmatch(text)
        if match is None:
            raise InvalidPCIAddress(text)
        return cls(**{part: int(digits, 16) for part, digits in match.groupdict().items()})

    def __str__(self) -> str:
        return f"{self.domain:04x}:{self.bus:02x}:{self.slot:02x}.{self.function}"

    def shares_slot(self, other: Self) -> bool:
        """Whether both are functions of one slot: of one card, as far as addresses can tell."""
        return (self.domain, self.bus, self.slot) == (other.domain, other.bus, other.slot)


def address_or_none(text: str) -> PCIAddress | None:
    """Return the address that the text is; None if it is none."""
    try:
        return PCIAddress.parse(text)
    except InvalidPCIAddress:
        return None
