import os
from pathlib import Path

from launcher.vm.volumes.checks import Growing, Room, read_rooms, space
from launcher.vm.volumes.media import EmptyImage, Overlay, Symlink
from program.problem import Severity
from tests.launcher.vm.trees import GIB, MIB, write


def test_what_grows_is_as_large_as_the_disk_that_the_guest_sees(tmp_path: Path) -> None:
    """A qcow2 image says it in its header, and is smaller itself; one that is linked to is not there yet."""
    qcow2 = b"QFI\xfb" + bytes(20) + (3 * GIB).to_bytes(8, "big")
    write(tmp_path, {"image/disk.qcow2": qcow2, "claim/disk.img": ""})
    os.truncate(tmp_path / "claim/disk.img", 5 * MIB)
    needs = (
        EmptyImage(tmp_path / "empty/e.qcow2", 2 * GIB),
        Symlink(tmp_path / "disk_1.img", tmp_path / "image/disk.qcow2"),
        Overlay(tmp_path / "overlays/root", tmp_path / "disk_1.img", "qcow2"),
        Overlay(tmp_path / "overlays/copy", tmp_path / "claim/disk.img", "raw"),
        Overlay(tmp_path / "overlays/gone", tmp_path / "nothing", "raw"),
    )
    (room,) = read_rooms(needs)
    assert [growing.by for growing in room.growing] == [2 * GIB, 3 * GIB, 5 * MIB]
    assert room.directory == tmp_path


def test_what_an_earlier_start_has_written_takes_its_room_already(tmp_path: Path) -> None:
    write(tmp_path, {"e.qcow2": bytes(8 * MIB)})
    (room,) = read_rooms([EmptyImage(tmp_path / "e.qcow2", 2 * GIB)])
    assert room.growing[0].by <= 2 * GIB - 8 * MIB


def test_more_than_there_is_room_for_is_a_warning() -> None:
    growing = (Growing(Path("/var/a"), 2 * GIB), Growing(Path("/var/b"), 3 * GIB))
    assert list(space((Room(Path("/var"), 5 * GIB, growing),))) == []
    (found,) = space((Room(Path("/var"), 5 * GIB - 1, growing),))
    assert found.severity is Severity.WARNING
    assert str(found).startswith(
        "/var: has 5119 MiB free, and what the guest writes to /var/a, /var/b may take 5120 MiB; give the pod more"
    )


def test_without_such_files_nothing_is_said() -> None:
    assert read_rooms([]) == ()
