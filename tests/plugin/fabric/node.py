"""A node with eight GPUs and a Fabric Manager, whose partitions are handed out in this process."""

import asyncio
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

from pci.viability import Hindrance
from plugin.cards.config import Fabric
from plugin.cards.inventory import Device
from plugin.changes.users import Assignment, CannotAsk, KubeletList
from plugin.fabric.ownership import Partitions
from plugin.fabric.status import FabricStatus
from tests.fabric.standin import SOCKET, Manager
from tests.plugin.fabric.boards import ADDRESSES, MODULE_OF, inventory
from tests.waiting import allowed

OWN_POD = "kube-system/gpu-plugin"
RESOURCE = "nvidia.com/GA100_A100_SXM4_40GB"
INVENTORY = inventory()


class Node:
    """`pods` is what each pod has, by module IDs, as the kubelet lists it; `lists` is whether it does, `is_whole`
    whether it lists this plugin's own pod."""

    def __init__(self, manager: Manager, state: Path, **settings: Any) -> None:
        self.manager = manager
        self.state = state
        self.settings: Fabric | None = Fabric(
            library=str(manager.library),
            manager=SOCKET,
            **{"modules": {address: module for module, address in ADDRESSES.items()}, **settings},
        )
        self.inventory = INVENTORY
        self.pods: dict[str, set[int]] = {}
        self.lists = True
        self.is_whole = True
        self.unlinked: Mapping[str, Hindrance] = {}
        self.told: list[FabricStatus] = []

    def partitions(self, every: float = 0, **world: Any) -> Partitions:
        """As a plugin that has just been started has them."""
        return Partitions(
            state=self.state,
            settings=lambda: self.settings,
            inventory=lambda: self.inventory,
            listed=self._listed,
            own_pod=OWN_POD,
            every=every,
            tell=self._tell,
            **world,
        )

    async def allocate(self, partitions: Partitions, pod: str | None, *modules: int) -> None:
        """As the kubelet does for a pod; the pod has the cards afterwards."""
        await partitions.acquire([[device(module) for module in modules]])
        if pod is not None:
            self.pods[pod] = set(modules)

    async def prepare(self, partitions: Partitions, claim: str, *modules: int) -> None:
        await partitions.acquire([[device(module) for module in modules]], claim)

    async def _listed(self) -> KubeletList:
        if not self.lists:
            raise CannotAsk(Path("/kubelet.sock"), "does not answer")
        its = {Assignment(pod, RESOURCE, ADDRESSES[module]) for pod, modules in self.pods.items() for module in modules}
        pods = {*self.pods, OWN_POD} if self.is_whole else {*self.pods}
        return KubeletList(frozenset(pods), frozenset(its))

    def _tell(self, partitions: FabricStatus, unlinked: Mapping[str, Hindrance]) -> None:
        self.told.append(partitions)
        self.unlinked = unlinked

    @property
    def unlinked_modules(self) -> set[int]:
        return {MODULE_OF[address] for address in self.unlinked}


def device(module: int) -> Device:
    return INVENTORY.by_id[ADDRESSES[module]]


def run(life: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(life, allowed(60)))
