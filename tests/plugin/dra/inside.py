"""The driver's parts in this process, between the stand-in for the API server and a recorded node."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from plugin.cards.config import Config, Serve
from plugin.cards.names import PCIIDs
from plugin.device_plugin.daemon import _partitions
from plugin.dra.apiserver import APIServer
from plugin.dra.binder import Binder
from plugin.dra.claims import Reference
from plugin.dra.preparation import Claims, DriverSettings
from plugin.watch.watch import Sources, Watch
from tests.plugin.dra.cluster import NODE, Cluster
from tests.plugin.reader import new_reader

T = TypeVar("T")


@dataclass(frozen=True)
class Inside:
    """What a driver has."""

    cluster: Cluster
    watch: Watch
    api: APIServer

    def claims(self, *, bind_within: float = 25.0, asked_again: float = 20.0) -> Claims:
        settings = DriverSettings(
            node=NODE,
            state=self.cluster.state,
            cdi=self.cluster.cdi,
            registry=self.cluster.kubelet.registry,
            kubeconfig=None,
            boot="",
        )
        binder = Binder(self.cluster.sys, self.watch.sources.state, self.watch.counters.binds, at_most=bind_within)
        partitions = _partitions(self.watch, own_pod=None)
        return Claims(self.watch, self.api, partitions, settings, binder=binder, asked_again=asked_again)


def inside(cluster: Cluster, names: PCIIDs, life: Callable[[Inside], Awaitable[T]], config: Config | None = None) -> T:
    """Return what the life of a driver returns."""
    its = config or Config(serve=Serve.DRA)

    async def read_config() -> Config:
        return its

    sources = Sources(
        sys=cluster.sys,
        dev=cluster.directory / "dev",
        reader=new_reader(),
        pod_resources=cluster.directory / "kubelet.sock",
        config=None,
        names=names,
        state=cluster.directory / "former",
        read_config=read_config,
        rescan=60,
    )

    async def live() -> T:
        with sources.reader.listening(lambda: None, lambda: None):
            return await begun()

    async def begun() -> T:
        watch = await Watch.begin(sources, asyncio.Event())
        async with APIServer.connected(cluster.directory / "kubeconfig") as api:
            return await life(Inside(cluster, watch, api))

    return asyncio.run(live())


def reference(claim: dict[str, Any]) -> Reference:
    metadata = claim["metadata"]
    return Reference(metadata["namespace"], metadata["name"], metadata["uid"])
