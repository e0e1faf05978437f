from pathlib import Path

import pytest

from pci.sysfs.attribute import Unreadable
from pci.sysfs.block import read_block_sizes


def queue(directory: Path, logical: str = "512", physical: str = "4096", discard: str = "0") -> None:
    directory.mkdir(parents=True)
    for name, text in (
        ("logical_block_size", logical),
        ("physical_block_size", physical),
        ("discard_granularity", discard),
    ):
        (directory / name).write_text(f"{text}\n")


@pytest.fixture
def sys(tmp_path: Path) -> Path:
    """A disk, 259:0, with a partition, 259:1; links as in /sys/dev/block."""
    disk = tmp_path / "devices/pci0000:00/nvme0n1"
    queue(disk / "queue")
    (disk / "nvme0n1p1").mkdir()
    numbers = tmp_path / "dev/block"
    numbers.mkdir(parents=True)
    (numbers / "259:0").symlink_to("../../devices/pci0000:00/nvme0n1")
    (numbers / "259:1").symlink_to("../../devices/pci0000:00/nvme0n1/nvme0n1p1")
    return tmp_path


@pytest.mark.parametrize("minor", [0, 1])
def test_a_partition_has_the_sizes_of_its_disk(sys: Path, minor: int) -> None:
    assert read_block_sizes(sys, 259, minor) == (512, 4096, 0)


def test_a_device_that_is_not_there_has_none(sys: Path) -> None:
    assert read_block_sizes(sys, 7, 0) is None


def test_a_size_that_is_no_number_is_named(sys: Path) -> None:
    (sys / "devices/pci0000:00/nvme0n1/queue/logical_block_size").write_text("many\n")
    with pytest.raises(Unreadable, match="dev/block/259:0/queue/logical_block_size: holds 'many'; expected bytes"):
        read_block_sizes(sys, 259, 0)
