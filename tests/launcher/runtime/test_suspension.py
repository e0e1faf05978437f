"""A guest that is suspended to a claim, with a real QEMU, and goes on in the next pod: each launcher has a mount
namespace of its own (test_faults), the claim is a directory, and the guest counts in its memory what comes to its port.
"""

import filecmp
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from program.ending import Ending
from tests.conftest import Command, Shared
from tests.launcher import kernels
from tests.launcher.control.serving import ctl
from tests.launcher.runtime.test_faults import Launched, Pod, last_line
from tests.processes import ROOT, kill_all
from tests.temporary import SHORT
from tests.waiting import allowed, until

_PLACE = "/var/lib/gpu-launcher-suspended"
_IOHELPER = "/usr/lib/libvirt/libvirt_iohelper"
_UID = "5f0c1a52-6c0f-4a86-9d2b-3a2c8f0b7d11"
_BY_THE_IMAGES = f"mount --bind {ROOT / 'deploy' / 'launcher' / 'libvirt_iohelper'} {_IOHELPER}"


@dataclass(frozen=True)
class Claimed:
    """A VM's claim, and the directory in which its pods are."""

    directory: Path
    pods: Path
    known_qemu: Path

    @property
    def files(self) -> set[str]:
        return {path.name for path in self.directory.iterdir()}

    def pod(self, name: str, **parts: str) -> Pod:
        pod = Pod(run=self.pods / name, vm=self.pods / f"{name}.yaml", path=self.pods / f"bin-{name}")
        pod.path.mkdir()
        shutil.copytree(self.known_qemu, pod.root / "cache")
        pod.write(kernel=kernels.COUNTS, grace=0)
        text = pod.vm.read_text()
        annotated = text.replace(f"uid: {_UID}", f"uid: {_UID}, annotations: {{gpu-launcher.dev/suspend-to: c}}")
        for old, new in parts.items():
            annotated = annotated.replace(old, new)
        pod.vm.write_text(annotated)
        return pod

    @contextmanager
    def launched(self, pod: Pod, more: str = "true") -> Iterator[Launched]:
        mounts = f"mount -t tmpfs none /var/lib && mkdir {_PLACE} && mount --bind {self.directory} {_PLACE} && {more}"
        with pod.launched(mounts) as launched:
            yield launched


@pytest.fixture
def claimed(short_dir: Path, known_qemu: Path) -> Claimed:
    claim = short_dir / "claim"
    claim.mkdir()
    return Claimed(claim, short_dir, known_qemu)


def runs(launched: Launched) -> None:
    """Wait until its guest runs; fail with its log if it ends before."""

    def is_so() -> bool:
        ended = launched.program.process.poll() is not None
        assert not ended, "\n".join(launched.program.log)
        return (launched.pod.root / "ready").exists()

    until(is_so)


def counted(pod: Pod) -> int:
    """Have the guest count once more."""
    path = pod.run / "kubevirt" / "sockets" / _UID / "virt-serial0"
    with socket.socket(socket.AF_UNIX) as port:
        port.settimeout(allowed(30))
        until(path.exists)
        port.connect(str(path))
        while True:
            port.sendall(b"x")
            if answer := port.recv(1):
                return answer[0]


def suspended(claimed: Claimed, pod: Pod, gpu_launcher: Command, mounts: str = "true") -> int:
    """Start a guest, have it count, and suspend it; return what it has counted."""
    with claimed.launched(pod, mounts) as launched:
        runs(launched)
        until(lambda: counted(pod) >= 3)
        before = counted(pod)
        answer = gpu_launcher("ctl", "suspend", "--socket", pod.socket)
        assert (answer.returncode, answer.stderr) == (0, "")
        assert launched.ended(20) == (17, last_line(Ending.SUSPENDED))
    assert claimed.files == {"vm.memory"}
    return before


@pytest.fixture(scope="session")
def saved(shared: Shared, known_qemu: Path, gpu_launcher: Command) -> tuple[Path, int]:
    """The claim of a guest that was suspended once for all tests, and what it had counted."""

    def suspend(directory: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="gl-", dir=SHORT) as short:
            claim = directory / "claim"
            claim.mkdir()
            claimed = Claimed(claim, Path(short), known_qemu)
            (directory / "counted").write_text(str(suspended(claimed, claimed.pod("first"), gpu_launcher)))

    directory = shared("suspended", suspend)
    return directory / "claim", int((directory / "counted").read_text())


