"""`gpu-plugin serve` as a process: its flags, the process that reads sysfs for it, and its servers."""

import asyncio
import logging
import os
import resource
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from plugin.cards.config import Config
from plugin.cards.names import PCI_IDS, read_pci_ids
from plugin.device_plugin.monitoring import LIVE, READY
from plugin.flags import DRA_STATE, POD_RESOURCES, STATE, ConfigFile, PCIIDsFile, StateDirectory, Sysfs, require_node
from plugin.state_files import boot_id
from plugin.watch.reader import Reader
from plugin.watch.watch import Sources
from program.errors import UserError
from program.flags import Flag
from program.ports import ALLOW_HOST, METAVAR, HTTPPort, host_name, http_port, reached_by
from program.problem import Problem

#: The directory where the kubelet finds DRA drivers, which cannot register with it.
_PLUGINS_REGISTRY = Path("/var/lib/kubelet/plugins_registry")

_log = logging.getLogger(__name__)

_MOST_OFTEN, _LEAST_OFTEN = 0.1, 86_400.0  # seconds


def _seconds(word: str) -> float:
    with suppress(ValueError):
        # Not `if ... < ... or`: nan is neither less nor more than a number.
        if _MOST_OFTEN <= float(word) <= _LEAST_OFTEN:
            return float(word)
    raise ValueError(f"{word}; expected seconds, {_MOST_OFTEN:g} to {_LEAST_OFTEN:.0f} (a day).")


@dataclass(frozen=True, kw_only=True)
class ServeFlags:
    """The flags of `gpu-plugin serve`."""

    sysfs: Sysfs = Path("/sys")
    dev: Annotated[Path, Flag("The directory that stands for /dev.")] = Path("/dev")
    config: ConfigFile = None
    pci_ids: PCIIDsFile = PCI_IDS
    #: By default where every kubelet has its plugins' sockets, whatever its --root-dir (pluginapi.DevicePluginPath).
    kubelet_dir: Annotated[Path, Flag("The kubelet's device plugin directory.")] = Path(
        "/var/lib/kubelet/device-plugins"
    )
    plugins_registry: Annotated[
        Path | None, Flag("Let the kubelet find the sockets here, instead of registering with it.")
    ] = None
    pod_resources: Annotated[
        Path, Flag("The kubelet's pod resources socket, which tells what other plugins gave out.")
    ] = POD_RESOURCES
    state: StateDirectory = STATE
    own_pod: Annotated[
        str | None,
        Flag("This plugin's pod: a kubelet that does not list it lists too few.", metavar="NAMESPACE/NAME"),
    ] = None
    own_node: Annotated[
        str | None,
        Flag("The node's name, for its page and --cordons.  [default: that of --node-name]", envvar="OWN_NODE"),
    ] = None
    cordons: Annotated[
        Path | None, Flag("The directory of the ConfigMap that has the cards that are out of service.")
    ] = None
    node_name: Annotated[
        str | None,
        Flag("Be the DRA driver of the node of this name, too: for devices with serve: dra.", envvar="NODE_NAME"),
    ] = None
    dra_state: Annotated[Path, Flag("Where the DRA driver keeps what it has prepared; the same path on the node.")] = (
        DRA_STATE
    )
    cdi: Annotated[Path, Flag("The directory of the container runtime's CDI specifications.")] = Path("/var/run/cdi")
    kubeconfig: Annotated[Path | None, Flag("Where the API server is, for DRA.  [default: as the pod is told]")] = None
    rescan: Annotated[
        float,
        Flag("Look at everything every so many seconds, for what no event told.", metavar="<float>", parser=_seconds),
    ] = 60.0
    metrics: Annotated[
        HTTPPort | None, Flag("Serve Prometheus metrics there, at /metrics.", metavar=METAVAR, parser=http_port)
    ] = None
    health: Annotated[
        HTTPPort | None,
        Flag(
            f"Serve health there, for probes: {LIVE} and {READY}; / is the node's page.",
            metavar=METAVAR,
            parser=http_port,
        ),
    ] = None
    allow_host: Annotated[
        list[str] | None,
        Flag(
            "A name by which these ports are reached, like a Service's or the API server's; may be given again.",
            metavar="NAME",
            parser=host_name,
        ),
    ] = None


def readied() -> Reader:
    """Start the process that reads the node, and import the servers. Call this while this process has one thread."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    reader = Reader.forked()  # first, while there are no threads and little memory
    # grpc's core would write lines of its own between those of JSON, with whatever a client has sent.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # grpc takes as long to import as everything else together, and would be in the reader's memory.
    import plugin.device_plugin.daemon  # noqa: F401

    return reader


def start(flags: ServeFlags, reader: Reader) -> None:
    """Serve until SIGTERM. ProgramError if something is wrong from the start."""
    from plugin.device_plugin.daemon import Server, run

    os.umask(0o177)  # the sockets are for root's kubelet alone

    async def read_config() -> Config:
        if flags.config is None:
            return Config()
        rules, warnings = await reader.ask(_read_config, flags.sysfs, flags.config)
        if rules.uses_dra and flags.node_name is None:
            raise UserError(flags.config, "says serve: dra", "name the node with --node-name or NODE_NAME")
        for warning in warnings:
            _log.warning("%s", warning)
        return rules

    sources = Sources(
        sys=flags.sysfs,
        dev=flags.dev,
        state=flags.state,
        node=flags.own_node or flags.node_name,
        cordons=flags.cordons,
        reader=reader,
        pod_resources=flags.pod_resources,
        names=read_pci_ids(flags.pci_ids),
        config=flags.config,
        read_config=read_config,
        rescan=flags.rescan,
    )
    require_node(flags.cordons, sources.node)
    if flags.allow_host and flags.metrics is None and flags.health is None:
        raise UserError(ALLOW_HOST, "is for a port that is served", "add --metrics or --health, or leave it out")
    metrics, health = (
        None if port is None else reached_by(port, flags.node_name, *flags.allow_host or ())
        for port in (flags.metrics, flags.health)
    )
    beside: list[Server] = []
    if flags.node_name is not None:
        # The client of the API server is a third of the plugin's memory.
        from plugin.dra.driver import drive
        from plugin.dra.preparation import DriverSettings

        settings = DriverSettings(
            node=flags.node_name,
            state=flags.dra_state,
            cdi=flags.cdi,
            registry=flags.plugins_registry or _PLUGINS_REGISTRY,
            kubeconfig=flags.kubeconfig,
            boot=boot_id(sources.roots.proc),
        )
        beside.append(partial(drive, settings=settings))
    serving = run(
        sources,
        kubelet_dir=flags.kubelet_dir,
        plugins_registry=flags.plugins_registry,
        own_pod=flags.own_pod,
        metrics=metrics,
        health=health,
        beside=beside,
    )
    asyncio.run(serving)


def _read_config(_: Path, path: Path) -> tuple[Config, list[Problem]]:
    """Read the config. Call this in another process: the modules that parse and check YAML would stay in memory."""
    from plugin.config_file import read_config, shadowed_in

    config = read_config(path)
    return config, shadowed_in(path, config)
