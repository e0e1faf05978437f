"""The port for metrics. It is opened before the guest's network, so that passt leaves it out if all ports of the pod
are the guest's; asyncio and h11 are imported at the first scrape."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from launcher.runtime.first_caller import serving_on_demand
from launcher.runtime.vm import VM
from program.ports import HTTPPort, opened


@contextmanager
def serving_metrics(port: HTTPPort, vm: VM, xml: str, sys: Path) -> Iterator[None]:
    """Serve the VM's metrics on a port; `xml` is its domain. Refusal if the port cannot be opened."""

    def serve(end: int) -> None:
        import asyncio

        from launcher.metrics.server import serve

        asyncio.run(serve(listener, port.names, end, vm, xml, sys))

    with (
        opened("--metrics", port) as listener,
        serving_on_demand(listener, f"--metrics {port}", "the port for metrics", serve),
    ):
        yield
