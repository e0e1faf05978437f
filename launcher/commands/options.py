"""The flags that several commands have, a frozen dataclass for each set of them; and the VMs that they name."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from launcher.commands.answers import say_notes
from launcher.manifest.identity import Known, known_in
from launcher.manifest.parser import ParsedVM, read_every, read_vm
from launcher.vm.spec import VirtualMachineInstance
from program.errors import UserError
from program.problem import one_line

VMArgument = Annotated[
    Path,
    typer.Argument(metavar="VM.yaml", help="A VirtualMachine or VirtualMachineInstance; - for standard input."),
]
Emulation = Annotated[bool, typer.Option("--emulation", help="QEMU's own CPU instead of KVM.")]
BlockVolume = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="A volume whose claim is a block device; may be given again."),
]

GPUFlag = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ADDRESS",
        help="Without a cluster: the card of an entry of gpus or hostDevices, like 0000:01:00.0; once for each, in "
        "their order.",
    ),
]

ClusterFile = Annotated[
    Path,
    typer.Option(
        "--cluster",
        metavar="FILE",
        help="What `kubectl get nodes,pods -A -o json` prints, and where DRA gives the cards "
        "`kubectl get nodes,pods,resourceslices,resourceclaims,deviceclasses -A -o json`, and devicetaintrules if the "
        "cluster has them; as YAML too; - for standard input. Or a directory with NODE.json of each node, as "
        "`gpu-plugin inventory --json` prints it.",
    ),
]


def _stand(context: typer.Context, vm: str | None) -> str | None:
    """Make --vm the default of the argument. typer reads this option first, since it is eager."""
    if vm is not None:
        context.default_map = {"vm": vm}
    return vm


@dataclass(frozen=True, kw_only=True)
class VMFlags:
    """The VM that a command is about. `also_vm` is the value of --vm; UserError if it is another file than `vm`."""

    vm: VMArgument
    also_vm: Annotated[str | None, typer.Option("--vm", hidden=True, is_eager=True, callback=_stand)] = None
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Which VM, where there are several: NAME or NAMESPACE/NAME."),
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
        typer.Option(metavar="FILE", help="The instance type that the VM names, if not beside it."),
    ] = None
    preference: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The preference that the VM names, if not beside it."),
    ] = None

    def __post_init__(self) -> None:
        if self.also_vm not in (None, str(self.vm)):
            raise UserError(f"--vm {self.also_vm}", f"another file is the argument, {self.vm}", "give one of them")


def one_vm(flags: VMFlags, environ: Mapping[str, str]) -> ParsedVM:
    """Read the VM that the flags name, and say the notes about it. `environ` are the variables of its pod."""
    known = known_in(environ, flags.namespace)
    return _with_notes((read_vm(flags.vm, flags.name, _types(flags), known),))[0]


def every_vm(flags: VMFlags, suffix: str) -> tuple[ParsedVM, ...]:
    """Read all VMs that the flags name, and say the notes about them. The suffix follows a generateName."""
    known = Known(flags.namespace or None, suffix=suffix)
    return _with_notes(read_every(flags.vm, flags.name, _types(flags), known))


def _types(flags: VMFlags) -> dict[str, Path]:
    files = {"instancetype": flags.instancetype, "preference": flags.preference}
    return {field: file for field, file in files.items() if file is not None}


def _with_notes(vms: tuple[ParsedVM, ...]) -> tuple[ParsedVM, ...]:
    say_notes([one_line(note) for parsed in vms for note in parsed.notes])
    return vms


def refuse_other_volumes(vmis: Sequence[VirtualMachineInstance], by_flag: Mapping[str, Iterable[str] | None]) -> None:
    """UserError for a flag, by its name in `by_flag`, that names a volume which none of the manifests has."""
    volumes = [volume.name for vmi in vmis for volume in vmi.spec.volumes]
    for flag, names in by_flag.items():
        if other := next((name for name in names or () if name not in volumes), None):
            known = f"expected one of {', '.join(volumes)}" if volumes else "leave it out: it has no volumes"
            raise UserError(f"{flag} {other}", "the manifest has no such volume", known)
