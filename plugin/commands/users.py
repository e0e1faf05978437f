"""Where bind, unbind and vgpus look for the users of a device, and who was given which."""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

from plugin.changes.engine import Roots
from plugin.changes.users import KubeletList
from plugin.dra.checkpoint import Checkpoint, claimed
from plugin.flags import DRA_STATE, POD_RESOURCES, STATE, StateDirectory, require_directory
from plugin.state_files import boot_id
from program.child import forked
from program.errors import UserError
from program.flags import Flag

_SYS = Path("/sys")
_KUBELET_WITHIN = 20.0


@dataclass(frozen=True, kw_only=True)
class UsersFlags:
    """The places of sysfs and of what is asked for the users of a device."""

    sysfs: Annotated[
        Path, Flag("The directory that stands for /sys; its neighbours for /proc, /dev and /lib/modules.")
    ] = _SYS
    proc: Annotated[Path | None, Flag("The directory that stands for /proc.  [default: the neighbour of --sysfs]")] = (
        None
    )
    pod_resources: Annotated[
        Path | None, Flag("The kubelet's pod resources socket.  [default: the kubelet's, none with --sysfs]")
    ] = None
    dra_state: Annotated[
        Path | None,
        Flag(f"Where the DRA driver keeps what it has prepared.  [default: {DRA_STATE}, none with --sysfs]"),
    ] = None
    state: StateDirectory = STATE

    @property
    def is_this_node(self) -> bool:
        return self.sysfs == _SYS

    @property
    def roots(self) -> Roots:
        """The directories of the node. UserError if a named one is not there."""
        for flag in ("proc", "dra_state"):
            require_directory(f"--{flag.replace('_', '-')}", getattr(self, flag))
        beside = Roots.beside(self.sysfs, self.state)
        return replace(beside, proc=self.proc or beside.proc)

    def require_claims(self, harm: str) -> None:
        """UserError if another tree than this node's is to be changed and nobody says where its claims are; `harm` is
        what would happen then."""
        if not (self.is_this_node or self.dra_state):
            wrong, fix = "is there without --dra-state", "name where the DRA driver of that node keeps its claims"
            raise UserError(f"--sysfs {self.sysfs}", f"{wrong}: {harm}", fix)

    def list_assignments(self) -> KubeletList:
        """Return what the kubelet has given out, nothing if it is not to be asked; Refusal if it does not answer."""
        socket = self.pod_resources
        if socket is None and self.is_this_node and os.path.exists(POD_RESOURCES):  # noqa: PTH110 (it may raise)
            socket = POD_RESOURCES
        if socket is None:
            return KubeletList()
        return list_pods(socket)

    def claimed(self) -> Mapping[str, str]:
        """Return the claim for which each device is prepared, by its ID; none if no driver's file is to be read. Broken
        if that cannot be read."""
        directory = self.dra_state or (DRA_STATE if self.is_this_node else None)
        return {} if directory is None else claimed(Checkpoint(directory, boot_id(self.roots.proc)).read())


def list_pods(socket: Path) -> KubeletList:
    """Return what the kubelet at that socket has given out; Refusal if it does not answer."""
    # In a child: grpc has threads, and a process with threads must not fork, as it does for each read of sysfs.
    return forked(f"the kubelet at {socket}", partial(_listed, socket), within=_KUBELET_WITHIN).answer()


def _listed(socket: Path) -> KubeletList:
    from plugin.watch import podresources

    return asyncio.run(podresources.list_pods(socket, at_most=_KUBELET_WITHIN / 2))
