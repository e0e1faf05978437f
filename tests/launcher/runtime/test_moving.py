"""A guest that moves from one launcher to another, with a real QEMU: each launcher has a mount namespace of its own
(test_faults), both have the directory with the guest's disk, and the guest counts in its memory what comes to its port.
"""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from program.ending import Ending
from tests.launcher import kernels
from tests.launcher.runtime.test_faults import Launched, Pod, arguments_of, last_line
from tests.launcher.runtime.test_suspension import counted, runs
from tests.processes import BIN, kill_all
from tests.waiting import until

_DISK = "/run/kubevirt-private/vmi-disks/data"
_DEVICES = {
    "devices: {": "devices: {disks: [{name: data, disk: {bus: virtio}}], ",
    "spec:\n": "spec:\n  volumes: [{name: data, persistentVolumeClaim: {claimName: c}}]\n",
}


@dataclass(frozen=True)
class Move:
    """Two pods of one VM, and the directory with its disk."""

    directory: Path
    source: Pod
    target: Pod

    @contextmanager
    def launched(self, pod: Pod, more: str = "true") -> Iterator[Launched]:
        mounts = f"mkdir -p {_DISK} && mount --bind {self.directory / 'disk'} {_DISK} && {more}"
        flags = ("--receive",) if pod is self.target else ()
        with pod.launched(mounts, flags=flags) as launched:
            yield launched

    @contextmanager
    def both(self, more: str = "true") -> Iterator[tuple[Launched, Launched]]:
        """A guest that runs, and has counted to 3 at least, and a launcher that waits for it."""
        with self.launched(self.source) as source, self.launched(self.target, more) as target:
            runs(source)
            until(lambda: counted(self.source) >= 3)
            target.program.wait_for_line("INFO waiting for the guest of another launcher")
            yield source, target

    def invitation(self, **changes: object) -> bytes:
        answer = subprocess.run(
            [BIN / "gpu-launcher", "ctl", "receive", "0", "--socket", self.target.socket],
            capture_output=True,
            check=True,
            timeout=60,
        )
        return json.dumps({**json.loads(answer.stdout), **changes}).encode()

    @contextmanager
    def sending(self, invitation: bytes) -> Iterator[subprocess.Popen[bytes]]:
        file = self.directory / "invitation"
        file.write_bytes(invitation)
        words: list[str | Path] = [BIN / "gpu-launcher", "ctl", "send", "127.0.0.1", "--socket", self.source.socket]
        with file.open("rb") as given, subprocess.Popen(words, stdin=given, stderr=subprocess.PIPE) as process:
            try:
                yield process
            finally:
                process.kill()

    def send(self, invitation: bytes | None = None) -> tuple[int, str]:
        with self.sending(self.invitation() if invitation is None else invitation) as process:
            _, words = process.communicate(timeout=120)
            return process.returncode, words.decode()


@pytest.fixture
def move(short_dir: Path, known_qemu: Path) -> Move:
    def pod(name: str) -> Pod:
        pod = Pod(run=short_dir / name, vm=short_dir / f"{name}.yaml", path=short_dir / f"bin-{name}")
        pod.path.mkdir()
        shutil.copytree(known_qemu, pod.root / "cache")
        pod.write(kernel=kernels.COUNTS, grace=0)
        text = pod.vm.read_text()
        for old, new in _DEVICES.items():
            text = text.replace(old, new)
        pod.vm.write_text(text)
        return pod

    (short_dir / "disk").mkdir()
    with (short_dir / "disk" / "disk.img").open("wb") as disk:
        disk.truncate(1 << 20)
    return Move(short_dir, pod("s"), pod("t"))


def stops(launched: Launched) -> None:
    launched.program.send(signal.SIGTERM)
    assert launched.ended(10)[0] == 0


def test_a_guest_goes_on_in_the_other_pod_with_its_memory_and_its_disk(move: Move) -> None:
    with move.both() as (source, target):
        before = counted(move.source)
        assert move.send() == (0, "")
        assert source.ended(20) == (18, last_line(Ending.MOVED))
        runs(target)
        assert counted(move.target) == before + 1
        stops(target)
    assert [*(move.target.root / "moved-here").iterdir()] == []


def restores_slowly(move: Move) -> Path:
    """Have the target's QEMU wait; return the file that lets it go on."""
    go = move.directory / "go"
    move.target.put_before_qemu(f"[time.sleep(0.05) for _ in iter(lambda: os.path.exists({str(go)!r}), True)]")
    return go


def is_restoring(target: Launched) -> None:
    until(lambda: any(b"guest=" in arguments_of(pid) for pid in target.processes()), 120, lambda: target.program.log)


def goes_on(move: Move, at: Pod, launched: Launched, before: int) -> None:
    runs(launched)
    assert counted(at) == before + 1
    stops(launched)


@contextmanager
def in_doubt(move: Move) -> Iterator[tuple[Launched, Launched, int]]:
    """The guest is at the target, completely, and its source has not heard of it; then the source's launcher hangs.
    Yield what the guest has counted, too."""
    go = restores_slowly(move)
    with move.both() as (source, target):
        before = counted(move.source)
        with move.sending(move.invitation()):
            is_restoring(target)
            os.kill(source.worker, signal.SIGSTOP)
            go.touch()
            until(lambda: (move.target.root / "moved-here" / "vm.memory").exists())
            yield source, target, before


