"""The port for metrics. It is opened before the guest's network, so that passt leaves it out where all ports of the pod
are the guest's; asyncio and h11 are imported for the first scrape."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from launcher.runtime.first_caller import serving_on_demand
from launcher.runtime.vm import VM
from program.ports import HTTPPort, opened


@contextmanager
def serving_metrics(port: HTTPPort, vm: VM, xml: str, sys: Path) -> Iterator[None]:
    """Serve the metrics of the VM with this domain on a port; Refusal if nothing can listen there."""

    def serve(end: int) -> None:
        import asyncio

        from launcher.metrics.server import serve

        asyncio.run(serve(listener, port.names, end, vm, xml, sys))

    with (
        opened("--metrics", port) as listener,
        serving_on_demand(listener, f"--metrics {port}", "the port for metrics", serve),
    ):
        yield
