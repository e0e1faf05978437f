"""gpu-launcher hook."""

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from launcher.hook.flags import SYS, ToServe, own_socket
from program.errors import UserError
from program.input import STDIN, read_input_bytes
from program.log import LogFlags
from program.output import print_text
from program.problem import Problem

_LARGEST = 16 << 20  # bytes of a domain or a VMI


def hook(
    logs: LogFlags,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print what it would change in the domain, and end.")
    ] = False,
    domain: Annotated[
        Path | None,
        typer.Argument(
            metavar="DOMAIN.xml",
            help="With --explain: the domain, as virsh dumpxml --inactive prints it; - for standard input.  "
            "[default: standard input]",
        ),
    ] = None,
    vmi: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --explain: the domain's VMI, from kubectl get vmi -o json."),
    ] = None,
    claim: Annotated[
        Path | None,
        typer.Option(
            metavar="VM.yaml",
            help="Print the ResourceClaimTemplate for all of KubeVirt's VMs that choose cards as this one does, "
            "and end.",
        ),
    ] = None,
    cluster: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --claim: what `kubectl get resourceslices -o json` prints, to look up NVML's UUIDs.",
        ),
    ] = None,
    sysfs: Annotated[Path, typer.Option(help="The directory that stands for /sys.")] = Path(SYS),
    socket: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Where KubeVirt's launcher finds it.  [default: a name of its own in /var/run/kubevirt-hooks]",
        ),
    ] = None,
    plugin: Annotated[
        bool, typer.Option("--plugin", help="Be a plugin of KubeVirt's (VEP 190) on --socket, and no hook sidecar.")
    ] = False,
) -> ToServe | None:
    """Give the domains of KubeVirt's own launcher whole cards and seats, as a sidecar in its pod."""
    if claim is not None:
        if explain:
            raise UserError("--claim and --explain", "both say what to print", "give one of them")
        _print_claim_templates(claim, cluster)
        return None
    if cluster is not None:
        raise UserError("--cluster", "is for --claim", "leave it out: KubeVirt says which cards the domain has")
    if explain:
        _explain(domain, vmi, sysfs)
        return None
    if domain is not None:
        raise UserError(domain, "is for --explain", "leave it out: KubeVirt sends the domain")
    if vmi is not None:
        raise UserError("--vmi", "is for --explain", "leave it out: KubeVirt sends the VMI")
    if plugin and socket is None:
        raise UserError(
            "--plugin",
            "needs --socket",
            "expected the socketPath of the Plugin, /var/run/kubevirt-plugin/NAME/FILE.sock",
        )
    return ToServe(own_socket() if socket is None else str(socket), str(sysfs), plugin)


def _print_claim_templates(file: Path, cluster: Path | None) -> None:
    from launcher.choosing.cluster_files import read_cluster
    from launcher.manifest.inputs import kind_and_name, read_vms
    from launcher.pod.documents import documents
    from launcher.pod.kubevirt import claim_template
    from launcher.vm.plain import PodObject

    manifests = read_vms(file)
    snapshot = None if cluster is None else read_cluster(cluster)
    templates: dict[str, PodObject] = {}
    for vm in manifests.vms:
        try:
            template = claim_template(vm, snapshot)
        except UserError as error:
            raise error.changed(partial(_below, f"{manifests.file}: {kind_and_name(vm)}: ")) from error
        templates[str(template["metadata"])] = template
    print_text(documents(templates.values()))


def _below(place: str, problem: Problem) -> Problem:
    return problem._replace(subject=f"{place}{problem.subject}")


def _explain(file: Path | None, vmi: Path | None, sysfs: Path) -> None:
    from launcher.hook.kubevirt_domain import VMIRequest, read_vmi
    from launcher.hook.preview import before_libvirt, explained
    from launcher.hook.rewrite import rewritten

    document = read_input_bytes(file or STDIN, _LARGEST, "expected a domain, as virsh dumpxml --inactive prints it")
    expected = "expected the domain's VMI as JSON"
    request = VMIRequest() if vmi is None else read_vmi(read_input_bytes(vmi, _LARGEST, expected))
    domain = before_libvirt(document)
    answer = rewritten(domain, request, sysfs)
    for warning in answer.warnings:
        print(f"gpu-launcher: warning: {warning}", file=sys.stderr)
    print_text(explained(domain, answer))
