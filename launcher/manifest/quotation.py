"""A value of the manifest as an error line quotes it."""

import reprlib
from typing import Any

_SHORT = reprlib.Repr()
_SHORT.maxlevel = 3
_SHORT.maxstring = _SHORT.maxother = 60


def shown(value: Any) -> str:
    """Return a value of the manifest in short, whatever it is."""
    try:
        text = _SHORT.repr(value)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:60]}..."
