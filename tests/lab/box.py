"""A box for the lab: namespaces of its own for everything that runs beside the tests.

Mounts, network, processes, host name and IPC are the box's. Its /run is a tmpfs that only it has, and every process in
it dies with the process that made it, however that one ends: so nothing is left, and nothing needs to be
cleaned up. It needs root, and touches no cgroup.
"""

import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.lab.waiting import Patience, T
from tests.processes import children

#: The node's network: a bridge in the box; the control plane has the first address, the node the second.
CONTROL_PLANE = "10.88.0.1"
NODE = "10.88.0.2"
#: The addresses of the node's pods (node/cni): the API server answers them.
PODS = "10.89.0.0/24"

# The first process reaps what the others leave behind.
_INIT = f"""
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 run /run
mkdir -p /run/lab/log
hostname lab
ip link set lo up
ip link add node0 type bridge
ip addr add {CONTROL_PLANE}/24 dev node0
ip link set node0 up
ip tuntap add tap0 mode tap
ip link set tap0 master node0 up
ip route add {PODS} via {NODE}
echo ready
while :; do sleep 1000; done
"""

_NAMESPACES = ("--mount", "--net", "--pid", "--uts", "--ipc")


class LabNeeds(Exception):
    """The host lacks something that the lab cannot do without."""


class Box:
    """Commands and long-running programs in the namespaces of process `pid`. Whatever is waited for in the lab has its
    limit by the box's patience."""

    def __init__(self, pid: int, environ: Mapping[str, str]) -> None:
        self.patience = Patience()
        self._pid = pid
        self._environ = dict(environ)
        self._programs: dict[str, subprocess.Popen[bytes]] = {}

    def path(self, path: str) -> Path:
        """A path of the box, as it is seen from outside."""
        return Path(f"/proc/{self._pid}/root{path}")

    @property
    def logs(self) -> Path:
        """Where each program's log is: NAME.log."""
        return self.path("/run/lab/log")

    def until(self, what: str, look: Callable[[], T | None], seconds: float) -> T:
        return self.patience.until(what, look, seconds)

    def argv(self, *argv: str | Path) -> list[str]:
        """The command line that runs `argv` in the box."""
        return ["nsenter", f"--target={self._pid}", *_NAMESPACES, "--", *map(str, argv)]

    def run(self, *argv: str | Path, stdin: str | None = None, seconds: float = 60) -> subprocess.CompletedProcess[str]:
        """A command in the box, to its end; subprocess.TimeoutExpired where that does not come."""
        return subprocess.run(
            self.argv(*argv),
            env=self._environ,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=self.patience.allowed(seconds),
            check=False,
        )

    def spawn(self, name: str, *argv: str | Path, env: Mapping[str, str] | None = None) -> None:
        """A program that runs until it is killed by its name, or the box ends; its output is in its log."""
        pid = self.path(f"/run/lab/{name}.pid")
        pid.unlink(missing_ok=True)
        remembering = ("sh", "-c", 'echo $$ > "$0"; exec "$@"', f"/run/lab/{name}.pid")
        with (self.logs / f"{name}.log").open("ab") as log:
            self._programs[name] = subprocess.Popen(
                _dying_with_us(self.argv(*remembering, *argv)),
                env={**self._environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for whoever made the box, and ends it in order.
                start_new_session=True,
            )
        while not pid.exists():
            assert self.runs(name), f"{name} did not start: {(self.logs / f'{name}.log').read_text()}"
            time.sleep(0.01)

    def runs(self, name: str) -> bool:
        """Whether a program was spawned, and is still there."""
        return name in self._programs and self._programs[name].poll() is None

    def kill(self, name: str) -> None:
        """End a program, if it was spawned, and see that it is gone."""
        if name not in self._programs:
            return
        self.run("sh", "-c", f"kill -KILL $(cat /run/lab/{name}.pid)")
        self._programs[name].wait()

    def forget(self) -> None:
        """What ran in the box has been killed with it; let go of what started it."""
        for program in self._programs.values():
            program.kill()
            program.wait()


@contextmanager
def opened_box() -> Iterator[Box]:
    """A box, until the end of the block."""
    require_host()
    # Only what programs need: the tester's own settings must not change what the lab shows.
    environ = {"PATH": os.environ["PATH"], "HOME": "/run/lab"}
    init = subprocess.Popen(
        _dying_with_us(["unshare", *_NAMESPACES, "--fork", "--kill-child", "--mount-proc", "sh", "-c", _INIT]),
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert init.stdout is not None
        assert init.stderr is not None
        with init.stdout, init.stderr:
            if init.stdout.readline() != "ready\n":
                raise LabNeeds(f"namespaces of its own: {init.stderr.read().strip()}")
        first = children(init.pid)[0]
        first_fd = os.pidfd_open(first)
        box = Box(first, environ)
        try:
            yield box
        finally:
            # Its first process ends when every other one in its namespace has been killed and is gone.
            signal.pidfd_send_signal(first_fd, signal.SIGKILL)
            select.select([first_fd], [], [])
            os.close(first_fd)
            box.forget()
    finally:
        init.kill()
        init.wait()


def require_host() -> None:
    """LabNeeds, with what is missing, where this machine cannot have a box and a node in it."""
    if os.geteuid() != 0:
        raise LabNeeds("root: it makes namespaces, and files that belong to root")
    missing = [
        name
        for name in ("unshare", "nsenter", "setpriv", "ip", "qemu-img", "qemu-system-x86_64")
        if not shutil.which(name)
    ]
    if missing:
        raise LabNeeds(f"{', '.join(missing)} on the PATH; `make lab` installs the packages in tests/lab/packages")
    if not Path("/dev/net/tun").exists():
        raise LabNeeds("/dev/net/tun, for the node's network card")


def _dying_with_us(argv: list[str]) -> list[str]:
    return ["setpriv", "--pdeathsig", "KILL", *argv]
