"""The look at a node: the daemon takes it again and again, a command once."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias
from uuid import UUID

from pci.address import PCIAddress
from pci.functions import is_gpu
from pci.host import Function, Host
from pci.sysfs.attribute import Unreadable
from pci.sysfs.details import off_the_bus, read_details
from pci.sysfs.functions import read_host
from pci.sysfs.pcie import read_peer_to_peer
from pci.sysfs.platform import read_platform
from pci.vendors import NVIDIA
from plugin.cards.claimable import claimable_cards
from plugin.cards.config import Bind, Config, Fabric
from plugin.cards.inventory import Inventory, take_inventory
from plugin.cards.names import PCIIDs
from plugin.cards.nodes import read_nodes
from plugin.changes.engine import Roots
from plugin.changes.users import KubeletList
from plugin.fabric.activations import Owners, owners_file
from plugin.fabric.board import Board, ids_of
from plugin.fabric.fabric_manager import Manager
from plugin.fabric.modules import read_module_ids
from plugin.fabric.status import FabricStatus, serves_without
from plugin.kinds.card import refusals
from plugin.kinds.cut import still_there, types_of
from plugin.node.cordons import cordons_of
from plugin.node.snapshot import Inspection, Snapshot, peers_of
from plugin.nvml import Identities, read_identities
from plugin.state_files import Broken
from program.errors import Refusal
from program.problem import Problem

#: Calls a function with a tree like /sys and more arguments in another process, since the kernel may not answer.
#: Refusal if nothing can be read in that tree now.
AskSysfs: TypeAlias = Callable[..., Awaitable[Any]]

#: Seconds between the two reads that have to return ones; a reset takes less.
_RESETS_END_WITHIN = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDirectories:
    """The directories that stand for /sys, /dev and /proc, None for one that is not read; and `state`, with the
    journal, NVML's UUIDs, module IDs and the owners of partitions. `node` is the node's name, if it is known; `cordons`
    has a file for each card of the cluster that is out of service."""

    sys: Path
    dev: Path | None
    proc: Path | None
    state: Path
    node: str | None = None
    cordons: Path | None = None

    @property
    def roots(self) -> Roots:
        """The directories for a binder; one that is None here is taken from beside /sys."""
        beside = Roots.beside(self.sys, self.state)
        return replace(beside, dev=self.dev or beside.dev, proc=self.proc or beside.proc)


async def look(
    places: NodeDirectories,
    names: PCIIDs,
    config: Config,
    ask: AskSysfs,
    latest: Callable[[], Snapshot | None] = lambda: None,
    *,
    uses: bool = True,
) -> Snapshot:
    """Return the `latest` snapshot with the kernel's parts read again. ProgramError if the node cannot be read, or the
    config makes no sense on it.

    `latest` is called after each read, since other parts may change meanwhile. With `uses`, all processes of the node
    are read, for the users of devices that are to be bound to vfio for a claim, and NVIDIA's driver is asked for UUIDs;
    without it, users are looked for only at devices that were not to be bound before, and UUIDs only if a card has
    another driver.
    """
    host, before = await ask(read_host, places.sys), latest()
    host, journal_trouble = _with_ours(host, places, config)
    if before is not None:
        host = host.as_seen_since(before.host)
        # A full card names no types, but later claims will need them.
        host = replace(host, vgpu_types={**before.host.vgpu_types, **host.vgpu_types})
    same = before if before is not None and before.config == config else None
    inventory = take_inventory(host, config, names, None if same is None else same.inventory)
    known = {} if same is None or uses else same.refusals
    new = {device_id: functions for device_id, functions in inventory.to_bind.items() if device_id not in known}
    every = {**known, **(await ask(refusals, places.sys, new, config, roots=places.roots) if new else {})}
    cards, identities = _nvidias(inventory), Identities()
    if same is not None and not uses and cards == _nvidias(same.inventory):
        identities = same.identities
    elif cards:
        identities = await ask(read_identities, places.sys, cards, proc=places.roots.proc, state=places.state)
    return replace(
        latest() or Snapshot(config=config, host=host, inventory=inventory),
        node=places.node,
        cordons={} if places.cordons is None or places.node is None else cordons_of(places.node, places.cordons),
        config=config,
        host=host,
        inventory=inventory,
        claimable=claimable_cards(host, config, names),
        nodes=None if places.dev is None else read_nodes(places.dev),
        refusals={device_id: every[device_id] for device_id in sorted(inventory.to_bind)},
        identities=identities,
        journal_trouble=journal_trouble,
    )


def _with_ours(host: Host, places: NodeDirectories, config: Config) -> tuple[Host, Problem | None]:
    """Return the host with the vGPUs that gpu-plugin made and the names of their types: the kernel names only types
    that a function can still become. Also return why the journal cannot be read, if anything depends on it: most nodes
    need no journal."""
    has_vgpus = bool(host.mdevs) or any(one.vgpu_type is not None for one in host.functions.values())
    if not (has_vgpus or config.vgpus or config.bind is Bind.WHEN_CLAIMED):
        return host, None
    try:
        journal = places.roots.journal.read()
    except Broken as error:
        return host, error.problem
    devices = still_there(host, journal)
    ours: set[PCIAddress | UUID] = {*map(PCIAddress.parse, devices.types), *map(UUID, devices.mdevs)}
    return replace(host, vgpu_types=types_of(host, journal), made_vgpus=frozenset(ours)), None


def _nvidias(inventory: Inventory) -> tuple[Function, ...]:
    leads = dict.fromkeys(device.lead for device in inventory.devices)
    return tuple(lead for lead in leads if lead.vendor_id == NVIDIA and is_gpu(lead))


async def look_at_all(
    places: NodeDirectories,
    names: PCIIDs,
    config: Config,
    ask: AskSysfs,
    *,
    pods: Callable[[], Awaitable[KubeletList | None]],
    claims: Callable[[], Mapping[str, str] | None],
    fabric: bool,
) -> Snapshot:
    """Return a snapshot with all parts, for a command; change nothing, and wake no sleeping card. ProgramError as in
    `look`.

    `pods` asks the kubelet and `claims` reads the DRA driver's checkpoint, which may be Broken; both return None if
    unknown. With `fabric`, the Fabric Manager is asked.
    """
    snapshot = await look(places, names, config, ask)
    inventory = snapshot.inventory

    async def idle() -> tuple[PCIAddress, ...] | None:
        nonlocal snapshot
        if (listed := await pods()) is None:
            snapshot = replace(snapshot, assignments=None, sees_pods=False)
        else:
            snapshot = snapshot.with_pods(listed)
        try:
            snapshot = replace(snapshot, claimed=claims(), claims_trouble=None)
        except Broken as error:
            snapshot = replace(snapshot, claimed=None, claims_trouble=error.problem)
        return snapshot.idle if snapshot.knows_users else None

    fallen = await fallen_off_the_bus(ask, places.sys, idle)
    partitions = None
    if snapshot.fabric is not None and fabric:
        partitions = await _partitions(snapshot.fabric, places.state, inventory)
    return replace(
        snapshot,
        fallen=fallen,
        partitions=partitions,
        inspection=await ask(_inspect, places.sys, places.proc, inventory, peers_of(snapshot.host, inventory)),
    )


async def fallen_off_the_bus(
    ask: AskSysfs, sys: Path, idle: Callable[[], Awaitable[Sequence[PCIAddress] | None]]
) -> frozenset[PCIAddress] | None:
    """Return which of the `idle` functions fell off the bus; None if it is unknown which are idle. Refusal if they
    cannot be read. Two reads have to agree, since a function in reset looks the same; `idle` is called right before
    each."""
    fallen: frozenset[PCIAddress] | None = None
    for wait in (0.0, _RESETS_END_WITHIN):
        await asyncio.sleep(wait)
        if (addresses := await idle()) is None:
            return None
        ones: frozenset[PCIAddress] = await ask(off_the_bus, sys, addresses)
        fallen = ones if fallen is None else fallen & ones
        if not fallen:
            break
    return fallen


async def _partitions(settings: Fabric, state: Path, inventory: Inventory) -> FabricStatus:
    owners: Owners | None = None
    try:
        owners = owners_file(state).read()
        table = await Manager(settings).table()
    except Broken as error:
        return FabricStatus.without_owners(error)
    except Refusal as error:
        return FabricStatus(trouble=error.problem, is_awaited=not serves_without(error, owners))
    ids = ids_of(inventory, read_module_ids(settings, state))
    return FabricStatus(Board(table, ids, settings.version), owners or Owners())


def _inspect(sys: Path, proc: Path | None, inventory: Inventory, peers: tuple[Function, ...]) -> Inspection:
    details = {}
    faults = []
    for function in (function for device in inventory.devices for function in device.functions):
        try:
            details[function.address] = read_details(sys, function.address)
        except Unreadable as unreadable:
            faults.append(unreadable.fault)
    paths = {}
    for address in dict.fromkeys(address for peer in peers for address in (*peer.bridges, peer.address)):
        try:
            if (path := read_peer_to_peer(sys, address)) is not None:
                paths[address] = path
        except Unreadable as unreadable:
            faults.append(unreadable.fault)
    platform = read_platform(sys, proc)
    return Inspection(platform=platform, details=details, peer_to_peer=paths, faults=tuple(faults))
