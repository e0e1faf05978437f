"""`gpu-plugin serve` as a process, on a machine that is a directory."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.kernel import make_nodes
from tests.processes import FIXTURES, Program, running

RTX_3090 = "nvidia.com/GA102_GEFORCE_RTX_3090"
BOTH = ("0000:01:00.0", "0000:e1:00.0")


@contextmanager
def serve(sys: Path, kubelet_dir: Path, *arguments: str | Path) -> Iterator[Program]:
    """`gpu-plugin serve` on a machine beside a kubelet's directory; VFIO's nodes are made for it, below
    `kubelet_dir`/dev. No kernel tells of changes in a copied tree, so it looks every half second."""
    dev = kubelet_dir / "dev"
    if not dev.exists():
        make_nodes(sys, dev)
    common = ("--sysfs", sys, "--dev", dev, "--kubelet-dir", kubelet_dir, "--pci-ids", FIXTURES / "pci.ids")
    pods = ("--pod-resources", kubelet_dir / "pod-resources" / "kubelet.sock")
    with running("gpu-plugin", "serve", *common, *pods, "--rescan", "0.5", *arguments) as program:
        yield program


def wait_until(condition: Callable[[], object], seconds: float = 30) -> None:
    """Wait for something that no kubelet hears of: a socket that comes or goes, a metric."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"not within {seconds} s"
        time.sleep(0.01)
