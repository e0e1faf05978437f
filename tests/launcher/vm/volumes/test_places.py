"""Files that are made at once and whole, where somebody else may be at work too."""

from pathlib import Path

import pytest

from launcher.vm.volumes.places import keeping_file, link, sized
from program.errors import Refusal


def test_a_disk_that_somebody_else_makes_meanwhile_is_theirs(tmp_path: Path) -> None:
    disk = tmp_path / "disk.qcow2"

    def fill(file: Path) -> None:
        file.write_bytes(b"ours")
        disk.write_bytes(b"theirs")

    with (
        pytest.raises(Refusal, match="cannot be made: File exists; something else is in the way"),
        keeping_file(disk, fill),
    ):
        pass
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("disk.qcow2", b"theirs")]


def test_a_disk_for_good_is_made_where_there_is_none_or_an_empty_file(tmp_path: Path) -> None:
    """The kubelet makes an empty one, which everybody may read."""
    for disk in (tmp_path / "new.img", tmp_path / "empty.img"):
        if disk.name == "empty.img":
            disk.touch(0o644)
        sized(disk, 1 << 20)
        found = disk.stat()
        assert (found.st_size, found.st_blocks, found.st_mode & 0o777) == (1 << 20, 0, 0o600)
    disk.write_bytes(b"a guest's")
    sized(disk, 1 << 20)
    assert disk.read_bytes() == b"a guest's"


def test_a_disk_for_good_is_not_made_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "qemu.conf").touch()
    (tmp_path / "disk.img").symlink_to("qemu.conf")
    with pytest.raises(Refusal, match="cannot be made: Too many levels of symbolic links"):
        sized(tmp_path / "disk.img", 1 << 20)
    assert (tmp_path / "qemu.conf").stat().st_size == 0


def test_a_link_that_an_earlier_start_has_left_leads_to_what_is_wanted_now(tmp_path: Path) -> None:
    place = tmp_path / "disk_0.img"
    place.symlink_to("old")
    with link(place, tmp_path / "new"):
        assert place.readlink() == tmp_path / "new"
    assert not place.is_symlink()


def test_a_file_where_a_link_is_to_be_stays(tmp_path: Path) -> None:
    place = tmp_path / "disk_0.img"
    place.write_bytes(b"somebody's")
    with pytest.raises(Refusal, match="something else is in the way"), link(place, tmp_path / "new"):
        pass
    assert place.read_bytes() == b"somebody's"
