"""What `render` and `explain` have in common: their flags, and the start that these describe."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from launcher.commands.answers import report_findings
from launcher.commands.options import BlockVolume, Emulation, GPUFlag, VMFlags, one_vm, refuse_other_volumes
from launcher.pipeline.described_pod import DescribedPod
from launcher.pipeline.pod import pod_of, with_gpus
from launcher.pipeline.start import Start, start_of
from launcher.vm.cpu.facts import cpuset_of_flag
from launcher.vm.facts import Facts, PodInterface, read_block_sizes
from launcher.vm.network.multus import LARGEST, attached_to_the_pod, read_status
from launcher.vm.spec import Spec
from launcher.vm.versions import parse_version
from program.input import read_input_bytes


@dataclass(frozen=True, kw_only=True)
class Offline(VMFlags):
    """A VM, and what else its domain depends on."""

    env: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A variable of the pod; may be given again.")
    ] = None
    env_file: Annotated[Path | None, typer.Option(help="The pod's variables, one NAME=VALUE a line.")] = None
    gpu: GPUFlag = None
    sysfs: Annotated[
        Path | None,
        typer.Option(help="The directory that stands for /sys.  [default: none with --env or --env-file, else /sys]"),
    ] = None
    dra: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="What DRA's drivers say of the pod's claims.  "
            "[default: none with --env or --env-file, else /var/run/kubernetes.io/dra-device-attributes]",
        ),
    ] = None
    emulation: Emulation = False
    block_volume: BlockVolume = None
    raw_image: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A containerDisk whose image is raw, and not qcow2; may be given again."),
    ] = None
    no_direct_io: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A volume with files on a file system that takes no O_DIRECT; may be given again.",
        ),
    ] = None
    block_size: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=LOGICAL/PHYSICAL/DISCARD",
            help="A volume's block sizes in bytes, for a disk that matches them; may be given again.",
        ),
    ] = None
    cpuset: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="The pod's CPUs, like 0-3,8, for dedicatedCpuPlacement."),
    ] = None
    libvirt: Annotated[
        str | None,
        typer.Option(metavar="VERSION", help="The libvirt it is for: refuse what is newer than that."),
    ] = None
    network_status: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="What Multus has attached to the pod: its annotation k8s.v1.cni.cncf.io/network-status.  "
            "[default: interfaces net1, net2, ... with an address]",
        ),
    ] = None


def offline(flags: Offline) -> Start:
    """Return what would be started, and print its warnings; raise what would keep it from starting."""
    version = parse_version(flags.libvirt) if flags.libvirt is not None else None
    pod = pod_of(flags.env, flags.env_file, flags.sysfs, flags.dra)
    parsed = one_vm(flags, pod.environ)
    vmi = parsed.instance
    if flags.gpu:
        pod = with_gpus(pod, flags.gpu, vmi)
    facts = facts_of(flags)
    named = {
        "--block-volume": flags.block_volume,
        "--raw-image": flags.raw_image,
        "--no-direct-io": flags.no_direct_io,
        "--block-size": facts.block_sizes,
    }
    refuse_other_volumes([vmi], named)
    interfaces = _pod_interfaces(vmi.spec, flags.network_status)
    facts = replace(facts, block=facts.block | parsed.block, pod_interfaces=interfaces)
    start = start_of(vmi, pod, DescribedPod(known_facts=facts, libvirt=version))
    report_findings(start, parsed)
    return start


def facts_of(flags: Offline) -> Facts:
    """Return what the flags alone tell of the pod; UserError for a list of CPUs or a block size that is none."""
    return Facts(
        kvm=not flags.emulation,
        cpus=cpuset_of_flag(flags.cpuset),
        block=frozenset(flags.block_volume or []),
        raw_images=frozenset(flags.raw_image or []),
        no_direct_io=frozenset(flags.no_direct_io or []),
        block_sizes=dict(map(read_block_sizes, flags.block_size or [])),
    )


def _pod_interfaces(spec: Spec, file: Path | None) -> Mapping[str, PodInterface] | None:
    if file is None:
        return None
    text = read_input_bytes(file, LARGEST, "expected the pod's annotation network-status").decode(errors="replace")
    return attached_to_the_pod(spec, read_status(text, f"--network-status {file}"))
