"""gpu-launcher pod."""

import re
import secrets
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


def pod(
    flags: VMFlags,
    logs: LogFlags,
    image: Annotated[
        str | None,
        typer.Option(metavar="IMAGE", help="The launcher's image.  [default: gpu-launcher of this version]"),
    ] = None,
    as_kind: Annotated[
        Kind | None,
        typer.Option(
            "--as",
            metavar="KIND",
            help="What runs it: pod, deployment, statefulset or job.  [default: pod; of a pool "
            "statefulset, of a replica set deployment]",
        ),
    ] = None,
    replicas: Annotated[
        int | None, typer.Option("--replicas", metavar="N", min=0, help="How many VMs, each with its own name.")
    ] = None,
    max_unavailable: Annotated[
        int | None,
        typer.Option(
            "--max-unavailable",
            metavar="N",
            min=0,
            help="Print a PodDisruptionBudget as well: how many of them may be away while nodes are drained.",
        ),
    ] = None,
    block_volume: BlockVolume = None,
    node_devices: Annotated[
        str,
        typer.Option(metavar="DOMAIN", help="The domain of the resources that are /dev/kvm and the like."),
    ] = NODE_DEVICES,
    start: Annotated[
        bool, typer.Option("--start", help="Start a VM that is not to run: Halted, running: false, or neither.")
    ] = False,
    dra: Annotated[
        bool,
        typer.Option(
            "--dra", help="Have DRA give the cards: print the ResourceClaimTemplate that says which ones too."
        ),
    ] = False,
    cluster: Annotated[
        Path | None,
        typer.Option(
            "--cluster",
            metavar="FILE",
            help="With --dra: what `kubectl get resourceslices -o json` prints, to look up NVML's UUIDs; or what fit "
            "takes.",
        ),
    ] = None,
    level: Annotated[
        Level,
        typer.Option("--level", help="The Pod Security level that has to admit the pod: docs/restricted.md."),
    ] = Level.PRIVILEGED,
    apparmor: Annotated[
        bool,
        typer.Option("--apparmor", help="The nodes have AppArmor, and the profile that deploy/node has for it."),
    ] = False,
    pass_annotation: Annotated[
        list[str] | None,
        Flag(
            "With --level: a further annotation that the pod may have, or what such begin with; may be given again.",
            metavar="PREFIX",
            parser=annotation_prefix,
        ),
    ] = None,
    metrics: Annotated[
        int | None,
        typer.Option(
            "--metrics",
            metavar="PORT",
            min=1024,
            max=65535,
            help="Serve Prometheus metrics of the VM there.",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        Flag(
            "A name by which the metrics are reached, like a Service's; may be given again.",
            metavar="NAME",
            parser=host_name,
        ),
    ] = None,
    owner: Annotated[
        str | None,
        typer.Option(
            "--owner",
            metavar="UID",
            help="The uid of the Pod, or its controller, in the cluster: the config map is deleted with it.",
        ),
    ] = None,
    bars: Annotated[
        str | None,
        typer.Option(
            "--bars",
            metavar="SIZE",
            help="The BARs of a device, those of the largest: the pod's memory has room for page tables.  "
            "[default: 128Gi]",
        ),
    ] = None,
    kernel: Annotated[
        str | None,
        typer.Option("--kernel", metavar="VERSION", help="The oldest kernel of the nodes, like 6.12.  [default: any]"),
    ] = None,
    no_datavolumes: Annotated[
        bool, typer.Option("--no-datavolumes", help="Leave out DataVolumes: the claims of its templates are there.")
    ] = False,
) -> None:
    """Print the Pod that runs a VM, and what it needs, for `kubectl apply -f -`; of several VMs, that of each."""
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", node_devices):
        raise UserError(f"--node-devices {node_devices}", "is no domain", f"expected one like {NODE_DEVICES}")
    if image is not None and not re.fullmatch(r"[!-~]+", image):
        raise UserError(f"--image {image}", "is no image", "expected one like registry.example.com/gpu-launcher:1.0")
    card = mapped_bars(
        ANY_CARD.size if bars is None else _size(bars),
        None if kernel is None else parse_version(kernel, "--kernel", "6.12"),
    )
    default = f"gpu-launcher:{version('gpu-launcher')}"
    if pass_annotation and level is Level.PRIVILEGED:
        wrong = "is for --level baseline and restricted: a pod of privileged has all of the VM's annotations"
        raise UserError(FLAG, wrong, "leave it out, or add --level")
    if allow_host and metrics is None:
        raise UserError(ALLOW_HOST, "is for --metrics", "add --metrics, or leave it out")
    if cluster is not None and not dra:
        raise UserError("--cluster", "is for --dra: a device plugin gives any card", "add --dra, or leave it out")
    if cluster == STDIN and flags.vm == STDIN:
        raise UserError("--cluster -", "standard input is the VM already", "name a file for one of them")
    words = (
        *_words("--image", image),
        *_words("--as", as_kind and as_kind.value),
        *_words("--replicas", replicas),
        *_words("--max-unavailable", max_unavailable),
        *_words("--block-volume", *block_volume or ()),
        *_words("--node-devices", None if node_devices == NODE_DEVICES else node_devices),
        *_words("--level", None if level is Level.PRIVILEGED else level.value),
        *["--apparmor"] * apparmor,
        *_words(FLAG, *pass_annotation or ()),
        *_words("--metrics", metrics),
        *_words(ALLOW_HOST, *allow_host or ()),
        *_words("--bars", bars),
        *_words("--kernel", kernel),
        *["--no-datavolumes"] * no_datavolumes,
        *logs.arguments,
    )
    vms = every_vm(flags, "".join(secrets.choice(_RANDOM) for _ in range(_RANDOM_LENGTH)))
    refuse_other_volumes([parsed.instance for parsed in vms], {"--block-volume": block_volume})
    if owner is not None:
        _check_owner(owner, len(vms))
    snapshot = None if cluster is None else read_cluster(cluster)
    made: list[PodObject] = []
    errors: list[ProgramError] = []
    warnings: list[str] = []
    for parsed in vms:
        refused: list[ProgramError] = []
        if dra:
            attempt(partial(refuse_unknown_ids, parsed.instance.metadata.annotations.selection, snapshot), refused)
        block = frozenset(volume.name for volume in parsed.instance.spec.volumes) & set(block_volume or ())
        made += (
            attempt(
                partial(
                    objects,
                    parsed,
                    image=image or default,
                    block=block,
                    node_devices=node_devices,
                    start=start,
                    imports=not no_datavolumes,
                    dra=dra,
                    owner=owner,
                    logs=logs.arguments,
                    metrics=metrics,
                    hosts=allow_host or (),
                    run=_run(parsed, as_kind, replicas, max_unavailable),
                    confinement=Confinement(level, apparmor, tuple(pass_annotation or ())),
                    card=card,
                    words=words,
                ),
                refused,
            )
            or ()
        )
        errors += [error.changed(parsed.located) for error in refused]
        if no_datavolumes and (left_out := data_volumes(parsed)):
            names = ", ".join(volume["metadata"]["name"] for volume in left_out)
            warnings.append(f"{parsed.instance.metadata.name}: claims of these names have to be there, filled: {names}")
    if errors:
        raise together(errors)
    if not image:
        say_notes([f"the pod's image is {default}, which no registry has: name yours with --image"])
    notes: list[str] = []
    for parsed in vms:
        vmi = parsed.instance
        other = foreign(vmi.spec.domain.machine.type)
        if other is not None and not vmi.metadata.annotations.nearest_machine:
            warnings.append(str(parsed.located(other)))
        if vmi.metadata.annotations.suspends_on_drain:
            short = too_short(guest_of(vmi).memory, vmi.spec.terminationGracePeriodSeconds)
            if short is not None:
                warnings.append(str(parsed.located(short.problem)))
    for each in made:
        if (spec := pod_spec(each)) is not None:
            name = each["metadata"]["name"]
            warnings += map(str, for_containers(name, spec))
            if (waits := waits_for(name, spec, node_devices)) is not None:
                notes.append(waits)
    say_notes(notes)
    say("warning", warnings)
    print_text(documents(made))


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


def _run(parsed: ParsedVM, kind: Kind | None, replicas: int | None, max_unavailable: int | None) -> Run:
    """What the flags say, and else the manifest."""
    controller, number = parsed.many or (Kind.POD.value, None)
    return Run(kind or Kind(controller), number if replicas is None else replicas, max_unavailable)


def _check_owner(uid: str, vms: int) -> None:
    try:
        UUID(uid)
    except ValueError:
        fix = "expected what kubectl get pod NAME -o jsonpath={.metadata.uid} prints"
        raise UserError(f"--owner {uid}", "is no uid", fix) from None
    if vms > 1:
        raise UserError(f"--owner {uid}", f"is of one VM's pod, and there are {vms} VMs", "pick one with --name")
