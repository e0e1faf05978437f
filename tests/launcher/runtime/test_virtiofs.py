"""virtiofsd as a child: what it is given, how it ends, and what is left.

The program here is a shell's, since it has just to start, to say something and to end; test_faults.py has a real one,
and tests/image a guest that mounts.
"""

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.runtime.virtiofs import forget, serving_shares
from launcher.vm.volumes.media import Share
from program.errors import Refusal
from tests.waiting import until

Programs = Callable[[str], str]


@pytest.fixture
def share(short_dir: Path) -> Share:
    (short_dir / "data").mkdir()
    return Share("data", short_dir / "data", short_dir / "sockets" / "data.sock", read_only=False)


@pytest.fixture
def program(short_dir: Path) -> Programs:
    """A program of these commands."""

    def write(commands: str) -> str:
        path = short_dir / "virtiofsd"
        path.write_text(f"#!/bin/sh\n{commands}\n")
        path.chmod(0o755)
        return str(path)

    return write


def test_it_serves_the_directory_on_the_socket_and_nothing_is_left(
    share: Share, program: Programs, short_dir: Path
) -> None:
    lost = threading.Event()
    with serving_shares([share], lost.set, program(f'echo "$@" > {short_dir}/arguments; exec sleep 60')):
        until(lambda: (short_dir / "arguments").exists() and (short_dir / "arguments").read_text() != "")
        words = (short_dir / "arguments").read_text().split()
        assert words[0].startswith("--fd=")
        assert words[1:4] == [f"--shared-dir={share.directory}", "--sandbox=none", "--cache=auto"]
        assert "--readonly" not in words
        assert share.socket.is_socket()
        assert share.socket.stat().st_mode & 0o777 == 0o600
        with socket.socket(socket.AF_UNIX) as qemu:
            qemu.connect(str(share.socket))
    assert not share.socket.parent.exists()
    assert not lost.is_set()


def test_what_the_guest_may_not_write_is_read_only(share: Share, program: Programs, short_dir: Path) -> None:
    to_read = Share(share.name, share.directory, share.socket, read_only=True)
    with serving_shares([to_read], print, program(f'echo "$@" > {short_dir}/arguments; exec sleep 60')):
        until(lambda: (short_dir / "arguments").exists() and "--readonly" in (short_dir / "arguments").read_text())


@pytest.mark.parametrize(
    ("commands", "how"),
    [("echo no more >&2; exit 3", "it has ended with 3"), ("kill -9 $$", "signal SIGKILL has ended it")],
)
def test_an_end_that_nobody_wanted_is_told_with_its_last_words(
    share: Share, program: Programs, commands: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    lost = threading.Event()
    with serving_shares([share], lost.set, program(commands)):
        assert lost.wait(10)
        assert f"the guest has lost the volume data: virtiofsd is gone, {how}" in caplog.messages
        if "echo" in commands:
            assert "virtiofsd of data: no more" in caplog.messages
        with pytest.raises(ConnectionRefusedError), socket.socket(socket.AF_UNIX) as qemu:
            qemu.connect(str(share.socket))


def test_an_end_after_qemus_is_as_it_should_be(share: Share, program: Programs, short_dir: Path) -> None:
    lost = threading.Event()
    with serving_shares([share], lost.set, program(f"touch {short_dir}/ended; exit 0")):
        until(lambda: (short_dir / "ended").exists())
        assert not lost.wait(0.3)


def test_one_that_does_not_end_when_it_is_told_to_is_killed(share: Share, program: Programs, short_dir: Path) -> None:
    with serving_shares(
        [share], print, program(f"trap '' TERM; echo $$ > {short_dir}/pid; while :; do sleep 0.1; done")
    ):
        until(lambda: (short_dir / "pid").exists() and (short_dir / "pid").read_text() != "")
    with pytest.raises(ProcessLookupError):
        os.kill(int((short_dir / "pid").read_text()), 0)


def test_of_two_of_which_the_second_cannot_be_started_nothing_is_left(share: Share, program: Programs) -> None:
    long = Share("long", share.directory, share.socket.with_name("x" * 120), read_only=False)
    wrong = "virtiofsd cannot be started for the volume 'long': AF_UNIX path too long"
    with pytest.raises(Refusal, match=wrong), serving_shares([share, long], print, program("exec sleep 60")):
        pass
    assert not share.socket.parent.exists()


def test_a_program_that_is_not_there_is_named(share: Share) -> None:
    wrong = "/nowhere/virtiofsd: is not there, and serves the guest's file systems; install virtiofsd"
    with pytest.raises(Refusal, match=wrong), serving_shares([share], print, "/nowhere/virtiofsd"):
        pass
    assert not share.socket.parent.exists()


def test_what_a_killed_launcher_has_left_is_in_nobodys_way_and_can_be_taken_away(
    share: Share, program: Programs
) -> None:
    share.socket.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(share.socket))
    with serving_shares([share], print, program("exec sleep 60")):
        assert share.socket.is_socket()
    share.socket.touch()
    forget([share])
    assert not share.socket.parent.exists()
