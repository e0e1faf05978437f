"""gpu-plugin as a DRA driver, on machines of 8 to 512 cards, beside a stand-in of the API server (tests/apiserver.py):
`python -m tests.bench.dra`. Every answer is checked.

- start: from exec until the API server has every card on offer.
- memory: the proportional set size after all Prepares, with the process that reads for it. It is to stay under 60 MB.
- Prepare, Unprepare: of a claim of one card, at a grpcio client; the API server is asked for the claim, the CDI
  specification and the checkpoint are written through to the disk.
- idle: CPU time in ten seconds.
"""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc

from plugin.kubelet_api.dra_v1 import dra_pb2 as api
from plugin.kubelet_api.dra_v1 import dra_pb2_grpc
from tests.bench.machine import Machine, build
from tests.bench.process import cpu_seconds, proportional_set_size
from tests.bench.table import Line, alone, table
from tests.plugin.dra.cluster import Cluster, reference, running_cluster
from tests.processes import children

CARDS = (8, 64, 512)
_OTHERS = 200
_CLAIMS = 400
_IDLE = 10.0  # seconds
_SETTLED = 2.0  # seconds after the last Unprepare: what it leaves behind is done


def main() -> None:
    print(table(line for cards in CARDS for line in _figures(cards)))


def _figures(cards: int) -> Iterator[Line]:
    with tempfile.TemporaryDirectory(prefix="gl-", dir="/tmp") as directory:
        machine = build(Path(directory), cards=cards, others=_OTHERS)
        with running_cluster(Path(directory), machine.sys) as cluster:
            began = time.perf_counter()
            # By events and once a minute, as the DaemonSet has it.
            with cluster.driver("serve: dra\n", "--rescan", "60") as program:
                cluster.wait_for(*map(_name, machine.nodes))
                yield alone(f"exec to all published, {cards} cards", [(time.perf_counter() - began) * 1e3], "ms", 50)
                prepares, unprepares = _asked(cluster, machine)
                yield alone(f"Prepare of one card, {cards} cards", prepares, "ms", 50, 99)
                yield alone(f"Unprepare, {cards} cards", unprepares, "ms", 50, 99)
                pids = (program.process.pid, *children(program.process.pid))
                memory = sum(map(proportional_set_size, pids)) / 1e6
                yield alone(f"memory (PSS), {cards} cards", [memory], "MB", 100)
                time.sleep(_SETTLED)
                before = sum(map(cpu_seconds, pids))
                time.sleep(_IDLE)
                idle = (sum(map(cpu_seconds, pids)) - before) * 1e3
                yield alone(f"idle CPU in {_IDLE:g} s, {cards} cards", [idle], "ms", 50)


def _asked(cluster: Cluster, machine: Machine) -> tuple[list[float], list[float]]:
    """Milliseconds of each Prepare and Unprepare, of one claim after the other."""
    names = [_name(device_id) for device_id in machine.nodes]
    prepares, unprepares = [], []
    socket = f"unix:{cluster.kubelet.socket()}"
    with grpc.insecure_channel(socket, options=[("grpc.enable_http_proxy", 0)]) as channel:
        driver = dra_pb2_grpc.DRAPluginStub(channel)
        for number in range(_CLAIMS):
            claim: dict[str, Any] = cluster.claim(names[number % len(names)])
            uid, reached = claim["metadata"]["uid"], reference(claim)
            began = time.perf_counter()
            prepared = driver.NodePrepareResources(api.NodePrepareResourcesRequest(claims=[reached]), timeout=45)
            prepares.append((time.perf_counter() - began) * 1e3)
            assert not prepared.claims[uid].error, prepared.claims[uid].error
            (device,) = prepared.claims[uid].devices
            assert device.device_name == names[number % len(names)]
            began = time.perf_counter()
            freed = driver.NodeUnprepareResources(api.NodeUnprepareResourcesRequest(claims=[reached]), timeout=45)
            unprepares.append((time.perf_counter() - began) * 1e3)
            assert not freed.claims[uid].error, freed.claims[uid].error
            cluster.delete(claim)
    return prepares, unprepares


def _name(device_id: str) -> str:
    return "pci-" + device_id.replace(":", "-").replace(".", "-")


if __name__ == "__main__":
    main()