@pytest.fixture
def with_saved(claimed: Claimed, saved: tuple[Path, int]) -> Claimed:
    shutil.copytree(saved[0], claimed.directory, dirs_exist_ok=True)
    return claimed


def goes_on(claimed: Claimed, pod: Pod) -> int:
    """Start the VM in a pod; return what its guest counts first, and end it."""
    with claimed.launched(pod) as launched:
        runs(launched)
        first = counted(pod)
        launched.program.send(signal.SIGTERM)
        assert launched.ended(10)[0] == 0
    return first


@pytest.mark.parametrize("mounts", ["true", _BY_THE_IMAGES], ids=["libvirt's helper", "the image's helper"])
def test_a_guest_goes_on_in_its_next_pod_with_its_memory_and_once(
    claimed: Claimed, gpu_launcher: Command, mounts: str
) -> None:
    before = suspended(claimed, claimed.pod("first"), gpu_launcher, mounts)
    assert goes_on(claimed, claimed.pod("second")) == before + 1
    assert claimed.files == set()
    assert goes_on(claimed, claimed.pod("third")) == 1, "it starts anew"


def test_a_container_that_starts_again_in_the_pod_does_not_resume_its_guest(
    claimed: Claimed, gpu_launcher: Command
) -> None:
    pod = claimed.pod("first")
    suspended(claimed, pod, gpu_launcher)
    with claimed.launched(pod) as launched:
        assert launched.ended(20) == (17, last_line(Ending.SUSPENDED))
    assert claimed.files == {"vm.memory"}


_ON_DRAIN = {"suspend-to: c": "suspend-to: c, gpu-launcher.dev/on-drain: suspend"}


def test_a_drained_guest_goes_on_wherever_its_vm_starts_next(claimed: Claimed) -> None:
    """SIGTERM is all that a launcher hears of a drain. Its container may start again in the same pod."""
    pod = claimed.pod("first", **_ON_DRAIN, **{"Seconds: 0": "Seconds: 120"})
    with claimed.launched(pod) as launched:
        runs(launched)
        until(lambda: counted(pod) >= 3)
        before = counted(pod)
        launched.program.send(signal.SIGTERM)
        assert launched.ended(60) == (17, last_line(Ending.SUSPENDED))
    assert claimed.files == {"vm.memory"}
    assert "INFO suspending the guest; it has 60 s of its grace period for that" in launched.program.log
    with claimed.launched(pod) as launched:
        runs(launched)
        assert counted(pod) == before + 1
        assert claimed.files == set()
        launched.program.send(signal.SIGKILL)
        launched.program.end(20)


def test_a_drained_guest_that_is_not_saved_in_half_of_its_grace_period_has_the_rest_to_shut_down(
    claimed: Claimed,
) -> None:
    pod = claimed.pod("first", **_ON_DRAIN, **{"Seconds: 0": "Seconds: 12"})
    with saving_slowly(claimed, pod) as launched:
        launched.program.send(signal.SIGTERM)
        launched.program.wait_for_line("ERROR giving up saving the guest's memory: its pod is to end soon")
        end_helper(launched)
        launched.program.wait_for_line("INFO asking the guest to shut down; it has ")
        assert launched.program.end(60) == 0
    assert claimed.files == set()


def test_a_drained_guest_that_cannot_be_saved_shuts_down(claimed: Claimed) -> None:
    pod = claimed.pod("first", **_ON_DRAIN, **_SCRATCH, **{"Seconds: 0": "Seconds: 1"})
    with claimed.launched(pod) as launched:
        runs(launched)
        launched.program.send(signal.SIGTERM)
        assert launched.ended(30) == (0, last_line(Ending.ON_REQUEST))
    assert any("which ends with the pod" in line for line in launched.program.log)
    assert claimed.files == set()


