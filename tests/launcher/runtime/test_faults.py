"""What can happen to a VM and its launcher, with a real QEMU: each end has its exit code and last line, comes in time,
and leaves nothing.

Each launcher has a mount namespace of its own, where /run is a directory of the test's: so it runs as in its pod, by
its own paths; and what is in that namespace when it has ended is what it has left.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from launcher.runtime.qemu_log import printed
from launcher.vm import paths
from program.ending import Ending
from tests import forked
from tests.conftest import Command
from tests.launcher import kernels
from tests.processes import Program, children, kill_all, running
from tests.waiting import allowed, until

DOMAIN = "default_vm"
_KERNEL = "{kernelBoot: {container: {image: x, kernelPath: /kernel}}}"
_ALONE = 'mount --bind "$0" /run && {}'
_AS_PROCESS_1 = 'unshare --pid --fork --kill-child sh -c \'mount -t proc proc /proc && exec "$0" "$@"\''
_BEFORE_QEMU = """#!{python}
import os, sys, time
if any("guest=" in argument for argument in sys.argv):
    {body}
os.execv("{qemu}", sys.argv)
"""


# Where Debian 12 has no virtiofsd of today: QEMU's former one, in C, which has other words and wants to be root.
_VIRTIOFSD = """#!/bin/sh
for word; do
    case $word in --fd=*) fd=$word ;; --shared-dir=*) directory=${word#*=} ;; esac
done
exec /usr/lib/qemu/virtiofsd "$fd" -o source="$directory" -o sandbox=chroot
"""


@dataclass(frozen=True)
class Pod:
    """A launcher's place: `run` is its /run, and `vm` its manifest."""

    run: Path
    vm: Path
    path: Path

    @property
    def root(self) -> Path:
        return self.run / "gpu-launcher"

    def write(
        self, *, kernel: bytes = kernels.IGNORES, grace: int = 1, firmware: str = _KERNEL, domain: str = ""
    ) -> None:
        """A VM with a serial console, whose guest is that kernel."""
        boot = self.run / "kubevirt" / "kernel-image"
        boot.mkdir(parents=True, exist_ok=True)
        (boot / "kernel").write_bytes(kernels.multiboot(kernel))
        self.vm.write_text(
            "apiVersion: kubevirt.io/v1\n"
            "kind: VirtualMachineInstance\n"
            "metadata: {name: vm, uid: 5f0c1a52-6c0f-4a86-9d2b-3a2c8f0b7d11}\n"
            "spec:\n"
            f"  terminationGracePeriodSeconds: {grace}\n"
            "  domain:\n"
            "    cpu: {model: qemu64}\n"
            "    memory: {guest: 64Mi}\n"
            f"    firmware: {firmware}\n"
            "    devices: {autoattachPodInterface: false, autoattachGraphicsDevice: false, panicDevices: [{}]}\n"
            f"{domain}"
        )

    @property
    def socket(self) -> Path:
        return self.run / "kubevirt" / "sockets" / "launcher-sock"

    def have_qemu_hang(self) -> None:
        """Have it never answer, whatever libvirt asks of it; which has not asked yet."""
        shutil.rmtree(self.root / "cache")
        program = self.path / "qemu-system-x86_64"
        asked = self.path / "asked"
        program.write_text(f"#!/bin/sh\ntrap '' TERM\necho > {asked}\nwhile :; do sleep 60; done\n")
        program.chmod(0o755)

    def put_before_qemu(self, body: str) -> None:
        """Have Python do that where QEMU would run a guest; libvirt's questions it answers."""
        program = self.path / "qemu-system-x86_64"
        qemu = shutil.which("qemu-system-x86_64")
        program.write_text(_BEFORE_QEMU.format(python=sys.executable, body=body, qemu=qemu))
        program.chmod(0o755)

    @contextmanager
    def launched(self, mounts: str = "true", by: str = "", flags: tuple[str, ...] = ()) -> Iterator["Launched"]:
        """A launcher with these flags; `mounts` is a shell's command line, run before it in its mount namespace, and
        `by` execs it."""
        command: tuple[str | Path, ...] = ("run", "--vm", self.vm, "--emulation", *flags)
        env = {"PATH": f"{self.path}:{os.environ['PATH']}"}
        alone = _ALONE.format(mounts)
        if by or os.geteuid() != 0:
            user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
            within = ("unshare", *user, "--mount", "sh", "-c", f'{alone} && exec {by} "$@"', self.run)
            launcher = running("gpu-launcher", *command, env=env, within=within)
        else:
            launcher = forked.running("gpu-launcher", *command, env=env, first=partial(_mount, alone, self.run))
        with launcher as program:
            here = _namespace(os.getpid())
            until(lambda: _namespace(program.process.pid) != here)
            # Held open, or the kernel would give its number to somebody else's.
            with Path(f"/proc/{program.process.pid}/ns/mnt").open("rb"):
                launched = Launched(self, program, _namespace(program.process.pid))
                try:
                    yield launched
                finally:
                    kill_all(launched.processes())

    def left(self) -> set[str]:
        """What a launcher has left in /run of this VM, but for its log: libvirt's own files are nobody's.

        qmp-XXXXXX is libvirt's: the socket of a QEMU that it asks for its capabilities. A launcher that ends in that
        moment leaves it.
        """
        paths = {str(path.relative_to(self.run)): path for path in self.run.rglob("*")}
        asked = "gpu-launcher/lib/qemu/qmp-"
        sockets = {name for name, path in paths.items() if path.is_socket() and not name.startswith(asked)}
        named = {name for name in paths if DOMAIN in name and not name.startswith("gpu-launcher/log/")}
        return (
            sockets | named | {name for name in paths if name.startswith(("kubevirt/sockets/", "gpu-launcher/ready"))}
        )


@dataclass(frozen=True)
class Launched:
    pod: Pod
    program: Program
    namespace: str

    def processes(self) -> dict[int, str]:
        """All that are in its mount namespace: their names, by process id."""
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if str((process / "ns" / "mnt").readlink()) == self.namespace:
                    found[int(process.name)] = (process / "comm").read_text().strip()
            except OSError:
                continue  # it has ended meanwhile
        return found

    @property
    def qemu(self) -> int:
        (pid,) = (pid for pid, name in self.processes().items() if name.startswith("qemu-system"))
        return pid

    @property
    def worker(self) -> int:
        return _child(self.program.process.pid)

    def is_running(self) -> None:
        self.program.wait_for_line(f"INFO {DOMAIN} is running")
        until(lambda: (self.pod.root / "ready").exists())

    def is_starting(self) -> None:
        """The slow QEMU is there, and libvirt waits for it."""
        self.program.wait_for_line("INFO QEMU: ")
        until(lambda: any(b"guest=" in arguments_of(pid) for pid in self.processes()))

    def ended(self, seconds: float) -> tuple[int, str]:
        """Its exit code and last line; within so many seconds, with no process left and nothing in its /run."""
        code = self.program.end(seconds)
        assert self.processes() == {}
        assert self.pod.left() == set(), "\n".join(self.program.log[-4:])
        assert not any("Traceback" in line for line in self.program.log), self.program.log
        return code, self.program.log[-1] if self.program.log else ""


def _mount(mounts: str, run: Path) -> None:
    """Do that in a mount namespace of this process's own, as unshare(1) does for a program that it execs."""
    assert ctypes.CDLL(None).unshare(0x00020000) == 0  # CLONE_NEWNS
    subprocess.run(["sh", "-c", f"mount --make-rprivate / && {mounts}", run], check=True)


def _namespace(pid: int) -> str:
    return str(Path(f"/proc/{pid}/ns/mnt").readlink())


def _child(pid: int) -> int:
    """Of a process, the one child that is not QEMU."""
    (found,) = (child for child in children(pid) if b"guest=" not in arguments_of(child))
    return found


def arguments_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture
def pod(short_dir: Path, known_qemu: Path) -> Pod:
    pod = Pod(run=short_dir / "run", vm=short_dir / "vm.yaml", path=short_dir / "bin")
    pod.path.mkdir()
    shutil.copytree(known_qemu, pod.root / "cache")
    pod.write()
    return pod


def last_line(ending: Ending) -> str:
    return f"{'ERROR' if ending.code else 'INFO'} {DOMAIN} has ended: {ending.words}"


@pytest.mark.parametrize(
    ("kernel", "domain", "ending"),
    [
        (kernels.POWERS_OFF, "", Ending.POWERED_OFF),
        (kernels.REBOOTS, "    rebootPolicy: Terminate\n", Ending.REBOOTED),
        (kernels.PANICS, "", Ending.PANICKED),
    ],
    ids=["powers off", "reboots", "panics"],
)
def test_what_the_guest_does_is_told_by_the_exit_code(pod: Pod, kernel: bytes, domain: str, ending: Ending) -> None:
    pod.write(kernel=kernel, domain=domain)
    with pod.launched() as launched:
        assert launched.ended(20) == (ending.code, last_line(ending))


def test_a_guest_that_reboots_by_its_policy_goes_on(pod: Pod) -> None:
    """What it does after SeaBIOS is to reboot again."""
    pod.write(kernel=kernels.REBOOTS, grace=0)
    with pod.launched() as launched:
        launched.is_running()
        qemu = launched.qemu
        time.sleep(1.5)
        assert launched.qemu == qemu
        launched.program.send(signal.SIGTERM)
        assert launched.ended(5) == (0, last_line(Ending.ON_REQUEST))


def test_a_guest_that_is_to_run_to_its_end_has_failed_if_it_is_asked_to_end_before(pod: Pod) -> None:
    """As in a Job, which would be complete with 0."""
    with pod.launched(flags=("--to-its-end",)) as launched:
        launched.is_running()
        launched.program.send(signal.SIGTERM)
        assert launched.ended(10) == (16, last_line(Ending.INTERRUPTED))
    pod.write(kernel=kernels.POWERS_OFF)
    with pod.launched(flags=("--to-its-end",)) as launched:
        assert launched.ended(30) == (0, last_line(Ending.POWERED_OFF))


def test_a_guest_that_obeys_shuts_down_when_it_hears_the_button_at_last(pod: Pod) -> None:
    """Its firmware doesn't: the first time is too early."""
    pod.write(kernel=kernels.OBEYS, grace=60)
    with pod.launched() as launched:
        launched.is_running()
        launched.program.send(signal.SIGTERM)
        assert launched.ended(20) == (0, last_line(Ending.ON_REQUEST))
    assert "INFO asking the guest to shut down; it has 60 s left" in launched.program.log


def test_a_guest_that_ignores_the_button_ends_with_its_grace_period(pod: Pod) -> None:
    with pod.launched() as launched:
        launched.is_running()
        asked = time.monotonic()
        launched.program.send(signal.SIGTERM)
        assert launched.ended(10) == (0, last_line(Ending.ON_REQUEST))
        assert time.monotonic() - asked < allowed(5), "its grace period is 1 s"
    assert "WARNING the guest is still there after its grace period; ending it" in launched.program.log


def test_a_stop_is_heard_whichever_of_the_workers_threads_the_kernel_gives_it(pod: Pod) -> None:
    pod.write(grace=0)
    with pod.launched() as launched:
        launched.is_running()
        threads = sorted(int(thread.name) for thread in Path(f"/proc/{launched.worker}/task").iterdir())
        assert threads[0] == launched.worker
        # Not the main one, nor the one that listens; one that asked libvirt something may have ended meanwhile.
        tgkill = ctypes.CDLL(None).tgkill
        assert any(tgkill(launched.worker, thread, signal.SIGTERM) == 0 for thread in threads[2:])
        assert launched.ended(10) == (0, last_line(Ending.ON_REQUEST))


def test_a_guest_without_acpi_is_not_asked(pod: Pod) -> None:
    pod.write(grace=600, domain="    features: {acpi: {enabled: false}}\n")
    with pod.launched() as launched:
        launched.is_running()
        launched.program.send(signal.SIGTERM)
        assert launched.ended(5) == (0, last_line(Ending.ON_REQUEST))
    assert not any("asking" in line for line in launched.program.log)


def test_a_launcher_that_is_not_root_and_may_do_nothing_special_runs_a_guest(pod: Pod) -> None:
    pod.write(grace=0)
    with pod.launched(by="unshare --user --map-user=107 --map-group=107") as launched:
        launched.is_running()
        status = Path(f"/proc/{launched.qemu}/status").read_text()
        assert "CapEff:\t0000000000000000" in status
        assert 'user = "+107"' in (pod.root / "etc" / "qemu.conf").read_text()
        launched.program.send(signal.SIGTERM)
        assert launched.ended(10) == (0, last_line(Ending.ON_REQUEST))


@contextmanager
def sharing(pod: Pod, kernel: bytes) -> Iterator["Launched"]:
    """A launcher of a guest that has a file system, with a virtiofsd."""
    directory = pod.run / "kubevirt-private" / "vmi-disks" / "data"
    directory.mkdir(parents=True)
    volume = "  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]\n"
    pod.write(kernel=kernel, domain=volume, grace=60)
    vm = pod.vm.read_text().replace("devices: {", "devices: {filesystems: [{name: data, virtiofs: {}}], ")
    pod.vm.write_text(vm)
    mounts = "true"
    if not Path(paths.VIRTIOFSD).exists():
        (pod.path / "virtiofsd").write_text(_VIRTIOFSD)
        mounts = f"mount -t tmpfs none /usr/libexec && install -m 755 {pod.path}/virtiofsd {paths.VIRTIOFSD}"
    with pod.launched(mounts) as launched:
        try:
            launched.is_running()
            yield launched
        finally:
            directory.rmdir()
            directory.parent.rmdir()


def test_a_guest_whose_virtiofsd_is_killed_is_asked_to_shut_down(pod: Pod) -> None:
    with sharing(pod, kernels.OBEYS) as launched:
        daemons = [pid for pid, name in launched.processes().items() if name == "virtiofsd"]
        time.sleep(2)  # for its firmware
        kill_all(daemons)
        code = launched.program.end(30)
        assert launched.processes() == {}
    assert (code, launched.program.log[-1]) == (15, last_line(Ending.FILES_LOST))
    assert any("the guest has lost the volume data: virtiofsd is gone" in line for line in launched.program.log)
    assert "INFO asking the guest to shut down; it has 60 s left" in launched.program.log
    assert pod.left() == set(), launched.program.log


def test_a_guest_with_a_file_system_ends_as_any_other(pod: Pod) -> None:
    with sharing(pod, kernels.OBEYS) as launched:
        assert "virtiofsd" in launched.processes().values()
        launched.program.send(signal.SIGTERM)
        code = launched.program.end(30)
        assert launched.processes() == {}
    assert (code, launched.program.log[-1]) == (0, last_line(Ending.ON_REQUEST))
    assert not any("virtiofsd is gone" in line for line in launched.program.log)
    assert pod.left() == set(), launched.program.log


def test_a_worker_that_is_killed_takes_its_virtiofsd_along(pod: Pod) -> None:
    with sharing(pod, kernels.OBEYS) as launched:
        os.kill(launched.worker, signal.SIGKILL)
        assert launched.program.end(15) == 137, launched.program.log
        assert launched.processes() == {}
    assert pod.left() == set(), launched.program.log


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_a_qemu_that_is_killed_is_no_guest_that_ended(pod: Pod, signum: signal.Signals) -> None:
    with pod.launched() as launched:
        launched.is_running()
        os.kill(launched.qemu, signum)
        assert launched.ended(10) == (12, last_line(Ending.QEMU_DIED))


def test_a_worker_that_is_killed_takes_its_qemu_along(pod: Pod) -> None:
    with pod.launched() as launched:
        launched.is_running()
        os.kill(launched.worker, signal.SIGKILL)
        assert launched.ended(10) == (137, "ERROR SIGKILL has ended the worker, and so the guest")


def test_a_supervisor_that_is_killed_takes_its_guest_along(pod: Pod) -> None:
    with pod.launched() as launched:
        launched.is_running()
        os.kill(launched.program.process.pid, signal.SIGKILL)
        until(lambda: launched.processes() == {})
        assert launched.ended(10) == (-signal.SIGKILL, last_line(Ending.ON_REQUEST))


def test_a_supervisor_that_is_killed_while_libvirt_asks_qemu_leaves_no_qemu(pod: Pod) -> None:
    """Only the supervisor would end it, and libvirt itself once it has asked."""
    shutil.rmtree(pod.root / "cache")
    with pod.launched() as launched:
        until(lambda: any(name.startswith("qemu-system") for name in launched.processes().values()))
        os.kill(launched.program.process.pid, signal.SIGKILL)
        until(lambda: launched.processes() == {}, seen=launched.processes)
        assert launched.ended(10)[0] == -signal.SIGKILL


def test_what_both_leave_when_they_are_killed_at_once_is_ended_by_the_next_launcher_there(pod: Pod) -> None:
    """Not as process 1: with it, the kernel ends all of the pod."""
    with pod.launched() as launched:
        launched.is_running()
        qemu = launched.qemu
        worker = launched.worker
        os.kill(worker, signal.SIGSTOP)
        os.kill(launched.program.process.pid, signal.SIGKILL)
        os.kill(worker, signal.SIGKILL)
        until(lambda: set(launched.processes()) == {qemu})
        with pod.launched() as second:
            second.is_running()
            assert launched.processes() == {}
            second.program.send(signal.SIGTERM)
            assert second.ended(10) == (0, last_line(Ending.ON_REQUEST))


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_as_process_1_it_ends_all_of_its_pod(pod: Pod, signum: signal.Signals) -> None:
    pod.write(grace=0)
    with pod.launched(by=_AS_PROCESS_1) as launched:
        launched.is_running()
        os.kill(_child(launched.program.process.pid), signum)
        launched.program.end(10)
        assert launched.processes() == {}
    if signum is signal.SIGTERM:
        assert launched.program.log[-1] == last_line(Ending.ON_REQUEST)


def test_a_guest_whose_qemu_does_not_answer_ends_with_its_grace_period(pod: Pod) -> None:
    """Libvirt gives QEMU 10 s more. It was there for ever, with the launcher in libvirt's call that asks the guest."""
    pod.write(grace=2)
    with pod.launched() as launched:
        launched.is_running()
        os.kill(launched.qemu, signal.SIGSTOP)
        asked = time.monotonic()
        launched.program.send(signal.SIGTERM)
        assert launched.ended(45) == (0, last_line(Ending.ON_REQUEST))
        assert time.monotonic() - asked >= 2
    assert "WARNING the guest is still there after its grace period; ending it" in launched.program.log


def test_a_start_whose_qemu_does_not_answer_can_be_stopped(pod: Pod) -> None:
    pod.put_before_qemu("os.kill(os.getpid(), 19); time.sleep(600)")
    with pod.launched() as launched:
        launched.is_starting()
        launched.program.send(signal.SIGTERM)
        assert launched.ended(40) == (0, last_line(Ending.NOT_STARTED))


@pytest.mark.parametrize("how", ["SIGTERM", "ctl kill", "ctl shutdown"])
def test_a_stop_while_libvirt_asks_a_qemu_that_does_not_answer_is_soon(
    pod: Pod, how: str, gpu_launcher: Command
) -> None:
    """SIGTERM took 75 s, and nobody could be asked over the control socket."""
    pod.have_qemu_hang()
    with pod.launched() as launched:
        until((pod.path / "asked").exists)
        until(lambda: gpu_launcher("ctl", "state", "--socket", pod.socket).stdout == "default/vm: preparing\n")
        asked = time.monotonic()
        if how == "SIGTERM":
            launched.program.send(signal.SIGTERM)
        else:
            assert gpu_launcher(*how.split(), "--socket", pod.socket).returncode == 0
        assert launched.ended(30) == (0, last_line(Ending.NOT_STARTED))
        assert time.monotonic() - asked < allowed(20)


def test_ready_is_gone_before_there_is_a_second_process(pod: Pod) -> None:
    """What a container that was killed has left; a preflight that refuses came before it was looked at."""
    (pod.root / "ready").touch()
    with pod.launched() as launched:
        pid = launched.program.process.pid
        # Not the shell any more, whose arguments name it too, and which has children of its own.
        until(lambda: launched.processes().get(pid) == "gpu-launcher" and bool(children(pid)))
        assert not (pod.root / "ready").exists()
        launched.program.send(signal.SIGTERM)
        launched.ended(20)
    (pod.root / "ready").touch()
    with pod.launched("rm /run/kubevirt/kernel-image/kernel") as launched:
        assert launched.ended(20)[0] == 1


def test_a_guest_is_not_ready_after_everything_of_it_was_killed(pod: Pod) -> None:
    with pod.launched(by=_AS_PROCESS_1) as launched:
        launched.is_running()
        kill_all(launched.processes())
        launched.program.end(10)
    assert (pod.root / "ready").exists(), "nobody was left to take it away"
    pod.put_before_qemu("time.sleep(600)")
    with pod.launched() as launched:
        launched.is_starting()
        assert not (pod.root / "ready").exists()
        launched.program.send(signal.SIGTERM)
        launched.ended(20)


def test_a_container_that_starts_again_ends_nobody_who_has_the_number_that_its_qemu_had(pod: Pod) -> None:
    """Libvirt waited 44 s for a process that it could not end, and ended any other."""
    pod.write(grace=0)
    with pod.launched(by=_AS_PROCESS_1) as launched:
        launched.is_running()
        kill_all(launched.processes())
        launched.program.end(10)
    number = pod.root / "run" / "qemu" / f"{DOMAIN}.pid"
    with subprocess.Popen(["sleep", "600"]) as somebody:
        status = number.with_suffix(".xml")
        status.write_text(status.read_text().replace(f"pid='{number.read_text().strip()}'", f"pid='{somebody.pid}'"))
        number.write_text(f"{somebody.pid}\n")
        with pod.launched() as again:
            again.is_running()
            assert somebody.poll() is None
            again.program.send(signal.SIGTERM)
            assert again.ended(20) == (0, last_line(Ending.ON_REQUEST))
        somebody.kill()


def test_no_link_in_a_claim_has_qemu_open_a_file_of_the_launchers(pod: Pod) -> None:
    """A real QEMU had qemu.conf open, for reading and writing."""
    disk = "    devices: {disks: [{name: data, disk: {bus: virtio}}], autoattachPodInterface: false}\n"
    pod.write()
    text = pod.vm.read_text()
    volumes = "  volumes: [{name: data, persistentVolumeClaim: {claimName: c}}]\n"
    pod.vm.write_text("".join(line for line in text.splitlines(True) if "devices:" not in line) + disk + volumes)
    link = "ln -s /run/gpu-launcher/etc/qemu.conf /run/kubevirt-private/vmi-disks/data/disk.img"
    here = "/run/kubevirt-private && mount -t tmpfs none /run/kubevirt-private"
    # As after a restart of the container: else the planner may look before the worker has written the file.
    left = "mkdir -p /run/gpu-launcher/etc && install -m 444 /dev/null /run/gpu-launcher/etc/qemu.conf"
    with pod.launched(f"mkdir {here} && mkdir -p /run/kubevirt-private/vmi-disks/data && {left} && {link}") as launched:
        code = launched.program.end(20)
    assert launched.program.log[-1].startswith(
        "ERROR the volume 'data': /var/run/kubevirt-private/vmi-disks/data/disk.img leads out of its volume, "
    )
    assert (code, oct((pod.root / "etc" / "qemu.conf").stat().st_mode & 0o777)) == (1, "0o444")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a ramfs")
def test_a_disk_on_a_file_system_without_direct_io_is_written_through_and_said(pod: Pod) -> None:
    """QEMU did not start: "file system may not support O_DIRECT"."""
    pod.write(grace=0)
    disks = "disks: [{name: scratch, disk: {bus: virtio}}], autoattachPodInterface: false"
    text = pod.vm.read_text().replace("autoattachPodInterface: false", disks)
    pod.vm.write_text(f"{text}  volumes: [{{name: scratch, emptyDisk: {{capacity: 1Mi}}}}]\n")
    with pod.launched("mkdir -p /run/libvirt/empty-disks && mount -t ramfs none /run/libvirt/empty-disks") as launched:
        launched.is_running()
        assert b'"cache":{"direct":false,' in arguments_of(launched.qemu)
        launched.program.send(signal.SIGTERM)
        assert launched.ended(20) == (0, last_line(Ending.ON_REQUEST))
    assert any("is on a file system without direct I/O (O_DIRECT)" in line for line in launched.program.log)


#: Of a start, in their order: what can be seen of it from outside.
MOMENTS: Mapping[str, Callable[[Launched], bool]] = {
    "it is Python": lambda launched: True,
    "it has a worker": lambda launched: len(launched.processes()) > 1,
    "it makes the plan": lambda launched: len(launched.processes()) > 2,
    "it has prepared its place": lambda launched: (launched.pod.root / "etc" / "qemu.conf").exists(),
    "it has libvirt's driver": lambda launched: (launched.pod.root / "run" / "qemu").exists(),
    "it has a domain": lambda launched: any("is defined on" in line for line in launched.program.log),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_stop_at_any_moment_of_the_start_ends_it_soon(pod: Pod, moment: str) -> None:
    pod.write(grace=0)
    with pod.launched() as launched:
        until(lambda: MOMENTS[moment](launched))
        launched.program.send(signal.SIGTERM)
        code, line = launched.ended(5)
    # Before it has come to its first line, it is Python that ends.
    assert (code, "has ended" in line) in ((0, True), (-signal.SIGTERM, False))


def test_a_stop_while_libvirt_starts_qemu_ends_qemu(pod: Pod) -> None:
    pod.put_before_qemu("time.sleep(600)")
    with pod.launched() as launched:
        launched.is_starting()
        assert not (pod.root / "ready").exists()
        launched.program.send(signal.SIGTERM)
        assert launched.ended(5) == (0, last_line(Ending.NOT_STARTED))


def test_a_start_takes_as_long_as_qemu_takes_and_says_how_far_it_is(pod: Pod, request: pytest.FixtureRequest) -> None:
    """With --thorough it takes two minutes."""
    seconds = 120 if request.config.getoption("--thorough") else 6
    pod.write(grace=0)
    pod.put_before_qemu(f"time.sleep({seconds})")
    with pod.launched() as launched:
        launched.program.wait_for_line(f"INFO {DOMAIN} is running", seconds + 60)
        told = [line for line in launched.program.log if "has been starting for" in line]
        assert len(told) >= seconds // 5
        # On a busy machine libvirt's look at QEMU is in the first one.
        of_memory = [line for line in told if "libvirt looks at QEMU" not in line]
        assert of_memory
        assert all("0.0 of 0.1 GiB of memory are there" in line for line in of_memory), told
        launched.program.send(signal.SIGTERM)
        assert launched.ended(10) == (0, last_line(Ending.ON_REQUEST))


REFUSED: Mapping[str, tuple[str, Mapping[str, Any], str]] = {
    "a scratch space that is read-only": (
        "mount -t tmpfs -o ro scratch /run/gpu-launcher",
        {},
        "/run/gpu-launcher: cannot make the root of libvirt's embedded driver: Read-only file system; expected",
    ),
    "a scratch space that is full": (
        "mount -t tmpfs -o nr_inodes=2 scratch /run/gpu-launcher",
        {},
        "/run/gpu-launcher: cannot make the root of libvirt's embedded driver: No space left on device; expected",
    ),
    "a scratch space without room for what libvirt writes": (
        "mount -t tmpfs -o nr_inodes=20 scratch /run/gpu-launcher",
        {},
        "No space left on device",
    ),
    "a machine type that QEMU has not": (
        "true",
        {"domain": "    machine: {type: pc-q35-0.1}\n"},
        "spec.domain.machine.type: pc-q35-0.1 is no machine of QEMU ",
    ),
    "a kernel that is not there": (
        "rm /run/kubevirt/kernel-image/kernel",
        {},
        "firmware.kernelBoot: /var/run/kubevirt/kernel-image/kernel cannot be found: No such file",
    ),
    "firmware that is not there": (
        "mount -t tmpfs none /usr/share/qemu/firmware",
        {"firmware": "{bootloader: {efi: {}}}"},
        "firmware: no image is EFI for x86_64, secure boot on: ",
    ),
    "no room for the sockets but for the launcher's own": (
        "mkdir -p /run/kubevirt/sockets && mount -t tmpfs -o nr_inodes=2 none /run/kubevirt/sockets",
        {},
        ": cannot make the directory for the sockets of the guest's console and screen: No space left on device; ",
    ),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_what_cannot_be_started_is_one_line_and_1(pod: Pod, fault: str) -> None:
    mounts, parts, says = REFUSED[fault]
    pod.write(**parts)
    with pod.launched(mounts) as launched:
        code, line = launched.ended(10)
    assert line.startswith("ERROR ")
    assert says in line
    assert code == 1


def test_a_qemu_that_does_not_start_is_quoted_in_one_line(pod: Pod) -> None:
    pod.put_before_qemu('sys.exit("qemu-system-x86_64: the machine\\nis too small")')
    with pod.launched() as launched:
        code, line = launched.ended(10)
    assert line.startswith("ERROR libvirt: cannot start the domain: ")
    assert "the machine is too small" in line
    assert code == 1
    assert printed(pod.root, DOMAIN) == "qemu-system-x86_64: the machine\nis too small"


def test_two_launchers_in_one_scratch_space_are_one_too_many(pod: Pod) -> None:
    pod.write(grace=0)
    with pod.launched() as first:
        first.is_running()
        with pod.launched() as second:
            assert second.program.end(10) == 1
        assert second.program.log[-1] == (
            "ERROR /run/gpu-launcher: another gpu-launcher has its VM there; expected a directory for each, "
            "named with --connect 'qemu:///embed?root=DIR', or wait until that VM has ended"
        )
        assert (pod.root / "ready").exists()
        assert first.qemu
        first.program.send(signal.SIGTERM)
        assert first.ended(10) == (0, last_line(Ending.ON_REQUEST))
