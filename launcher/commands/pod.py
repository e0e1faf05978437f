"""gpu-launcher pod."""

import re
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated
from uuid import UUID

import typer

from launcher.choosing.cluster_files import read_cluster
from launcher.choosing.names import refuse_unknown_ids
from launcher.commands.answers import say, say_notes
from launcher.commands.options import BlockVolume, VMFlags, every_vm, refuse_other_volumes
from launcher.fields.quantity import parse_amount, written
from launcher.manifest.parser import ParsedVM
from launcher.pipeline.start import attempt
from launcher.pod.controllers import Kind, Run, pod_spec
from launcher.pod.documents import documents
from launcher.pod.metadata import FLAG, annotation_prefix
from launcher.pod.objects import data_volumes, objects
from launcher.pod.resources import for_containers, waits_for
from launcher.pod.security import Confinement, Level
from launcher.runtime.suspendable import too_short
from launcher.vm.from_spec import guest_of
from launcher.vm.memory.pod import ANY_CARD, mapped_bars
from launcher.vm.plain import PodObject
from launcher.vm.versions import foreign, parse_version
from pci.resource import NODE_DEVICES
from program.errors import Nonsense, ProgramError, UserError, together
from program.flags import Flag
from program.input import STDIN
from program.log import LogFlags
from program.output import print_text
from program.ports import ALLOW_HOST, host_name

#: What the API server puts behind a generateName (k8s.io/apimachinery's pkg/util/rand): five of these.
_RANDOM, _RANDOM_LENGTH = "bcdfghjklmnpqrstvwxz2456789", 5
_MOST_BARS = 1 << 46  # bytes; what a CPU with 46 address bits can reach


