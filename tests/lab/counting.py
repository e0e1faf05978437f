"""A guest that counts in its memory, and shows by its console that it goes on where it was: suspended and resumed, and
moved from pod to pod of the only node."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from launcher.pod.metadata import ID
from tests.lab import pods
from tests.lab.conftest import Timed
from tests.lab.lab import Lab
from tests.lab.terminal import Terminal

_CLAIM, _DIRECTORY = "memory", "/var/lib/memory"
#: The annotation of a VM whose memory goes to the claim of prepare().
TO_CLAIM = {"gpu-launcher.dev/suspend-to": _CLAIM}
# Each number goes to a serial port, and comes back from there; without one, the guest has it back from itself.
_COUNTS = """#!/bin/sh
port={port}
if [ -n "$port" ]; then stty -F $port raw -echo; exec 3<> $port; fi
n=0
while :; do
    n=$((n + 1)); back=$n
    if [ -n "$port" ]; then echo $n >&3; back=nothing; read -r -t 9 back <&3; fi
    read -r uptime rest < /proc/uptime
    echo "GUEST counts $n, has $back back, for $uptime s on"; sleep 3
done &
"""


@dataclass(frozen=True)
class Count:
    """What a guest has shown: its numbers, what came back from its port, its uptime in seconds, and how often it has
    booted."""

    numbers: tuple[int, ...]
    back: tuple[str, ...]
    uptime: tuple[float, ...]
    boots: int

    def goes_on_from(self, before: "Count") -> bool:
        """Return whether this guest is that one, with its memory, its uptime and its port."""
        is_on = max(before.numbers) < min(self.numbers) and max(before.uptime) < min(self.uptime)
        return is_on and self.boots == 0 and self.back == tuple(map(str, self.numbers))


def counts(port: str = "", devices: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The fields of a VM whose guest counts, with these devices besides."""
    seed = {"name": "seed", "disk": {"bus": "virtio"}}
    return {
        "volumes": [{"name": "seed", "cloudInitNoCloud": {"userData": _COUNTS.format(port=port)}}],
        "domain": {"devices": {"disks": [seed], **(devices or {})}},
    }


def prepare(lab: Lab) -> None:
    """Make the claim for a guest's memory: a directory of the node's."""
    lab.node.sh(f"mkdir -p {_DIRECTORY}/suspended && chown -R 107:107 {_DIRECTORY}")
    lab.cluster.apply(*pods.claim(_CLAIM, _DIRECTORY))


def check_suspended(lab: Lab, terminal: Terminal, timed: Timed, vm: str) -> str:
    """Suspend and resume a VM that counts; what the resumed guest has shown."""
    console = lab.console(vm)
    console.wait_for("GUEST counts 2,")
    with timed("suspend"):
        assert f"is suspended to the claim {_CLAIM}" in terminal.gpuvm("suspend", vm)
    lab.until("its pod is gone", lambda: terminal.listed()[vm]["state"] == "Suspended", 60)
    assert _saved(lab) == [f"{vm}.memory"]
    with timed("resume, until the guest counts on"):
        terminal.gpuvm("resume", vm)
        lab.wait_for_log(vm, "is running")
        resumed = lab.console(vm).wait_for("s on", times=2)
    assert _counted(resumed).goes_on_from(_counted(console.text()))
    assert _saved(lab) == []
    return resumed


def check_moved(lab: Lab, terminal: Terminal, timed: Timed, vm: str, before: str) -> None:
    """Move a VM that counts to another pod of its node; `before` is what its guest has shown."""
    with timed("move, until the guest counts on"):
        said = terminal.asked("move", vm, "--to", lab.node.name, seconds=400)
        pod = said.partition("goes on in pod ")[2].partition(",")[0]
        moved = lab.console(pod).wait_for("s on", times=2)
    assert _counted(moved).goes_on_from(_counted(before))
    lab.until("its first pod is gone", lambda: _pods(lab, vm) == [pod], 60)


def delete(lab: Lab, terminal: Terminal, vm: str) -> None:
    """Until its pod is gone."""
    terminal.gpuvm("delete", vm)
    lab.until("its pod is gone", lambda: not _pods(lab, vm), 60)
    assert vm not in terminal.listed()


def _pods(lab: Lab, vm: str) -> list[str]:
    return [pod["metadata"]["name"] for pod in lab.cluster.get_all("pods", "-l", f"{ID}={vm}")]


def _saved(lab: Lab) -> list[str]:
    """The files on the claim."""
    return lab.node.sh(f"ls {_DIRECTORY}/suspended").split()


def _counted(text: str) -> Count:
    """Read a guest's console."""
    rows = re.findall(r"GUEST counts (\d+), has (\w+) back, for ([0-9.]+) s on", text)
    numbers, back, uptime = zip(*rows, strict=True) if rows else ((), (), ())
    return Count(tuple(map(int, numbers)), back, tuple(map(float, uptime)), text.count("GUEST up after"))
