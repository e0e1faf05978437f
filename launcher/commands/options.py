"""The flags that several commands have."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from launcher.manifest.spec import VirtualMachineInstance
from program.errors import UserError

# The options that render and explain share.
VM = Annotated[
    Path,
    typer.Argument(metavar="VM.yaml", help="A VirtualMachine or VirtualMachineInstance; - for standard input."),
]
Name = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", help="Which VM, where there are several: NAME or NAMESPACE/NAME."),
]
Instancetype = Annotated[
    Path | None,
    typer.Option("--instancetype", metavar="FILE", help="The instance type that the VM names, if not beside it."),
]
Preference = Annotated[
    Path | None,
    typer.Option("--preference", metavar="FILE", help="The preference that the VM names, if not beside it."),
]
Env = Annotated[
    list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="A variable of the pod; may be given again.")
]
EnvFile = Annotated[Path | None, typer.Option("--env-file", help="The pod's variables, one NAME=VALUE a line.")]
Sysfs = Annotated[
    Path | None,
    typer.Option(
        "--sysfs", help="The directory that stands for /sys.  [default: none with --env or --env-file, else /sys]"
    ),
]
DRA = Annotated[
    Path | None,
    typer.Option(
        "--dra",
        metavar="DIR",
        help="What DRA's drivers say of the pod's claims.  "
        "[default: none with --env or --env-file, else /var/run/kubernetes.io/dra-device-attributes]",
    ),
]
Emulation = Annotated[bool, typer.Option("--emulation", help="QEMU's own CPU instead of KVM.")]
BlockVolume = Annotated[
    list[str] | None,
    typer.Option("--block-volume", metavar="NAME", help="A volume whose claim is a block device; may be given again."),
]
RawImage = Annotated[
    list[str] | None,
    typer.Option(
        "--raw-image", metavar="NAME", help="A containerDisk whose image is raw, and not qcow2; may be given again."
    ),
]
NoDirectIO = Annotated[
    list[str] | None,
    typer.Option(
        "--no-direct-io",
        metavar="NAME",
        help="A volume with files on a file system that takes no O_DIRECT; may be given again.",
    ),
]
BlockSize = Annotated[
    list[str] | None,
    typer.Option(
        "--block-size",
        metavar="NAME=LOGICAL/PHYSICAL/DISCARD",
        help="A volume's block sizes in bytes, for a disk that matches them; may be given again.",
    ),
]
Cpuset = Annotated[
    str | None,
    typer.Option("--cpuset", metavar="LIST", help="The pod's CPUs, like 0-3,8, for dedicatedCpuPlacement."),
]
NetworkStatus = Annotated[
    Path | None,
    typer.Option(
        "--network-status",
        metavar="FILE",
        help="What Multus has attached to the pod: its annotation k8s.v1.cni.cncf.io/network-status.  "
        "[default: interfaces net1, net2, ... with an address]",
    ),
]
Libvirt = Annotated[
    str | None,
    typer.Option("--libvirt", metavar="VERSION", help="The libvirt it is for: refuse what is newer than that."),
]


def refuse_other_volumes(vmis: Sequence[VirtualMachineInstance], given: Mapping[str, Iterable[str] | None]) -> None:
    """UserError for a flag, by its name in `given`, that names a volume which none of the manifests has."""
    volumes = [volume.name for vmi in vmis for volume in vmi.spec.volumes]
    for flag, names in given.items():
        if other := next((name for name in names or () if name not in volumes), None):
            known = f"expected one of {', '.join(volumes)}" if volumes else "leave it out: it has no volumes"
            raise UserError(f"{flag} {other}", "the manifest has no such volume", known)