@dataclass(frozen=True, kw_only=True)
class PodFlags(VMFlags):
    """A VM, and how its pod is to be made."""

    image: Annotated[
        str | None,
        typer.Option(metavar="IMAGE", help="The launcher's image.  [default: gpu-launcher of this version]"),
    ] = None
    as_kind: Annotated[
        Kind | None,
        typer.Option(
            "--as",
            metavar="KIND",
            help="What runs it: pod, deployment, statefulset or job.  [default: pod; of a pool "
            "statefulset, of a replica set deployment]",
        ),
    ] = None
    replicas: Annotated[
        int | None, typer.Option("--replicas", metavar="N", min=0, help="How many VMs, each with its own name.")
    ] = None
    max_unavailable: Annotated[
        int | None,
        typer.Option(
            "--max-unavailable",
            metavar="N",
            min=0,
            help="Print a PodDisruptionBudget as well: how many of them may be away while nodes are drained.",
        ),
    ] = None
    block_volume: BlockVolume = None
    node_devices: Annotated[
        str,
        typer.Option(metavar="DOMAIN", help="The domain of the resources that are /dev/kvm and the like."),
    ] = NODE_DEVICES
    start: Annotated[
        bool, typer.Option("--start", help="Start a VM that is not to run: Halted, running: false, or neither.")
    ] = False
    dra: Annotated[
        bool,
        typer.Option(
            "--dra", help="Have DRA give the cards: print the ResourceClaimTemplate that says which ones too."
        ),
    ] = False
    cluster: Annotated[
        Path | None,
        typer.Option(
            "--cluster",
            metavar="FILE",
            help="With --dra: what `kubectl get resourceslices -o json` prints, to look up NVML's UUIDs; or what fit "
            "takes.",
        ),
    ] = None
    level: Annotated[
        Level,
        typer.Option("--level", help="The Pod Security level that has to admit the pod: docs/restricted.md."),
    ] = Level.PRIVILEGED
    apparmor: Annotated[
        bool,
        typer.Option("--apparmor", help="The nodes have AppArmor, and the profile that deploy/node has for it."),
    ] = False
    pass_annotation: Annotated[
        list[str] | None,
        Flag(
            "With --level: a further annotation that the pod may have, or what such begin with; may be given again.",
            metavar="PREFIX",
            parser=annotation_prefix,
        ),
    ] = None
    metrics: Annotated[
        int | None,
        typer.Option(
            "--metrics",
            metavar="PORT",
            min=1024,
            max=65535,
            help="Serve Prometheus metrics of the VM there.",
        ),
    ] = None
    allow_host: Annotated[
        list[str] | None,
        Flag(
            "A name by which the metrics are reached, like a Service's; may be given again.",
            metavar="NAME",
            parser=host_name,
        ),
    ] = None
    owner: Annotated[
        str | None,
        typer.Option(
            "--owner",
            metavar="UID",
            help="The uid of the Pod, or its controller, in the cluster: the config map is deleted with it.",
        ),
    ] = None
    bars: Annotated[
        str | None,
        typer.Option(
            "--bars",
            metavar="SIZE",
            help="The BARs of a device, those of the largest: the pod's memory has room for page tables.  "
            "[default: 128Gi]",
        ),
    ] = None
    kernel: Annotated[
        str | None,
        typer.Option("--kernel", metavar="VERSION", help="The oldest kernel of the nodes, like 6.12.  [default: any]"),
    ] = None
    no_datavolumes: Annotated[
        bool, typer.Option("--no-datavolumes", help="Leave out DataVolumes: the claims of its templates are there.")
    ] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", self.node_devices):
            raise UserError(f"--node-devices {self.node_devices}", "is no domain", f"expected one like {NODE_DEVICES}")
        if self.image is not None and not re.fullmatch(r"[!-~]+", self.image):
            fix = "expected one like registry.example.com/gpu-launcher:1.0"
            raise UserError(f"--image {self.image}", "is no image", fix)
        if self.pass_annotation and self.level is Level.PRIVILEGED:
            wrong = "is for --level baseline and restricted: a pod of privileged has all of the VM's annotations"
            raise UserError(FLAG, wrong, "leave it out, or add --level")
        if self.allow_host and self.metrics is None:
            raise UserError(ALLOW_HOST, "is for --metrics", "add --metrics, or leave it out")
        if self.cluster is not None and not self.dra:
            raise UserError("--cluster", "is for --dra: a device plugin gives any card", "add --dra, or leave it out")
        if self.cluster == STDIN and self.vm == STDIN:
            raise UserError("--cluster -", "standard input is the VM already", "name a file for one of them")

    @property
    def words(self) -> tuple[str, ...]:
        """Return the words that repeat these flags, except those of one call: --start, --dra, --cluster and --owner."""
        return (
            *_words("--image", self.image),
            *_words("--as", self.as_kind and self.as_kind.value),
            *_words("--replicas", self.replicas),
            *_words("--max-unavailable", self.max_unavailable),
            *_words("--block-volume", *self.block_volume or ()),
            *_words("--node-devices", None if self.node_devices == NODE_DEVICES else self.node_devices),
            *_words("--level", None if self.level is Level.PRIVILEGED else self.level.value),
            *["--apparmor"] * self.apparmor,
            *_words(FLAG, *self.pass_annotation or ()),
            *_words("--metrics", self.metrics),
            *_words(ALLOW_HOST, *self.allow_host or ()),
            *_words("--bars", self.bars),
            *_words("--kernel", self.kernel),
            *["--no-datavolumes"] * self.no_datavolumes,
        )

    def run(self, vm: ParsedVM) -> Run:
        """Return what the flags say, and else the manifest."""
        controller, number = vm.many or (Kind.POD.value, None)
        replicas = number if self.replicas is None else self.replicas
        return Run(self.as_kind or Kind(controller), replicas, self.max_unavailable)


