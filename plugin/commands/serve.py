"""`gpu-plugin serve`: the daemon."""

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from plugin.cards.naming import PCI_IDS, read_pci_ids
from plugin.commands.options import (
    KUBELET_DIR,
    POD_RESOURCES,
    ConfigFile,
    Dev,
    PCIIDsFile,
    Sysfs,
    config_of,
    inventory_of,
)
from plugin.serving.logs import start_logging

_MOST_OFTEN, _LEAST_OFTEN = 0.1, 86_400.0  # seconds


def _seconds(value: float) -> float:
    """Refuse what is out of range. Typer's min and max would take nan, which is neither less nor more than a number."""
    if not _MOST_OFTEN <= value <= _LEAST_OFTEN:
        raise typer.BadParameter(f"{value:g}; expected seconds, {_MOST_OFTEN:g} to {_LEAST_OFTEN:.0f} (a day).")
    return value


def serve(
    sysfs: Sysfs = Path("/sys"),
    dev: Dev = Path("/dev"),
    config: ConfigFile = None,
    pci_ids: PCIIDsFile = PCI_IDS,
    kubelet_dir: Annotated[Path, typer.Option(help="The kubelet's device plugin directory.")] = KUBELET_DIR,
    plugins_registry: Annotated[
        Path | None, typer.Option(help="Let the kubelet find the sockets here, instead of registering with it.")
    ] = None,
    pod_resources: Annotated[
        Path, typer.Option(help="The kubelet's pod resources socket, which tells what other plugins gave out.")
    ] = POD_RESOURCES,
    rescan: Annotated[
        float, typer.Option(callback=_seconds, help="Look at everything every so many seconds, for what no event told.")
    ] = 60.0,
    metrics: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Serve Prometheus metrics on this port.")
    ] = None,
    health: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Serve the gRPC health service on this port.")
    ] = None,
) -> None:
    """Offer the node's devices to the kubelet until SIGTERM. A changed config, or SIGHUP, takes effect at once."""
    # grpc takes as long to import as everything else together, and only this command needs it.
    from plugin.serving.daemon import World, run
    from plugin.watching.watch import Sources

    start_logging()
    os.umask(0o177)  # the sockets are for root's kubelet alone
    names = read_pci_ids(pci_ids)
    sources = Sources(
        sys=sysfs,
        dev=dev,
        pod_resources=pod_resources,
        config=config,
        look=lambda rules, before: inventory_of(sysfs, rules, names, before),
        read_config=lambda: config_of(config),
        rescan=rescan,
    )
    world = World(
        sources=sources, kubelet_dir=kubelet_dir, plugins_registry=plugins_registry, metrics=metrics, health=health
    )
    asyncio.run(run(world))
