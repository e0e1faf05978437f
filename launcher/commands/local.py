"""What `run` and `check` have in common: their flags, and the place that these name."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from launcher.commands.options import Emulation, GPUFlag, VMFlags, one_vm, refuse_other_volumes
from launcher.manifest.parser import ParsedVM
from launcher.pipeline.own_machine import own_machine
from launcher.pipeline.pod import SYS, Pod, this_pod, with_gpus
from launcher.runtime.embedded import DEFAULT_URI, uri_of
from launcher.runtime.own_user import named_user
from launcher.runtime.user import LIMITS
from launcher.vm.facts import OwnMachine
from program.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Local(VMFlags):
    """A VM, and what of this machine it is to run on."""

    connect: Annotated[str, typer.Option(metavar="URI", help="The libvirt to run it on.")] = DEFAULT_URI
    sysfs: Annotated[Path, typer.Option(help="The directory that stands for /sys.")] = SYS
    emulation: Emulation = False
    gpu: GPUFlag = None
    disk: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PATH",
            help="Without a cluster: the image or block device of a volume of the manifest; may be given again.",
        ),
    ] = None
    port: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OWN:GUEST",
            help="Without a cluster: a port of 127.0.0.1 for one of the guest's, like 2222:22; may be given again.",
        ),
    ] = None
    user: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|UID",
            help="As root: be this user. Without a cluster also QEMU is root only if this names root.  [default: who "
            "called sudo, else libvirt-qemu or qemu; in a pod root]",
        ),
    ] = None
    give: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH",
            help="What that user is to have: a file or a device, in a pod of /dev all nodes below it; may be given "
            "again.",
        ),
    ] = None
    limits: Annotated[
        list[str] | None,
        typer.Option(
            "--raise", metavar="LIMIT", help=f"A limit to raise before: {' or '.join(LIMITS)}; may be given again."
        ),
    ] = None

    @property
    def is_own_machine(self) -> bool:
        """Return whether the VM has a place without a cluster."""
        return bool(self.gpu or self.disk or self.port)


class Located(NamedTuple):
    """A VM, the pod that it is in, the libvirt that is to run it, and its place without a pod, None in one."""

    vm: ParsedVM
    pod: Pod
    uri: str
    own: OwnMachine | None


def located(flags: Local) -> Located:
    """Return where the flags want the VM. With --gpu, --disk or --port it is on its user's own machine."""
    pod = this_pod(flags.sysfs)
    parsed = one_vm(flags, pod.environ)
    vmi = parsed.instance
    if not flags.is_own_machine:
        return Located(parsed, pod, flags.connect, None)
    if flags.connect != DEFAULT_URI:
        raise UserError(
            "--connect", "is for another libvirt than --gpu, --disk and --port", "leave one or the other out"
        )
    _refuse_what_root_did_not_do(flags)
    disks = flags.disk or []
    refuse_other_volumes([vmi], {"--disk": [setting.partition("=")[0] for setting in disks]})
    own = own_machine(vmi, disks, flags.port or [], pod.environ, os.getuid())
    return Located(parsed, with_gpus(pod, flags.gpu or [], vmi), uri_of(own.run), own)


def _refuse_what_root_did_not_do(flags: Local) -> None:
    """Compare the flags with this process, which launcher.runtime.own_user has started if root has called it."""
    if flags.user is not None and named_user(flags.user).pw_uid != os.getuid():
        fix = "leave it out, or call it with sudo"
        raise UserError(f"--user {flags.user}", "is another user, which only root can become", fix)
