"""Reads whether the kernel gives programs huge pages by itself (Documentation/admin-guide/mm/transhuge.rst)."""

import re
from pathlib import Path

from pci.host import TransparentPages
from pci.sysfs.attribute import text

DIRECTORY = "kernel/mm/transparent_hugepage"
#: Each file has all possible words, and the one in force in brackets: always [madvise] never.
SETTINGS = ("enabled", "shmem_enabled")


def read_transparent(sys: Path) -> TransparentPages:
    """Read both settings. Raise Unreadable if a file exists but cannot be read."""
    return TransparentPages(*(_word(text(sys, f"{DIRECTORY}/{name}") or "") for name in SETTINGS))


def _word(words: str) -> str | None:
    match = re.search(r"\[([a-z_]{1,20})\]", words)
    return match[1] if match else None
