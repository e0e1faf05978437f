"""gpu-launcher hook as KubeVirt finds it: from exec to its Info, a define with eight GPUs on the sysfs of an HGX
machine, and what it takes of the memory of the pod."""

import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from launcher.hook.api import v1alpha3_pb2
from tests.bench.process import proportional_set_size
from tests.launcher.hook.domains import CASES, Case
from tests.launcher.hook.kubevirt import vmi
from tests.processes import BIN, ROOT, children

_STARTS, _CALLS = 15, 200
_INFO = "/kubevirt.hooks.info.Info/Info"
_DEFINE = "/kubevirt.hooks.v1alpha3.Callbacks/OnDefineDomain"


@contextmanager
def started(socket: Path, sysfs: Path) -> Iterator[tuple[int, grpc.Channel, float]]:
    """Its process, a channel to it, and the seconds from exec to its first answer."""
    start = time.perf_counter()
    command: list[str | Path] = [BIN / "gpu-launcher", "hook", "--socket", socket, "--sysfs", sysfs]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        while not socket.exists():
            time.sleep(0.002)
        with grpc.insecure_channel(f"unix:{socket}", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            info: Any = channel.unary_unary(_INFO)
            info(b"", timeout=5, wait_for_ready=True)
            yield process.pid, channel, time.perf_counter() - start
    finally:
        process.terminate()
        process.wait()


def peak(socket: Path, sysfs: Path) -> int:
    """The most bytes that it has with its child, which reads the command line, looked at every millisecond."""
    most = 0
    command: list[str | Path] = [BIN / "gpu-launcher", "hook", "--socket", socket, "--sysfs", sysfs]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    while not socket.exists():
        sizes = []
        for pid in (process.pid, *children(process.pid)):
            try:
                sizes.append(proportional_set_size(pid))
            except (OSError, AssertionError):  # it has ended
                continue
        most = max(most, sum(sizes))
    process.terminate()
    process.wait()
    return most


def calls(channel: grpc.Channel, case: Case) -> list[float]:
    sent = vmi(case.gpus, annotations=case.annotations)
    request = v1alpha3_pb2.OnDefineDomainParams(domainXML=case.xml, vmi=sent).SerializeToString()
    define: Any = channel.unary_unary(_DEFINE)
    seconds = []
    for _ in range(_CALLS):
        start = time.perf_counter()
        define(request, timeout=5)
        seconds.append(time.perf_counter() - start)
    return seconds


def main() -> None:
    eight = [case for case in CASES if case.name in ("8 GPUs", "numa", "mirror")]
    with tempfile.TemporaryDirectory(prefix="gl-", dir="/tmp") as directory:
        infos = []
        for number in range(_STARTS):
            with started(Path(directory, f"{number}.sock"), eight[0].sysfs) as (_, _, seconds):
                infos.append(seconds)
        print(f"exec to Info: {1000 * statistics.median(infos):.0f} ms, at most {1000 * max(infos):.0f}")
        print(f"memory (PSS), the most at the start: {peak(Path(directory, 'p.sock'), eight[0].sysfs) / 1e6:.1f} MB")
        with started(Path(directory, "calls.sock"), eight[0].sysfs) as (pid, channel, _):
            time.sleep(2)  # until it has imported the rest
            print(f"memory (PSS), idle: {proportional_set_size(pid) / 1e6:.1f} MB")
            for case in eight:
                taken = sorted(calls(channel, case))
                p50, p99 = taken[len(taken) // 2], taken[len(taken) * 99 // 100]
                print(f"a define, {case.name}: {1000 * p50:.1f} ms, p99 {1000 * p99:.1f}")
            print(f"memory (PSS), after these: {proportional_set_size(pid) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