KILLED: Mapping[str, Callable[[Launched], object]] = {
    "worker": lambda launched: os.kill(launched.worker, signal.SIGKILL),
    "QEMU": lambda launched: os.kill(launched.qemu, signal.SIGKILL),
    "stop": lambda launched: launched.program.send(signal.SIGTERM),
    "everything": lambda launched: kill_all(launched.processes()),
}


@pytest.mark.parametrize("killed", KILLED)
def test_a_guest_stays_where_it_was_if_its_target_is_killed_while_it_restores_it(move: Move, killed: str) -> None:
    restores_slowly(move)
    with move.both() as (source, target):
        before = counted(move.source)
        with move.sending(move.invitation()) as sending:
            is_restoring(target)
            KILLED[killed](target)
            _, words = sending.communicate(timeout=120)
            assert (sending.returncode, "launcher" in words.decode()) == (1, True)
        target.program.end(60)
        goes_on(move, move.source, source, before)


@pytest.mark.parametrize("killed", ["worker", "QEMU", "stop", "everything"])
def test_a_target_whose_source_is_killed_meanwhile_runs_nothing(move: Move, killed: str) -> None:
    """Its guest ends as it does without a move, and its next start boots it."""
    restores_slowly(move)
    with move.both() as (source, target):
        with move.sending(move.invitation()):
            is_restoring(target)
            KILLED[killed](source)
            assert source.program.end(60) in (0, 1, 12, 137, -9)
        (move.directory / "go").touch()
        target.program.wait_for_line("ERROR [")
        assert not (move.target.root / "ready").exists()
        assert not (move.source.root / "moved").exists()


def test_a_guest_that_is_handed_over_by_hand_goes_on(move: Move) -> None:
    with in_doubt(move) as (source, target, before):
        kill_all(source.processes())
        target.program.wait_for_line("ERROR [")
        assert not (move.target.root / "ready").exists()
        assert take(move) == 0
        goes_on(move, move.target, target, before)


@pytest.mark.parametrize("is_marked", [True, False], ids=["after it was handed over", "before"])
def test_a_guest_is_whole_in_its_targets_file_if_that_is_killed(move: Move, is_marked: bool) -> None:
    with in_doubt(move) as (source, target, before):
        kill_all(source.processes())
        target.program.wait_for_line("ERROR [")
        kill_all(target.processes())
        target.program.end(30)
    if is_marked:
        (move.target.root / "taken").touch()
    with move.launched(move.target) as again:
        if not is_marked:
            again.program.wait_for_line("INFO waiting for the guest of another launcher")
            assert take(move) == 0
        goes_on(move, move.target, again, before)
    with move.launched(move.target) as restarted:
        goes_on(move, move.target, restarted, 0)


def take(move: Move) -> int:
    return subprocess.run(
        [BIN / "gpu-launcher", "ctl", "take", "--socket", move.target.socket], check=False, timeout=60
    ).returncode


def test_a_pod_that_a_guest_has_left_does_not_run_it_again(move: Move) -> None:
    (move.source.root / "moved").touch()
    with move.launched(move.source) as source:
        assert source.ended(20) == (18, last_line(Ending.MOVED))


REFUSED: Mapping[str, tuple[Mapping[str, str], Mapping[str, object], str]] = {
    "another CPU": ({"model: qemu64": "model: Nehalem"}, {}, "CPU model Nehalem does not match source qemu64"),
    "other memory": ({"guest: 64Mi": "guest: 96Mi"}, {}, "has 67108864 bytes of memory, and here are 100663296"),
    "a stranger's certificate": ({}, {"fingerprint": "0" * 64}, "is not the launcher that is to receive the guest"),
    "another token": ({}, {"token": "0" * 64}, "the connection is lost: "),
    "no address": ({}, {"port": 1}, "the connection is lost: Connection refused"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_guest_that_cannot_be_received_stays_where_it_was(move: Move, why: str) -> None:
    parts, changes, says = REFUSED[why]
    text = move.target.vm.read_text()
    for old, new in parts.items():
        text = text.replace(old, new)
    move.target.vm.write_text(text)
    with move.both() as (source, target):
        before = counted(move.source)
        code, words = move.send(move.invitation(**changes))
        assert (code, says in words) == (1, True), words
        goes_on(move, move.source, source, before)
        target.program.send(signal.SIGTERM)
        target.program.end(20)


def test_a_guest_whose_memory_cannot_be_written_stays_where_it_was(move: Move) -> None:
    place = "/run/gpu-launcher/moved-here"
    with move.both(f"mkdir -p {place} && mount -t tmpfs -o size=60m none {place}") as (source, _):
        before = counted(move.source)
        code, words = move.send()
        assert (code, "MiB free, and the guest's memory may need" in words) == (1, True), words
        goes_on(move, move.source, source, before)


def test_a_launcher_that_waits_for_a_guest_ends_as_any_other(move: Move) -> None:
    with move.launched(move.target) as target:
        target.program.wait_for_line("INFO waiting for the guest of another launcher")
        assert take(move) == 1
        assert target.program.log[-1].startswith("INFO")
        target.program.send(signal.SIGTERM)
        assert target.ended(10) == (0, last_line(Ending.NOT_STARTED))
