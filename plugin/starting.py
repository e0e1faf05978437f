"""`gpu-plugin serve` as a process: what it is told, what it reads the node with, and the servers on that."""

import asyncio
import os
import resource
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from plugin.binding.former import boot_id
from plugin.cards.config import Config
from plugin.cards.naming import read_pci_ids
from plugin.serving.logs import start_logging
from plugin.serving.monitoring import Port
from plugin.watching.reader import Reader
from plugin.watching.watch import Sources
from program.errors import UserError

#: Where the kubelet finds DRA drivers, which cannot register with it.
_PLUGINS_REGISTRY = Path("/var/lib/kubelet/plugins_registry")


@dataclass(frozen=True, kw_only=True)
class Flags:
    """What the command line says; `gpu-plugin serve --help` has what each is for."""

    sysfs: Path
    dev: Path
    config: Path | None
    pci_ids: Path
    kubelet_dir: Path
    plugins_registry: Path | None
    pod_resources: Path
    state: Path
    own_pod: str | None
    node_name: str | None
    dra_state: Path
    cdi: Path
    kubeconfig: Path | None
    rescan: float
    metrics: Port | None
    health: Port | None


def readied() -> Reader:
    """Return what reads the node, and import what serves. To be called while this process has one thread."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    reader = Reader()  # first, while there are no threads and little memory
    # grpc's core would write lines of its own between those of JSON, with whatever a client has sent.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # grpc takes as long to import as everything else together, and would be in the reader's memory.
    import plugin.serving.daemon  # noqa: F401

    return reader


def start(flags: Flags, reader: Reader) -> None:
    """Serve until SIGTERM. ProgramError if something is wrong from the start."""
    start_logging()
    from plugin.serving.daemon import World, run

    os.umask(0o177)  # the sockets are for root's kubelet alone

    async def read_config() -> Config:
        if flags.config is None:
            return Config()
        rules = await reader.ask(_read_config, flags.sysfs, flags.config)
        if rules.uses_dra and flags.node_name is None:
            raise UserError(flags.config, "says serve: dra", "name the node with --node-name or NODE_NAME")
        return rules

    sources = Sources(
        sys=flags.sysfs,
        dev=flags.dev,
        state=flags.state,
        reader=reader,
        pod_resources=flags.pod_resources,
        names=read_pci_ids(flags.pci_ids),
        config=flags.config,
        read_config=read_config,
        rescan=flags.rescan,
    )
    beside = None
    if flags.node_name is not None:
        # The client of the API server is a third of the plugin's memory.
        from plugin.dra.driver import Settings, drive

        settings = Settings(
            node=flags.node_name,
            state=flags.dra_state,
            cdi=flags.cdi,
            registry=flags.plugins_registry or _PLUGINS_REGISTRY,
            kubeconfig=flags.kubeconfig,
            boot=boot_id(flags.sysfs.absolute().parent / "proc"),
            former=flags.state,
        )
        beside = partial(drive, settings=settings)
    world = World(
        sources=sources,
        kubelet_dir=flags.kubelet_dir,
        plugins_registry=flags.plugins_registry,
        state=flags.state,
        own_pod=flags.own_pod,
        metrics=flags.metrics,
        health=flags.health,
        beside=beside,
    )
    asyncio.run(run(world))


def _read_config(_: Path, config: Path) -> Config:
    """In another process: what reads YAML and checks it would stay in this one's memory."""
    from plugin.config_file import read_config

    return read_config(config)
