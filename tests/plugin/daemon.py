"""`gpu-plugin serve` as a process, on a machine that is a directory."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection
from itertools import cycle
from pathlib import Path

from tests import forked
from tests.kernel import make_nodes
from tests.processes import FIXTURES, Program, running
from tests.waiting import allowed, until

RTX_3090 = "nvidia.com/GA102_GEFORCE_RTX_3090"
#: To be `within`, for a plugin with memory of its own.
ITSELF = ("env",)
BOTH = ("0000:01:00.0", "0000:e1:00.0")

_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_PORTS = cycle(range(20_000 + 500 * _WORKER, 20_500 + 500 * _WORKER))


@contextmanager
def serve(sys: Path, kubelet_dir: Path, *arguments: str | Path, within: tuple[str, ...] = ()) -> Iterator[Program]:
    """`gpu-plugin serve` on a machine beside a kubelet's directory; VFIO's nodes are made for it, below
    `kubelet_dir`/dev. No kernel tells of changes in a copied tree, so it looks every half second. `within` is a command
    that execs it; without one it is a fork, which shares its memory with others."""
    dev = kubelet_dir / "dev"
    if not dev.exists():
        make_nodes(sys, dev)
    common = ("--sysfs", sys, "--dev", dev, "--kubelet-dir", kubelet_dir, "--pci-ids", FIXTURES / "pci.ids")
    pods = ("--pod-resources", kubelet_dir / "pod-resources" / "kubelet.sock")
    start = partial(running, within=within) if within else forked.running
    with start("gpu-plugin", "serve", *common, *pods, "--rescan", "0.5", *arguments) as program:
        yield program


def free_port() -> int:
    """A TCP port that nobody had a moment ago, and that nobody else gets: below those that the kernel gives away
    (net.ipv4.ip_local_port_range), another at each call, and each worker of pytest has its own."""
    with socket.socket() as free:
        while True:
            with suppress(OSError):
                free.bind(("127.0.0.1", port := next(_PORTS)))
                return port


def fetch(port: int, path: str, host: str = "127.0.0.1", name: str | None = None) -> tuple[int, str]:
    """As a probe and Prometheus ask: HTTP's status and the text; 0 where nobody listens yet. `name`: the Host, by
    default the address."""
    connection = HTTPConnection(host, port, timeout=allowed(10))
    try:
        connection.request("GET", path, headers={} if name is None else {"Host": name})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except ConnectionRefusedError:
        return 0, ""
    finally:
        connection.close()


def status(port: int, path: str) -> int:
    return fetch(port, path)[0]


#: For something that no kubelet hears of: a socket that comes or goes, a metric.
wait_until = until


def descriptors(plugin: Program) -> int:
    return len(list(Path(f"/proc/{plugin.process.pid}/fd").iterdir()))


def threads(plugin: Program) -> int:
    return len(list(Path(f"/proc/{plugin.process.pid}/task").iterdir()))


def processes(plugin: Program) -> set[int]:
    """The plugin's and those that it has forked."""
    found = {plugin.process.pid}
    while True:
        pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
        more = {pid for pid in pids if _parent(pid) in found}
        if more <= found:
            return found
        found |= more


def looking(plugin: Program) -> set[int]:
    """Of those, the ones that look at sysfs now: the process that forks has forked them."""
    forked = processes(plugin) - {plugin.process.pid}
    return {pid for pid in forked if _parent(pid) in forked}


def _parent(pid: int) -> int | None:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return None


@dataclass(frozen=True)
class Footprint:
    """What a plugin takes of its node: threads, descriptors, processes, and their own memory (MiB), without their share
    of mapped files: that grows when another program with the same libraries ends. `peak` is the most that the daemon's
    own process ever had (MiB), with mapped files."""

    threads: int
    descriptors: int
    processes: int
    memory: float
    peak: float


def footprint(plugin: Program) -> Footprint:
    pids = processes(plugin)
    memory = 0
    for pid in pids:
        with suppress(OSError):  # it has read what it was to read
            memory += _kibibytes(Path(f"/proc/{pid}/smaps_rollup"), "Pss_Anon:")
    peak = _kibibytes(Path(f"/proc/{plugin.process.pid}/status"), "VmHWM:")
    return Footprint(threads(plugin), descriptors(plugin), len(pids), memory / 1024, peak / 1024)


def _kibibytes(path: Path, name: str) -> int:
    return sum(int(line.split()[1]) for line in path.read_text().splitlines() if line.startswith(name))


def at_rest(plugin: Program, at_most: int) -> Footprint:
    """The same, once it has so few descriptors, and no process but itself and the one that forks: the most memory of
    five looks, since one that is forked meanwhile shares the others' pages and would be left out of the sum."""
    looks: list[Footprint] = []
    while len(looks) < 5:
        wait_until(lambda: descriptors(plugin) <= at_most and len(processes(plugin)) == 2)
        looks.append(footprint(plugin))
    return max(looks, key=lambda look: (look.processes == 2, look.descriptors <= at_most, look.memory))