_SCRATCH = {
    "devices: {": "devices: {disks: [{name: scratch, disk: {bus: virtio}}], ",
    "spec:\n": "spec:\n  volumes: [{name: scratch, emptyDisk: {capacity: 1Mi}}]\n",
}
REFUSED: Mapping[str, tuple[Mapping[str, str], str, str]] = {
    "a disk that ends with the pod": (
        _SCRATCH,
        "true",
        "scratch: what the guest writes to it is in /var/run/libvirt/empty-disks/scratch.qcow2, which ends with",
    ),
    "too little room on the claim": ({}, f"mount -t tmpfs -o size=60m none {_PLACE}", "MiB free, and the guest's mem"),
    "libvirt cannot write": ({}, f"mount --bind /bin/false {_IOHELPER}", "libvirt: cannot save the domain: "),
    "no claim": ({"suspend-to: c": 'suspend-to: ""'}, "true", "default/vm: has no claim for its memory"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_guest_that_cannot_be_suspended_goes_on(claimed: Claimed, gpu_launcher: Command, why: str) -> None:
    parts, mounts, says = REFUSED[why]
    pod = claimed.pod("first", **parts)
    with claimed.launched(pod, mounts) as launched:
        runs(launched)
        until(lambda: counted(pod) >= 1)
        answer = gpu_launcher("ctl", "suspend", "--socket", pod.socket)
        assert answer.returncode == 1
        assert says in answer.stderr
        assert counted(pod) >= 2
        assert claimed.files == set()
        launched.program.send(signal.SIGTERM)
        launched.program.end(10)


@contextmanager
def saving_slowly(claimed: Claimed, pod: Pod) -> Iterator[Launched]:
    """A guest that, if it is saved, is saved for ever."""
    helper = claimed.pods / "iohelper"
    helper.write_text(f"#!/bin/sh\ntouch {claimed.pods}/saves\nexec sleep 600\n")
    helper.chmod(0o755)
    with claimed.launched(pod, f"mount --bind {helper} {_IOHELPER}") as launched:
        runs(launched)
        until(lambda: counted(pod) >= 1)
        yield launched


@contextmanager
def being_saved(claimed: Claimed, pod: Pod) -> Iterator[Launched]:
    """A guest that is being saved, which goes on for ever."""
    with (
        saving_slowly(claimed, pod) as launched,
        ctl("suspend", pod.socket, stderr=subprocess.PIPE) as asking,
    ):
        until((claimed.pods / "saves").exists)
        yield launched
        asking.kill()


def end_helper(launched: Launched) -> None:
    """Have it end as any other would: libvirt waits for it, and the launcher 35 s for libvirt."""
    kill_all([pid for pid, name in launched.processes().items() if name == "sleep"])


KILLED: Mapping[str, tuple[Callable[[Launched], object], set[int]]] = {
    "worker": (lambda launched: os.kill(launched.worker, signal.SIGKILL), {137}),
    "QEMU": (lambda launched: os.kill(launched.qemu, signal.SIGKILL), {12, 1}),
    "supervisor": (lambda launched: os.kill(launched.program.process.pid, signal.SIGKILL), {-9}),
    "stop": (lambda launched: launched.program.send(signal.SIGTERM), {0}),
    "everything": (lambda launched: kill_all(launched.processes()), {-9}),
}


@pytest.mark.parametrize("killed", KILLED)
def test_half_a_file_is_never_resumed(claimed: Claimed, killed: str) -> None:
    kill, codes = KILLED[killed]
    with being_saved(claimed, claimed.pod("first")) as launched:
        kill(launched)
        if killed != "stop":
            end_helper(launched)
        assert launched.program.end(60) in codes, launched.program.log
        # Its helper sleeps; with a supervisor as the pod's process 1 the kernel ends it too.
        until(lambda: not {*launched.processes().values()} - {"sleep"})
    assert claimed.files <= {"vm.memory.half"}


def test_a_guest_begins_anew_beside_half_a_file(with_saved: Claimed) -> None:
    (with_saved.directory / "vm.memory").rename(with_saved.directory / "vm.memory.half")
    assert goes_on(with_saved, with_saved.pod("second")) == 1


def test_nobody_resumes_a_guest_while_it_is_saved(claimed: Claimed, gpu_launcher: Command) -> None:
    """It would run twice: here, and from the file."""
    pod = claimed.pod("first")
    with being_saved(claimed, pod) as launched:
        for words in ("resume", "pause", "reset", "suspend"):
            answer = gpu_launcher("ctl", words, "--socket", pod.socket)
            assert answer.returncode == 1
            assert "is being suspended" in answer.stderr
        assert gpu_launcher("ctl", "kill", "--socket", pod.socket).returncode == 0
        until(lambda: any("reason=destroyed" in line for line in launched.program.log))
        end_helper(launched)
        assert launched.program.end(20) == 0


@pytest.mark.parametrize("killed", ["worker", "supervisor", "stop", "everything"])
def test_a_start_that_is_killed_leaves_the_file(with_saved: Claimed, saved: tuple[Path, int], killed: str) -> None:
    second = with_saved.pod("second")
    second.put_before_qemu("time.sleep(600)")
    with with_saved.launched(second) as launched:
        launched.is_starting()
        KILLED[killed][0](launched)
        launched.program.end(60)
        until(lambda: launched.processes() == {})
    assert with_saved.files == {"vm.memory"}
    assert filecmp.cmp(with_saved.directory / "vm.memory", saved[0] / "vm.memory", shallow=False)
    if killed == "everything":
        assert goes_on(with_saved, with_saved.pod("third")) == saved[1] + 1


OTHER: Mapping[str, tuple[Mapping[str, str], str]] = {
    "CPU": ({"model: qemu64": "model: Nehalem"}, "CPU model Nehalem does not match source qemu64"),
    "machine": ({"    cpu:": "    machine: {type: pc-q35-6.2}\n    cpu:"}, "machine type pc-q35-6.2 does not match"),
    "memory": ({"guest: 64Mi": "guest: 96Mi"}, "max memory 98304 does not match source 65536"),
    "devices": ({"panicDevices: [{}]": "watchdog: {name: w, i6300esb: {}}"}, "does not match source"),
}


@pytest.mark.parametrize("other", OTHER)
def test_another_guest_is_refused_by_what_is_other_and_its_file_stays(with_saved: Claimed, other: str) -> None:
    parts, says = OTHER[other]
    with with_saved.launched(with_saved.pod("second", **parts)) as launched:
        code, line = launched.ended(20)
    assert code == 1
    assert line.startswith(f"ERROR libvirt: cannot resume the guest of {_PLACE}/vm.memory: ")
    assert says in line
    assert with_saved.files == {"vm.memory"}


_OF_NODE = {
    "devices: {": "devices: {disks: [{name: data, disk: {bus: virtio}}], ",
    "spec:\n": "spec:\n  volumes: [{name: data, "
    "hostDisk: {path: /data/data.img, type: DiskOrCreate, capacity: 1Mi}}]\n",
}


@pytest.mark.parametrize(
    ("parts", "disk"),
    [(_OF_NODE, "/var/run/kubevirt-private/vmi-disks/data/data.img"), (_SCRATCH, "scratch")],
    ids=["a hostDisk of another node", "an emptyDisk"],
)
def test_a_guest_is_not_resumed_with_a_disk_that_is_new(
    with_saved: Claimed, parts: Mapping[str, str], disk: str
) -> None:
    pod = with_saved.pod("second", **parts)
    place = pod.run / "kubevirt-private/vmi-disks/data"
    place.mkdir(parents=True)
    with with_saved.launched(pod) as launched:
        code, line = launched.ended(20)
    assert (code, line.partition(" for the suspended guest")[0]) == (1, f"ERROR {disk}: would be a new disk")
    assert ([*place.iterdir()], with_saved.files) == ([], {"vm.memory"})


def test_a_guest_that_may_have_run_from_a_file_is_not_resumed_from_it_again(claimed: Claimed) -> None:
    (claimed.directory / "vm.memory.resumed").touch()
    with claimed.launched(claimed.pod("first")) as launched:
        code, line = launched.ended(20)
    assert (code, "was about to run when its launcher ended, and may have run" in line) == (1, True)
    assert claimed.files == {"vm.memory.resumed"}
