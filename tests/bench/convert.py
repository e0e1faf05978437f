"""From YAML text to XML text in one process, CPU time a domain: ours, and virtinst's domain with eight hostdevs.

Each runs in a process of its own, in turn, and says the CPU milliseconds of each of its rounds; what counts is the
median. virtinst (Debian's package, for Debian's Python) builds a bare domain and its XML, from no manifest at all.
"""

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.processes import ROOT

ROUNDS = 200
VIRTINST = """
import json, sys, time
sys.path.insert(0, "/usr/share/virt-manager")
import virtinst
connection = virtinst.VirtinstConnection("test:///default")
connection.open(None, None)
def build():
    guest = virtinst.Guest(connection)
    guest.name = "eight-gpus"
    guest.os.machine = "q35"
    guest.memory = 8 << 20
    guest.vcpus = 32
    for bus in range(8):
        device = virtinst.DeviceHostdev(connection)
        device.type = "pci"
        device.domain, device.bus, device.slot, device.function = 0, 16 + bus, 0, 0
        guest.add_device(device)
    return guest.get_xml()
for _ in range(5):
    build()
rounds = []
for _ in range(int(sys.argv[1])):
    start = time.process_time()
    build()
    rounds.append((time.process_time() - start) * 1000)
print(json.dumps(rounds))
"""


def timed(work: Callable[[], object], rounds: int) -> list[float]:
    """CPU milliseconds of each round, after a few that nobody counts."""
    for _ in range(5):
        work()
    found = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        found.append((time.process_time() - start) * 1000)
    return found


def ours(rounds: int) -> None:
    """In a process of its own: print the rounds of the whole machine's golden case, as JSON."""
    from tests.launcher.cases import case

    machine = case("whole-machine")
    world = machine.world()
    print(json.dumps(timed(lambda: world.xml(machine.vm), rounds)))


def main() -> None:
    print("CPU of one conversion in one process, median of", ROUNDS)
    rows = {
        "YAML to XML, 8 GPUs, whole machine": [sys.executable, "-m", "tests.bench.convert", str(ROUNDS)],
        "virtinst, a bare domain with 8 hostdevs": ["/usr/bin/python3", "-c", VIRTINST, str(ROUNDS)],
    }
    medians = []
    for name, command in rows.items():
        done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, text=True)
        assert done.returncode == 0, done.stderr
        medians.append(statistics.median(json.loads(done.stdout)))
        print(f"{name:<42} {medians[-1]:5.2f} ms")
    print(f"the first takes {medians[0] / medians[1]:.2f} of the second's time")
    print(f"peak memory of one render                  {_peak() / 1e6:5.1f} MB")


def _peak() -> float:
    """Bytes: the largest resident set of any of five renders of the whole machine."""
    from tests.launcher.cases import case

    command = [Path(sys.executable).parent / "gpu-launcher", "render", *case("whole-machine").arguments()]
    for _ in range(5):
        subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024


if __name__ == "__main__":
    ours(int(sys.argv[1]))
