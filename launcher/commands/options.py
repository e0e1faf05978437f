"""The flags that several commands have, a frozen dataclass for each set of them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from launcher.manifest.spec import VirtualMachineInstance
from program.errors import UserError

VMArgument = Annotated[
    Path,
    typer.Argument(metavar="VM.yaml", help="A VirtualMachine or VirtualMachineInstance; - for standard input."),
]
Emulation = Annotated[bool, typer.Option("--emulation", help="QEMU's own CPU instead of KVM.")]
BlockVolume = Annotated[
    list[str] | None,
    typer.Option("--block-volume", metavar="NAME", help="A volume whose claim is a block device; may be given again."),
]


def _stand(context: typer.Context, vm: str | None) -> str | None:
    """Make --vm the default of the argument. typer reads this option first, since it is eager."""
    if vm is not None:
        context.default_map = {"vm": vm}
    return vm


@dataclass(frozen=True, kw_only=True)
class VMFlags:
    """Which VM a command is about. `also_vm` is what --vm names: then `vm` is the same, or it is a UserError."""

    vm: VMArgument
    also_vm: Annotated[str | None, typer.Option("--vm", hidden=True, is_eager=True, callback=_stand)] = None
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Which VM, where there are several: NAME or NAMESPACE/NAME."),
    ] = None
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            "-n",
            metavar="NAMESPACE",
            help="The namespace of a VM whose manifest names none.  [default: its pod's, or default]",
        ),
    ] = None
    instancetype: Annotated[
        Path | None,
        typer.Option("--instancetype", metavar="FILE", help="The instance type that the VM names, if not beside it."),
    ] = None
    preference: Annotated[
        Path | None,
        typer.Option("--preference", metavar="FILE", help="The preference that the VM names, if not beside it."),
    ] = None

    def __post_init__(self) -> None:
        if self.also_vm not in (None, str(self.vm)):
            raise UserError(f"--vm {self.also_vm}", f"another file is the argument, {self.vm}", "give one of them")


def refuse_other_volumes(vmis: Sequence[VirtualMachineInstance], given: Mapping[str, Iterable[str] | None]) -> None:
    """UserError for a flag, by its name in `given`, that names a volume which none of the manifests has."""
    volumes = [volume.name for vmi in vmis for volume in vmi.spec.volumes]
    for flag, names in given.items():
        if other := next((name for name in names or () if name not in volumes), None):
            known = f"expected one of {', '.join(volumes)}" if volumes else "leave it out: it has no volumes"
            raise UserError(f"{flag} {other}", "the manifest has no such volume", known)
