"""gpu-plugin serve beside the floor (tests/bench/floor.py), on machines of 1 to 512 cards among other functions.

Every answer of either is checked. What the figures are:

- start: from exec until the stand-in of the kubelet (tests/kubelet.py) holds the full list. One start of each, which
  writes the byte code, is not counted.
- memory: the proportional set size after that and a hundred Allocates, with the process that reads for it. Plugin and
  floor never run at the same time then: each would pay for half of what they share.
- discovery: the CPU time of a start with 512 cards among 200 functions, less that of a start with one card and no
  other function. It includes the list's way to the kubelet, and needs no way into the plugin.
- Allocate: at a grpcio client on the plugin's core, plugin and floor asked in turn.
- idle: CPU time, plugin and floor in the same ten seconds.
- a node goes, is back: /dev/vfio/GROUP, until the stand-in has a list that says so.
- kubelet restarted: from the new kubelet's start until it holds the full list, over the ways in which the old one goes.
"""

import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.bench import allocate, changes
from tests.bench.contestant import Contestant, floor, gpu_plugin, serving
from tests.bench.machine import Machine, build
from tests.bench.process import cpu_seconds, proportional_set_size
from tests.bench.table import Beside, Line, alone, percentile, table, within_times
from tests.processes import children

CARDS = (1, 8, 64, 512)
OTHERS = 200

_STARTS = 7
_RUNS = 3
_MOST_ASKED = 8  # cards in one Allocate
_SETTLED = 1.0  # seconds after the last Allocate; what it leaves behind is done
_IDLE = 10.0  # seconds
_EVENTS = 100
_TWENTIES = 20
_RESTARTS = 5  # in each way


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="gl-", dir="/tmp") as directory:
        machines = {cards: build(Path(directory) / str(cards), cards=cards, others=OTHERS) for cards in CARDS}
        smallest = build(Path(directory) / "smallest", cards=1, others=0)
        larger = {cards: machine for cards, machine in machines.items() if cards >= _MOST_ASKED}
        print(table([*starts(machines, smallest), *answers(larger), *events(larger)]))


def starts(machines: Mapping[int, Machine], smallest: Machine) -> Iterator[Line]:
    """Start, memory, discovery."""
    seconds = {cards: Beside() for cards in machines}
    memory = {cards: Beside() for cards in machines}
    most = max(machines)
    discovery: list[float] = []
    for contestant in (gpu_plugin, floor):
        _start(contestant, smallest)
    for _ in range(_STARTS):
        least = _start(gpu_plugin, smallest)
        for cards, machine in machines.items():
            ours, its = _start(gpu_plugin, machine), _start(floor, machine)
            seconds[cards].add(ours.seconds * 1e3, its.seconds * 1e3)
            memory[cards].add(ours.memory / 1e6, its.memory / 1e6)
            if cards == most:
                discovery.append((ours.cpu - least.cpu) * 1e3)
    for cards, values in seconds.items():
        yield within_times(f"exec to the full list, {_plural(cards)}", values, "ms", 2 if cards < most else 2.75)
    for cards, values in memory.items():
        yield within_times(f"memory (PSS), {_plural(cards)}", values, "MB", 1.5)
    yield alone(f"discovery of {_plural(most)}, CPU", discovery, "ms", 50)


@dataclass(frozen=True)
class Start:
    """Seconds from exec to the full list, wall and CPU; bytes after some Allocates."""

    seconds: float
    cpu: float
    memory: int


def _start(contestant: Contestant, machine: Machine) -> Start:
    with serving(contestant, machine) as plugin:
        allocate.block(plugin, machine, 1, calls=100)
        memory = sum(map(proportional_set_size, (plugin.pid, *children(plugin.pid))))
        return Start(plugin.seconds, plugin.cpu, memory)


def answers(machines: Mapping[int, Machine]) -> Iterator[Line]:
    """Allocate and idleness."""
    microseconds = {(cards, asked): Beside() for cards in machines for asked in (1, _MOST_ASKED)}
    idle = {cards: Beside() for cards in machines}
    for _ in range(_RUNS):
        for cards, machine in machines.items():
            with serving(gpu_plugin, machine) as ours, serving(floor, machine) as its:
                for asked in (1, _MOST_ASKED):
                    taken = allocate.in_turn((ours, its), machine, asked)
                    microseconds[cards, asked].add(*(percentile(calls, 50) * 1e6 for calls in taken))
                time.sleep(_SETTLED)
                before = [cpu_seconds(plugin.pid) for plugin in (ours, its)]
                time.sleep(_IDLE)
                after = [cpu_seconds(plugin.pid) for plugin in (ours, its)]
                idle[cards].add(*((late - early) * 1e3 for early, late in zip(before, after, strict=True)))
    for (cards, asked), values in microseconds.items():
        yield within_times(f"Allocate of {asked} of {_plural(cards)}, p50", values, "us", 1.5 if asked == 1 else 2)
    for cards, values in idle.items():
        yield within_times(f"idle CPU in {_IDLE:g} s, {_plural(cards)}", values, "ms", 2)


def events(machines: Mapping[int, Machine]) -> Iterator[Line]:
    """Nodes that go and come back, kubelets that restart."""
    for cards, machine in machines.items():
        with serving(gpu_plugin, machine) as plugin:
            seen = changes.nodes_go(plugin, machine, 1, _EVENTS)
            for what, taken in (("goes", [one.gone for one in seen]), ("is back", [one.back for one in seen])):
                yield alone(f"a node {what}, {_plural(cards)}", _milliseconds(taken), "ms", 50, 99)
            if cards > 20:
                seen = changes.nodes_go(plugin, machine, 20, _TWENTIES)
                taken, lists = [one.gone for one in seen], [one.lists for one in seen]
                yield alone(f"twenty nodes go, {_plural(cards)}", _milliseconds(taken), "ms", 50)
                yield alone(f"twenty nodes go, {_plural(cards)}, in lists", lists, "lists", 100)
    for cards, machine in machines.items():
        with serving(gpu_plugin, machine) as plugin:
            for way, stop in changes.RESTARTS.items():
                taken = changes.kubelet_restarts(plugin, machine, stop, _RESTARTS)
                yield alone(f"kubelet restarted {way}, {_plural(cards)}", _milliseconds(taken), "ms", 100)


def _milliseconds(seconds: Iterable[float]) -> list[float]:
    return [one * 1e3 for one in seconds]


def _plural(cards: int) -> str:
    return "1 card" if cards == 1 else f"{cards} cards"


if __name__ == "__main__":
    main()
