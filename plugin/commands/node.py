"""The node as a command looks at it, once: the flags say where."""

import asyncio
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from plugin import sysfs_child
from plugin.cards.holders import Assignment, CannotAsk
from plugin.cards.names import PCI_IDS, PCIIDs
from plugin.commands.options import config_of
from plugin.dra.checkpoint import Checkpoint, claimed
from plugin.flags import DRA_STATE, POD_RESOURCES, STATE, ConfigFile, PCIIDsFile, Sysfs
from plugin.node.look import Places, Witnesses, look_at_all
from plugin.node.snapshot import Snapshot
from plugin.state_files import boot_id
from program.errors import Refusal
from program.flags import Flag

_SYS = Path("/sys")


@dataclass(frozen=True, kw_only=True)
class NodeFlags:
    """Where to look at a node."""

    sysfs: Sysfs = _SYS
    proc: Annotated[Path | None, Flag("The directory that stands for /proc.  [default: /proc, none with --sysfs]")] = (
        None
    )
    dev: Annotated[Path | None, Flag("The directory that stands for /dev.  [default: /dev, none with --sysfs]")] = None
    config: ConfigFile = None
    pci_ids: PCIIDsFile = PCI_IDS
    pod_resources: Annotated[
        Path | None, Flag("The kubelet's pod resources socket.  [default: the kubelet's, none with --sysfs]")
    ] = None
    state: Annotated[
        Path | None,
        Flag("Where it is kept who has which partition.  [default: /var/lib/gpu-plugin, none with --sysfs]"),
    ] = None
    dra_state: Annotated[
        Path | None,
        Flag(f"Where the DRA driver keeps what it has prepared.  [default: {DRA_STATE}, none with --sysfs]"),
    ] = None


def node_now(flags: NodeFlags, names: PCIIDs) -> Snapshot:
    """Return all that can be known of the node of that /sys. What is None is where this node has it, and is not looked
    at if /sys is another tree. ProgramError if the node cannot be read, or a named socket does not answer."""
    sysfs, proc, dev, state = flags.sysfs, flags.proc, flags.dev, flags.state
    is_this_node = sysfs == _SYS
    if is_this_node:
        proc, dev = proc or Path("/proc"), dev or Path("/dev")

    async def ask(read: Any, sys: Path, *arguments: Any, **named: Any) -> Any:
        return sysfs_child.ask(read, sys, *arguments, **named)[0]

    async def pods() -> frozenset[Assignment] | None:
        return await _assignments(flags.pod_resources, is_this_node=is_this_node)

    def claims() -> Mapping[str, str] | None:
        directory = flags.dra_state or (DRA_STATE if is_this_node else None)
        return None if directory is None else _claimed(directory, proc or sysfs.absolute().parent / "proc")

    places = Places(sys=sysfs, dev=dev, proc=proc, state=state or STATE)
    witnesses = Witnesses(pods=pods, claims=claims, fabric=is_this_node or state is not None)
    return asyncio.run(look_at_all(places, names, config_of(flags.config), ask, witnesses))


async def _assignments(named: Path | None, *, is_this_node: bool) -> frozenset[Assignment] | None:
    """Return who has what, by the socket that was named, which has to answer, or by this node's, which may not be
    there."""
    if named is None and not (is_this_node and os.path.exists(POD_RESOURCES)):  # noqa: PTH110 (it may raise)
        return None
    # grpc takes as long to import as everything else together.
    from plugin.watch import podresources

    try:
        return await podresources.assignments(named or POD_RESOURCES, at_most=10.0)
    except CannotAsk as error:
        if named is not None:
            raise
        print(f"gpu-plugin: which pods have what is not known: {error}", file=sys.stderr)
        return None


def _claimed(directory: Path, proc: Path) -> Mapping[str, str] | None:
    try:
        return claimed(Checkpoint(directory, boot_id(proc)).read())
    except Refusal as error:
        print(f"gpu-plugin: which claims have what is not known: {error}", file=sys.stderr)
        return None