def pod(flags: PodFlags, logs: LogFlags) -> None:
    """Print the Pod that runs a VM, and what it needs, for `kubectl apply -f -`; of several VMs, that of each."""
    card = mapped_bars(
        ANY_CARD.size if flags.bars is None else _size(flags.bars),
        None if flags.kernel is None else parse_version(flags.kernel, "--kernel", "6.12"),
    )
    image = flags.image or f"gpu-launcher:{version('gpu-launcher')}"
    vms = every_vm(flags, "".join(secrets.choice(_RANDOM) for _ in range(_RANDOM_LENGTH)))
    refuse_other_volumes([vm.instance for vm in vms], {"--block-volume": flags.block_volume})
    if flags.owner is not None:
        _check_owner(flags.owner, len(vms))
    snapshot = None if flags.cluster is None else read_cluster(flags.cluster)
    made: list[PodObject] = []
    errors: list[ProgramError] = []
    for vm in vms:
        refused: list[ProgramError] = []
        if flags.dra:
            attempt(partial(refuse_unknown_ids, vm.instance.metadata.annotations.selection, snapshot), refused)
        block = frozenset(volume.name for volume in vm.instance.spec.volumes) & set(flags.block_volume or ())
        made += (
            attempt(
                partial(
                    objects,
                    vm,
                    image=image,
                    block=block,
                    node_devices=flags.node_devices,
                    start=flags.start,
                    imports=not flags.no_datavolumes,
                    dra=flags.dra,
                    owner=flags.owner,
                    logs=logs.arguments,
                    metrics=flags.metrics,
                    hosts=flags.allow_host or (),
                    run=flags.run(vm),
                    confinement=Confinement(flags.level, flags.apparmor, tuple(flags.pass_annotation or ())),
                    card=card,
                    words=(*flags.words, *logs.arguments),
                ),
                refused,
            )
            or ()
        )
        errors += [error.changed(vm.located) for error in refused]
    if errors:
        raise together(errors)
    if flags.image is None:
        say_notes([f"the pod's image is {image}, which no registry has: name yours with --image"])
    pods = [(each["metadata"]["name"], spec) for each in made if (spec := pod_spec(each)) is not None]
    say_notes([waits for name, spec in pods if (waits := waits_for(name, spec, flags.node_devices)) is not None])
    say(
        "warning",
        [
            *(_without_datavolumes(vms) if flags.no_datavolumes else ()),
            *_of_start(vms),
            *(str(problem) for name, spec in pods for problem in for_containers(name, spec)),
        ],
    )
    print_text(documents(made))


def _without_datavolumes(vms: Iterable[ParsedVM]) -> Iterator[str]:
    for vm in vms:
        if left_out := data_volumes(vm):
            names = ", ".join(volume["metadata"]["name"] for volume in left_out)
            yield f"{vm.instance.metadata.name}: claims of these names have to be there, filled: {names}"


def _of_start(vms: Iterable[ParsedVM]) -> Iterator[str]:
    """Yield what keeps a VM from starting everywhere, or its memory from being saved in time."""
    for vm in vms:
        vmi, annotations = vm.instance, vm.instance.metadata.annotations
        other = foreign(vmi.spec.domain.machine.type)
        if other is not None and not annotations.nearest_machine:
            yield str(vm.located(other))
        if annotations.suspends_on_drain:
            short = too_short(guest_of(vmi).memory, vmi.spec.terminationGracePeriodSeconds)
            if short is not None:
                yield str(vm.located(short.problem))


def _words(flag: str, *values: object) -> list[str]:
    return [f"{flag}={value}" for value in values if value is not None]


def _size(bars: str) -> int:
    try:
        size = parse_amount(bars).whole
    except Nonsense as error:
        raise UserError(f"--bars {bars}", error.wrong, error.fix) from None
    if size > _MOST_BARS:
        raise UserError(f"--bars {bars}", "is more than any device has", f"expected {written(_MOST_BARS)} at most")
    return size


def _check_owner(uid: str, vms: int) -> None:
    try:
        UUID(uid)
    except ValueError:
        fix = "expected what kubectl get pod NAME -o jsonpath={.metadata.uid} prints"
        raise UserError(f"--owner {uid}", "is no uid", fix) from None
    if vms > 1:
        raise UserError(f"--owner {uid}", f"is of one VM's pod, and there are {vms} VMs", "pick one with --name")
