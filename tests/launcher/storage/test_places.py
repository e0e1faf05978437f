"""Files that are made at once and whole, where somebody else may be at work too."""

from pathlib import Path

import pytest

from launcher.errors import Refusal
from launcher.storage.places import kept, link, make_once


def test_a_disk_that_somebody_else_makes_meanwhile_is_theirs(tmp_path: Path) -> None:
    disk = tmp_path / "disk.qcow2"

    def fill(file: Path) -> None:
        file.write_bytes(b"ours")
        disk.write_bytes(b"theirs")

    with pytest.raises(Refusal, match="cannot be made: File exists; something else is in the way"), kept(disk, fill):
        pass
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("disk.qcow2", b"theirs")]


def test_of_two_that_make_a_disk_for_good_both_have_the_firsts(tmp_path: Path) -> None:
    disk = tmp_path / "disk.img"

    def fill(file: Path) -> None:
        file.write_bytes(b"ours")
        disk.write_bytes(b"theirs")

    make_once(disk, fill)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("disk.img", b"theirs")]


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
