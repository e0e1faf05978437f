import os
from pathlib import Path

from launcher import paths
from launcher.checks.finding import Level
from launcher.checks.space import Growing, Room, read_rooms, space
from launcher.facts import Facts
from tests.launcher.checks.trees import GIB, MIB, vmi, write

VOLUMES = """\
  volumes:
  - {name: scratch, emptyDisk: {capacity: 2Gi}}
  - {name: root, containerDisk: {image: debian}}
  - {name: copy, ephemeral: {persistentVolumeClaim: {claimName: data}}}
"""


def test_what_grows_is_as_large_as_the_disk_that_the_guest_sees(tmp_path: Path) -> None:
    """A qcow2 image says it in its header, and is smaller itself."""
    qcow2 = b"QFI\xfb" + bytes(20) + (3 * GIB).to_bytes(8, "big")
    root = write(tmp_path, {paths.image_volume("root") + "/disk/debian.qcow2": qcow2, paths.disk_image("copy"): ""})
    os.truncate(root / paths.disk_image("copy").lstrip("/"), 5 * MIB)
    (room,) = read_rooms(vmi(tmp_path, below=VOLUMES), Facts(), root)
    assert {growing.volume: growing.size for growing in room.growing} == {
        "scratch": 2 * GIB,
        "root": 3 * GIB,
        "copy": 5 * MIB,
    }
    assert room.free == os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize


def test_what_an_earlier_start_has_written_takes_its_room_already(tmp_path: Path) -> None:
    root = write(tmp_path, {paths.empty_disk("scratch"): bytes(8 * MIB)})
    images = "  volumes: [{name: scratch, emptyDisk: {capacity: 2Gi}}]\n"
    (room,) = read_rooms(vmi(tmp_path, below=images), Facts(), root)
    assert room.growing[0].size <= 2 * GIB - 8 * MIB


def test_more_than_there_is_room_for_is_a_warning() -> None:
    growing = (Growing("scratch", "/a", 2 * GIB), Growing("root", "/b", 3 * GIB))
    assert list(space((Room("/var", 5 * GIB, growing),))) == []
    (found,) = space((Room("/var", 5 * GIB - 1, growing),))
    assert found.level is Level.WARNING
    assert str(found).startswith(
        "/var: has 5119 MiB free, and what the guest writes to 'scratch', 'root' may take 5120 MiB; give the pod more"
    )


def test_without_such_volumes_and_where_nothing_can_be_seen_nothing_is_said(tmp_path: Path) -> None:
    assert read_rooms(vmi(tmp_path), Facts(), tmp_path) == ()
    images = "  volumes: [{name: root, containerDisk: {image: debian}}]\n"
    assert read_rooms(vmi(tmp_path, below=images), Facts(), tmp_path) == ()
