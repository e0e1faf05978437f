"""A PCI address as four numbers; text is parsed where it enters a program."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

_ADDRESS = re.compile(
    r"(?P<domain>[0-9a-f]{4,8}):(?P<bus>[0-9a-f]{2}):(?P<slot>[01][0-9a-f])\.(?P<function>[0-7])",
    re.ASCII | re.IGNORECASE,
)


class InvalidPCIAddress(ValueError):
    """The text is not a PCI address: what is `wrong`, and as `fix` what one looks like."""

    fix = "expected domain:bus:slot.function in hexadecimal, like 0000:41:00.0"

    def __init__(self, text: str) -> None:
        self.wrong = f"{text!r} is not a PCI address"
        super().__init__(f"{self.wrong}; {self.fix}")


@dataclass(frozen=True, order=True, slots=True)
class PCIAddress:
    """The address of a PCI function, with libvirt's names for its parts.

    As text it is the name of a directory in /sys/bus/pci/devices (`%04x:%02x:%02x.%d`, drivers/pci/probe.c). A domain
    has more than four digits behind Intel's VMD.
    """

    domain: int
    bus: int
    slot: int
    function: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `0000:41:00.0`, in either case of hexadecimal; raise InvalidPCIAddress for any other text."""
        match = _ADDRESS.fullmatch(text)
        if match is None:
            raise InvalidPCIAddress(text)
        return cls(**{part: int(digits, 16) for part, digits in match.groupdict().items()})

    @classmethod
    def parse_short(cls, text: str) -> Self:
        """Read an address of domain 0 without its domain too, `41:00.0`, as lspci prints it."""
        return cls.parse(text if text.count(":") > 1 else f"0000:{text}")

    @classmethod
    def from_attributes(cls, attributes: Mapping[str, str]) -> Self:
        """Read the attributes of an <address> of libvirt's; a part that is missing is 0."""
        return cls(*(int(attributes.get(part, "0"), 16) for part in ("domain", "bus", "slot", "function")))

    def __str__(self) -> str:
        return f"{self.domain:04x}:{self.bus:02x}:{self.slot:02x}.{self.function}"

    def shares_slot(self, other: Self) -> bool:
        """Whether both are functions of one slot; more of a card cannot be told from addresses."""
        return (self.domain, self.bus, self.slot) == (other.domain, other.bus, other.slot)


def address_or_none(text: str) -> PCIAddress | None:
    """Return the address in the text; None for any other text."""
    try:
        return PCIAddress.parse(text)
    except InvalidPCIAddress:
        return None
