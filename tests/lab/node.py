"""A booted machine that has joined the cluster."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.lab import build
from tests.lab.box import NODE, Box
from tests.lab.control_plane import Cluster, until
from tests.lab.machine import Machine, qemu

_BOOT = 120  # seconds; 20 measured
_DONE = "lab-exit-code"
#: Where in the box the images of the working tree are, for the node's second disk.
IMAGES = "/run/lab/images.tar"


class Node:
    """The machine, to run commands on as root."""

    def __init__(self, box: Box, machine: Machine) -> None:
        self._box = box
        self.name = machine.name
        #: Why the machine was booted twice, if it was.
        self.first_boot: str | None = None

    def sh(self, script: str, seconds: float = 60) -> str:
        """What the script prints. Works without kubelet and cluster; AssertionError where the script fails."""
        done = self._box.run(*way_in(), stdin=f"{{ {script}\n}} 2>&1; echo {_DONE} $?; exit\n", seconds=seconds)
        output, _, code = done.stdout.rpartition(_DONE)
        assert code.strip() == "0", f"on {self.name}, {script!r}: {done.stdout or done.stderr}"
        return output


def way_in() -> tuple[str, ...]:
    """The command that, in the box, connects to a root shell on the node: node/init listens."""
    return (f"{build.node_root()}/root/usr/bin/busybox", "nc", NODE, "2323")


@contextmanager
def booted(box: Box, cluster: Cluster, machine: Machine) -> Iterator[Node]:
    """The machine, from power on until the end of the block; tried once more where it does not come up."""
    node = Node(box, machine)
    try:
        try:
            _boot(box, cluster, machine, "console")
        except AssertionError as error:
            node.first_boot = str(error)
            box.kill(machine.name)
            _boot(box, cluster, machine, "second-console")
        yield node
    finally:
        box.kill(machine.name)


def _boot(box: Box, cluster: Cluster, machine: Machine, log: str) -> None:
    """Power on, and wait until the node is ready; AssertionError, with the end of its console, if it never is."""
    console = box.logs / f"{machine.name}-{log}.log"
    console.touch()
    disk = build.disk() / "disk.img"
    box.spawn(machine.name, *qemu(machine, disk, Path(IMAGES), f"/run/lab/log/{console.name}"))
    try:
        until(f"{machine.name} is ready", lambda: _ready(box, cluster, machine), _BOOT)
    except AssertionError as error:
        said = (console.read_text(errors="replace") + (box.logs / f"{machine.name}.log").read_text()).splitlines()
        raise AssertionError("\n".join([str(error), *said[-20:]])) from None


def _ready(box: Box, cluster: Cluster, machine: Machine) -> bool:
    assert box.runs(machine.name), f"{machine.name} has gone off"
    conditions = {
        condition["type"]: condition for condition in cluster.get("node", machine.name)["status"]["conditions"]
    }
    return bool(conditions["Ready"]["status"] == "True")
