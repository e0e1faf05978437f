"""Reads the sizes of a block device (kernel Documentation/ABI/stable/sysfs-block)."""

from pathlib import Path

from pci.sysfs.attribute import number

_DEVICES = "dev/block"
_FILES = ("logical_block_size", "physical_block_size", "discard_granularity")


def read_block_sizes(sys: Path, major: int, minor: int) -> tuple[int, int, int] | None:
    """Read the logical and the physical block size and the discard granularity, in bytes, of the device with these
    numbers. Return None if sysfs does not have them; raise Unreadable if a file is malformed."""
    # A partition's queue is its disk's, one directory above.
    for queue in (f"{_DEVICES}/{major}:{minor}/queue", f"{_DEVICES}/{major}:{minor}/../queue"):
        logical, physical, discard = (number(sys, f"{queue}/{file}", "[0-9]{1,18}", "bytes") for file in _FILES)
        if logical is not None and physical is not None and discard is not None:
            return logical, physical, discard
    return None
