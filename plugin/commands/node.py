"""One look at the node for a command, in the places that its flags name."""

import asyncio
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pci.host import Function
from pci.viability import Hindrance
from plugin import sysfs_child
from plugin.cards.inventory import Device
from plugin.cards.names import PCI_IDS, PCIIDs
from plugin.changes.users import KubeletList
from plugin.commands.users import list_pods
from plugin.config_file import config_of
from plugin.dra.checkpoint import Checkpoint, claimed
from plugin.flags import DRA_STATE, POD_RESOURCES, STATE, PCIIDsFile, Sysfs, require_directory, require_node
from plugin.node.look import NodeDirectories, look_at_all
from plugin.node.snapshot import Snapshot
from plugin.state_files import boot_id
from program.errors import Refusal
from program.flags import Flag
from program.problem import Problem

_SYS = Path("/sys")


@dataclass(frozen=True, kw_only=True)
class NodeFlags:
    """Where to look at a node."""

    sysfs: Sysfs = _SYS
    proc: Annotated[Path | None, Flag("The directory that stands for /proc.  [default: /proc, none with --sysfs]")] = (
        None
    )
    dev: Annotated[
        Path | None,
        Flag(
            "The directory that stands for /dev.  [default: /host/dev, if it is there, as in the plugin's pod, else "
            "/dev; none with --sysfs]"
        ),
    ] = None
    config: Annotated[
        Path | None,
        Flag(
            "What to offer beyond NVIDIA, AMD and Intel GPUs, and under which names (YAML).  "
            "[default: /etc/gpu-plugin/config.yaml if it is there, as in the plugin's pod; none with --sysfs]"
        ),
    ] = None
    pci_ids: PCIIDsFile = PCI_IDS
    pod_resources: Annotated[
        Path | None, Flag("The kubelet's pod resources socket.  [default: the kubelet's, none with --sysfs]")
    ] = None
    state: Annotated[
        Path | None,
        Flag("Where it is kept who has which partition.  [default: /var/lib/gpu-plugin, none with --sysfs]"),
    ] = None
    own_node: Annotated[str | None, Flag("The node's name, for --cordons.", envvar="OWN_NODE")] = None
    cordons: Annotated[
        Path | None,
        Flag(
            "The directory of the ConfigMap that has the cards that are out of service.  [default: as in the plugin's "
            "pod, none with --sysfs]"
        ),
    ] = None
    dra_state: Annotated[
        Path | None,
        Flag(f"Where the DRA driver keeps what it has prepared.  [default: {DRA_STATE}, none with --sysfs]"),
    ] = None


def in_pod(flags: NodeFlags, root: Path = Path("/")) -> NodeFlags:
    """Return the flags of a look at this node with the plugin's config and the node's /sys, /proc and /dev, if they are
    where its pod has them (deploy/plugin, deploy/dra): so every command there sees a card as the plugin does."""
    if flags.sysfs != _SYS:
        return flags
    config, cordons, host = root / "etc/gpu-plugin/config.yaml", root / "etc/gpu-plugin-cordons", root / "host"

    def there(name: str) -> Path | None:
        return host / name if os.path.isdir(host / name) else None  # noqa: PTH112 (it may raise)

    return replace(
        flags,
        config=flags.config or (config if os.path.isfile(config) else None),  # noqa: PTH113
        cordons=flags.cordons or (cordons if os.path.isdir(cordons) else None),  # noqa: PTH112
        sysfs=there("sys") or _SYS,
        proc=flags.proc or there("proc"),
        dev=flags.dev or there("dev"),
    )


def node_now(flags: NodeFlags, names: PCIIDs) -> Snapshot:
    """Return all that can be known of the node of that /sys. A flag that is None means the place on this node; if /sys
    is another tree, it is not looked at. ProgramError if the node cannot be read, a named directory is not there, or a
    named socket does not answer."""
    is_this_node = flags.sysfs == _SYS
    for flag in ("proc", "dev", "state", "cordons", "dra_state"):
        require_directory(f"--{flag.replace('_', '-')}", getattr(flags, flag))
    require_node(flags.cordons, flags.own_node)
    flags = in_pod(flags)
    sysfs, proc, dev, state, dra_state = flags.sysfs, flags.proc, flags.dev, flags.state, flags.dra_state
    if is_this_node:
        proc, dev, dra_state = proc or Path("/proc"), dev or Path("/dev"), dra_state or DRA_STATE

    async def ask(read: Any, sys: Path, *arguments: Any, **named: Any) -> Any:
        return sysfs_child.ask(read, sys, *arguments, **named)[0]

    places = NodeDirectories(
        sys=sysfs,
        dev=dev,
        proc=proc,
        state=state or (STATE if is_this_node else _beside(sysfs)),
        node=flags.own_node,
        cordons=flags.cordons,
    )
    looking = look_at_all(
        places,
        names,
        config_of(flags.config),
        ask,
        pods=lambda: _listed(flags.pod_resources, is_this_node=is_this_node),
        claims=lambda: _claimed(dra_state, places.roots.proc),
        fabric=is_this_node or state is not None,
    )
    return asyncio.run(looking)


def _beside(sysfs: Path) -> Path:
    """Return where the state would be of a node whose /sys is another tree."""
    return sysfs.absolute().parent / STATE.relative_to("/")


async def _listed(named: Path | None, *, is_this_node: bool) -> KubeletList | None:
    """Return which pods have which devices. A socket that was named has to answer; this node's own may be missing."""
    if named is None and not (is_this_node and os.path.exists(POD_RESOURCES)):  # noqa: PTH110 (it may raise)
        return None
    try:
        return list_pods(named or POD_RESOURCES)
    except Refusal as error:
        if named is not None:
            raise
        print(f"gpu-plugin: which pods have what is not known: {error}", file=sys.stderr)
        return None


def function_as_json(function: Function) -> dict[str, Any]:
    """Return a function as every command's JSON has it."""
    return {
        "address": str(function.address),
        "id": function.pci_id,
        "class": f"{function.pci_class:06x}",
        "driver": function.driver,
    }


def hindrance_as_json(device: Device, hindrance: Hindrance | None) -> dict[str, str] | None:
    """Return a device's hindrance as a finding; None if there is none."""
    return None if hindrance is None else Problem(device.id, hindrance.wrong, hindrance.fix).as_json()


def _claimed(directory: Path | None, proc: Path) -> Mapping[str, str] | None:
    return None if directory is None else claimed(Checkpoint(directory, boot_id(proc)).read())
