"""The command line of `gpu-plugin serve`, the daemon; a child reads it, and `plugin.starting` starts what it says."""

from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

import typer

from plugin.cards.naming import PCI_IDS
from plugin.commands.options import (
    DRA_STATE,
    KUBELET_DIR,
    POD_RESOURCES,
    STATE,
    ConfigFile,
    Dev,
    PCIIDsFile,
    State,
    Sysfs,
)
from plugin.serving.monitoring import LIVE, READY, Port
from plugin.starting import Flags

_MOST_OFTEN, _LEAST_OFTEN = 0.1, 86_400.0  # seconds
_PORT = "[ADDRESS:]PORT"
_CDI = Path("/var/run/cdi")


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
    ] = DRA_STATE,
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
) -> Flags:
    """Offer the node's devices to the kubelet until SIGTERM. A changed config, or SIGHUP, takes effect at once."""
    return Flags(
        sysfs=sysfs,
        dev=dev,
        config=config,
        pci_ids=pci_ids,
        kubelet_dir=kubelet_dir,
        plugins_registry=plugins_registry,
        pod_resources=pod_resources,
        state=state,
        own_pod=own_pod,
        node_name=node_name,
        dra_state=dra_state,
        cdi=cdi,
        kubeconfig=kubeconfig,
        rescan=rescan,
        metrics=metrics,
        health=health,
    )
