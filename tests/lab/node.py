"""A booted machine that has joined the cluster."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.lab import build
from tests.lab.box import NODE, Box
from tests.lab.control_plane import Cluster
from tests.lab.machine import Machine, qemu
from tests.lab.waiting import Patience

_BOOT = 300  # seconds, of whatever machine: what it takes for its first boot is what all other limits go by
#: The kernel's words for a processor that stands still, after 21 seconds, which an emulated one may, for a process that
#: waits for such a one, after 120, and for one that runs into code which another is just patching.
_STALLED = (
    *("detected stalls on CPUs", "self-detected stall on CPU", "soft lockup", "blocked for more than"),
    "Kernel panic - not syncing: Fatal exception",
)
_DONE = "lab-exit-code"
#: Where in the box the images of the working tree are, for the node's second disk.
IMAGES = "/run/lab/images.tar"
_OVERLAY = "/run/lab/disk.qcow2"


class Node:
    """The machine, to run commands on as root."""

    def __init__(self, box: Box, cluster: Cluster, machine: Machine) -> None:
        self._box = box
        self._cluster = cluster
        self.name = machine.name
        #: Why a boot had to be tried once more, where one had to.
        self.failed_boots: list[str] = []

    def sh(self, script: str, seconds: float = 60) -> str:
        """What the script prints. Works without kubelet and cluster; AssertionError where the script fails."""
        done = self._box.run(*way_in(), stdin=f"{{ {script}\n}} 2>&1; echo {_DONE} $?; exit\n", seconds=seconds)
        output, _, code = done.stdout.rpartition(_DONE)
        assert code.strip() == "0", f"on {self.name}, {script!r}: {done.stdout or done.stderr}"
        return output

    def stood_still(self) -> bool:
        """Whether one of the machine's processors has stood still, by its kernel's words on its console."""
        return any(_stalled(log) for log in self._box.logs.glob(f"{self.name}-*console*.log"))

    def reboot(self, machine: Machine) -> None:
        """Cut the power, and boot this machine from the same disk; until the node is ready again."""
        self.sh("sync")
        self._box.kill(self.name)
        before = _boot_id(self._cluster, self.name)

        def boot(log: str) -> None:
            console = _power_on(self._box, machine, log)

            def is_ready() -> bool:
                ready = _ready(self._box, self._cluster, machine, console)
                return ready and _boot_id(self._cluster, self.name) != before

            self._box.until(f"{self.name} is ready after another boot", is_ready, _BOOT)

        self.boot(boot, "console-after-reboot")

    def boot(self, boot: Callable[[str], None], log: str) -> None:
        """Boot, with a console's log by that name; once more where the machine does not come up."""
        try:
            boot(log)
        except AssertionError as error:
            self.failed_boots.append(str(error))
            self._box.kill(self.name)
            boot(f"second-{log}")


def way_in() -> tuple[str, ...]:
    """The command that, in the box, connects to a root shell on the node: node/init listens."""
    return (f"{build.node_root()}/root/usr/bin/busybox", "nc", NODE, "2323")


@contextmanager
def booted(box: Box, cluster: Cluster, machine: Machine) -> Iterator[Node]:
    """The machine, from power on until the end of the block."""
    node = Node(box, cluster, machine)
    try:
        node.boot(lambda log: _boot(box, cluster, machine, log), "console")
        yield node
    finally:
        box.kill(machine.name)


def _boot(box: Box, cluster: Cluster, machine: Machine, log: str) -> None:
    """Power on, and wait until the node is ready; AssertionError, with the end of its console, if it never is."""
    box.path(_OVERLAY).unlink(missing_ok=True)
    options = ("-q", "-f", "qcow2", "-F", "raw", "-b", machine.disk() / "disk.img")
    box.run("qemu-img", "create", *options, _OVERLAY).check_returncode()
    began = time.monotonic()
    console = _power_on(box, machine, log)
    try:
        box.until(f"{machine.name} is ready", lambda: _ready(box, cluster, machine, console), _BOOT)
        box.patience = Patience(boot=time.monotonic() - began)
    except AssertionError as error:
        said = (console.read_text(errors="replace") + (box.logs / f"{machine.name}.log").read_text()).splitlines()
        raise AssertionError("\n".join([str(error), *said[-20:]])) from None


def _power_on(box: Box, machine: Machine, log: str) -> Path:
    """The log of its console."""
    console = box.logs / f"{machine.name}-{log}.log"
    console.touch()
    disk = machine.disk() / "disk.img"
    box.spawn(machine.name, *qemu(machine, disk, Path(_OVERLAY), Path(IMAGES), f"/run/lab/log/{console.name}"))
    return console


def _stalled(console: Path) -> bool:
    text = console.read_text(errors="replace")
    return any(words in text for words in _STALLED)


def _boot_id(cluster: Cluster, name: str) -> str:
    return str(cluster.get("node", name)["status"]["nodeInfo"]["bootID"])


def _ready(box: Box, cluster: Cluster, machine: Machine, console: Path) -> bool:
    assert box.runs(machine.name), f"{machine.name} has gone off"
    assert not _stalled(console), f"a processor of {machine.name} stands still"
    conditions = {
        condition["type"]: condition for condition in cluster.get("node", machine.name)["status"]["conditions"]
    }
    return bool(conditions["Ready"]["status"] == "True")
