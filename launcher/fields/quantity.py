"""Kubernetes quantities (`1Gi`, `1500m`, `2e9`), read and written exactly.

Grammar and suffixes: apimachinery's resource.Quantity. A fraction of a unit is rounded up, as by Quantity.Value(), and
nothing is lost before: KubeVirt's own conversion makes `1.5Gi` one byte short.
"""

import re
from decimal import ROUND_CEILING, Decimal
from typing import NamedTuple

from program.errors import Nonsense

_QUANTITY = re.compile(
    r"(?P<number>[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+))"
    r"(?P<suffix>[numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,2})?",
    re.ASCII,
)
_SUFFIXES: dict[str | None, Decimal] = {
    None: Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate("kMGTPE", start=1)},
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", start=1)},
}
_MOST = 2**63 - 1  # a Quantity's Value() is an int64


class Amount(NamedTuple):
    """A quantity: its text, in a spelling that Kubernetes takes, and its exact value."""

    text: str
    exact: Decimal

    @property
    def whole(self) -> int:
        """Return the value in whole units (bytes, CPUs), rounded up."""
        return int(self.exact.to_integral_value(ROUND_CEILING))


def parse_exact(text: str | float) -> Decimal:
    """Read a quantity of any sign and size; Nonsense for any other text."""
    match = _QUANTITY.fullmatch(str(text))
    if match is None:
        raise Nonsense(f"{text!r} is not a quantity", "expected a number with a suffix, like 8Gi or 500m")
    suffix = match["suffix"]
    factor = _SUFFIXES[suffix] if suffix in _SUFFIXES else Decimal(f"1{suffix}")
    return Decimal(match["number"]) * factor


def parse_amount(text: str | float) -> Amount:
    """Read a quantity; Nonsense for any other text, a negative one, or one that is too large for Kubernetes."""
    amount = Amount(str(text), parse_exact(text))
    if not 0 <= amount.exact <= _MOST:
        raise Nonsense(f"{text!r} is out of range", f"expected 0 to {_MOST}")
    return amount


def written(size: int) -> str:
    """Write a number of bytes in the largest unit without a fraction, as Kubernetes does."""
    for power, suffix in ((3, "Gi"), (2, "Mi"), (1, "Ki")):
        if size and size % 1024**power == 0:
            return f"{size // 1024**power}{suffix}"
    return str(size)
