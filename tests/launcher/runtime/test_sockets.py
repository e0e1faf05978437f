import socket
from pathlib import Path

import pytest

from launcher.runtime.sockets import socket_directory
from program.errors import Refusal


def listen(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))


def test_the_directory_is_there_within_and_gone_afterwards_with_what_a_killed_qemu_left(short_dir: Path) -> None:
    directory = short_dir / "sockets" / "vm"
    with socket_directory(directory):
        listen(directory / "virt-serial0")
    assert list(short_dir.iterdir()) == []


def test_what_was_there_before_stays_and_so_does_a_log(short_dir: Path) -> None:
    directory = short_dir / "sockets" / "vm"
    directory.parent.mkdir()
    with socket_directory(directory):
        listen(directory / "virt-serial0")
        (directory / "virt-serial0-log").write_text("login:")
    assert [path.name for path in directory.iterdir()] == ["virt-serial0-log"]


def test_the_directory_of_a_launcher_that_was_killed_goes_and_what_is_above_it_stays(short_dir: Path) -> None:
    directory = short_dir / "sockets" / "vm"
    directory.mkdir(parents=True)
    listen(directory / "virt-serial0")
    with socket_directory(directory):
        pass
    assert not directory.exists()
    assert directory.parent.is_dir()


def test_a_file_in_the_way_is_one_line_and_nothing_is_left(short_dir: Path) -> None:
    (short_dir / "file").touch()
    with pytest.raises(Refusal, match=f"{short_dir}/file to be a directory") as error:
        socket_directory(short_dir / "file" / "a" / "b").__enter__()
    assert "\n" not in str(error.value)
    assert [path.name for path in short_dir.iterdir()] == ["file"]
