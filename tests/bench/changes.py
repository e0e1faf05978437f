"""What changes under a running plugin, and the seconds until its kubelet knows; infinite where it never does."""

import math
import random
import socket
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from tests.bench.contestant import Serving
from tests.bench.machine import Machine
from tests.kubelet import Kubelet

_NEVER = 20.0  # seconds
_ABSENT = 1.0  # seconds that a kubelet may be away
_STRAGGLERS = 0.1  # seconds in which a list more would come


@dataclass(frozen=True)
class Seen:
    """Seconds until devices whose nodes went were Unhealthy, and until they were Healthy once these were back; and the
    lists that the first took."""

    gone: float
    back: float
    lists: int


def nodes_go(plugin: Serving, machine: Machine, count: int, times: int) -> list[Seen]:
    """Take the nodes of that many devices away at once, and give them back, so many times."""
    seen: list[Seen] = []
    for _ in range(times):
        # At any moment of whatever the plugin does periodically.
        time.sleep(random.uniform(0, 0.02))
        chosen = random.sample(sorted(machine.nodes), count)
        lists = plugin.endpoint.lists
        gone = _seconds(plugin, machine.remove_node, chosen, "Unhealthy")
        if count > 1:
            time.sleep(_STRAGGLERS)
        lists = plugin.endpoint.lists - lists
        back = _seconds(plugin, machine.put_back_node, chosen, "Healthy")
        seen.append(Seen(gone, back, lists))
        if math.inf in (gone, back):
            break
    return seen


def _seconds(plugin: Serving, change: Callable[[str], None], device_ids: Collection[str], health: str) -> float:
    def is_seen() -> bool:
        devices = plugin.endpoint.devices
        return all(device_id in devices and devices[device_id].health == health for device_id in device_ids)

    start = time.perf_counter()
    for device_id in device_ids:
        change(device_id)
    return _until(plugin.kubelet, is_seen, start)


def _at_once(kubelet: Kubelet) -> None:
    kubelet.stop()


def _after_a_while(kubelet: Kubelet) -> None:
    kubelet.stop()
    time.sleep(_ABSENT)


def _killed(kubelet: Kubelet) -> None:
    """Its socket is left behind, and nobody answers on it."""
    kubelet.stop()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(kubelet.directory / "kubelet.sock"))
    time.sleep(_ABSENT)


def _twice(kubelet: Kubelet) -> None:
    kubelet.restart()
    kubelet.stop()


#: The ways in which a kubelet goes, before it starts again.
RESTARTS: Mapping[str, Callable[[Kubelet], None]] = {
    "at once": _at_once,
    "after a second": _after_a_while,
    "killed, a second ago": _killed,
    "twice in a row": _twice,
}


def kubelet_restarts(plugin: Serving, machine: Machine, stop: Callable[[Kubelet], None], times: int) -> list[float]:
    """Seconds from the start of the new kubelet until it holds the full list, so many times."""
    taken: list[float] = []
    for _ in range(times):
        stop(plugin.kubelet)
        plugin.kubelet.endpoints.clear()
        start = time.perf_counter()
        plugin.kubelet.start()
        taken.append(_until(plugin.kubelet, lambda: plugin.lists_all(machine), start))
        if taken[-1] == math.inf:
            break
    return taken


def _until(kubelet: Kubelet, condition: Callable[[], bool], start: float) -> float:
    try:
        kubelet.wait_until(condition, _NEVER)
    except AssertionError:
        return math.inf
    return time.perf_counter() - start
