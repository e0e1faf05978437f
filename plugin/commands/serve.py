"""`gpu-plugin serve`: the daemon."""

import asyncio
import os
import resource
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

import typer

from pci.slices import DRIVER
from plugin.binding.rebinding import refusals
from plugin.cards.config import Config
from plugin.cards.inventory import take_inventory
from plugin.cards.naming import PCI_IDS, read_pci_ids
from plugin.commands.options import (
    KUBELET_DIR,
    POD_RESOURCES,
    STATE,
    ConfigFile,
    Dev,
    PCIIDsFile,
    State,
    Sysfs,
    config_of,
)
from plugin.serving.logs import start_logging
from plugin.serving.monitoring import LIVE, READY, Port
from plugin.watching.reader import Reader
from program.errors import UserError

_MOST_OFTEN, _LEAST_OFTEN = 0.1, 86_400.0  # seconds
_PORT = "[ADDRESS:]PORT"
_DRA_STATE = Path("/var/lib/kubelet/plugins") / DRIVER
_CDI = Path("/var/run/cdi")
_PLUGINS_REGISTRY = Path("/var/lib/kubelet/plugins_registry")


def _seconds(value: float) -> float:
    """Refuse what is out of range. Typer's min and max would take nan, which is neither less nor more than a number."""
    if not _MOST_OFTEN <= value <= _LEAST_OFTEN:
        raise typer.BadParameter(f"{value:g}; expected seconds, {_MOST_OFTEN:g} to {_LEAST_OFTEN:.0f} (a day).")
    return value


def _port(value: str) -> Port:
    address, _, number = value.rpartition(":")
    try:
        if not (number.isascii() and number.isdecimal() and 1 <= int(number) <= 65535):
            raise ValueError(number)
        return Port(str(ip_address(address.removeprefix("[").removesuffix("]"))) if address else None, int(number))
    except ValueError:
        raise typer.BadParameter(f"{value!r}; expected {_PORT}, like 8080, 127.0.0.1:8080 or [::1]:8080.") from None


def _config_of(_: Path, config: Path | None) -> Config:
    return config_of(config)


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
    state: State = STATE,
    own_pod: Annotated[
        str | None,
        typer.Option(
            metavar="NAMESPACE/NAME", help="This plugin's pod: a kubelet that does not list it lists too few."
        ),
    ] = None,
    node_name: Annotated[
        str | None,
        typer.Option(
            envvar="NODE_NAME", help="Be the DRA driver of the node of this name, too: for devices with serve: dra."
        ),
    ] = None,
    dra_state: Annotated[
        Path, typer.Option(help="Where the DRA driver keeps what it has prepared; the same path on the node.")
    ] = _DRA_STATE,
    cdi: Annotated[Path, typer.Option(help="The directory of the container runtime's CDI specifications.")] = _CDI,
    kubeconfig: Annotated[
        Path | None, typer.Option(help="Where the API server is, for DRA.  [default: as the pod is told]")
    ] = None,
    rescan: Annotated[
        float, typer.Option(callback=_seconds, help="Look at everything every so many seconds, for what no event told.")
    ] = 60.0,
    metrics: Annotated[
        Port | None, typer.Option(parser=_port, metavar=_PORT, help="Serve Prometheus metrics there, at /metrics.")
    ] = None,
    health: Annotated[
        Port | None,
        typer.Option(parser=_port, metavar=_PORT, help=f"Serve health there, for probes: {LIVE} and {READY}."),
    ] = None,
) -> None:
    """Offer the node's devices to the kubelet until SIGTERM. A changed config, or SIGHUP, takes effect at once."""
    start_logging()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    reader = Reader()  # first, while there are no threads and little memory
    # grpc's core would write lines of its own between those of JSON, with whatever a client has sent.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # grpc takes as long to import as everything else together, and only this command needs it.
    from plugin.serving.daemon import World, run
    from plugin.watching.watch import Sources

    os.umask(0o177)  # the sockets are for root's kubelet alone
    names = read_pci_ids(pci_ids)

    async def read_config() -> Config:
        # In another process: what reads YAML and checks it would stay in this one's memory.
        rules = await reader.ask(_config_of, sysfs, config)
        if rules.uses_dra and node_name is None:
            raise UserError(config or "the config", "says serve: dra", "name the node with --node-name or NODE_NAME")
        return rules

    sources = Sources(
        sys=sysfs,
        dev=dev,
        reader=reader,
        pod_resources=pod_resources,
        config=config,
        take=lambda host, rules, before: take_inventory(host, rules, names, before),
        read_config=read_config,
        refusals=partial(refusals, state=state),
        rescan=rescan,
    )
    beside = None
    if node_name is not None:
        # The client of the API server is a third of the plugin's memory.
        from plugin.binding.former import boot_id
        from plugin.dra.driver import Settings, drive

        settings = Settings(
            node=node_name,
            state=dra_state,
            cdi=cdi,
            registry=plugins_registry or _PLUGINS_REGISTRY,
            kubeconfig=kubeconfig,
            boot=boot_id(sysfs.absolute().parent / "proc"),
            former=state,
        )
        beside = partial(drive, settings=settings)
    world = World(
        sources=sources,
        kubelet_dir=kubelet_dir,
        plugins_registry=plugins_registry,
        state=state,
        own_pod=own_pod,
        metrics=metrics,
        health=health,
        beside=beside,
    )
    asyncio.run(run(world))
