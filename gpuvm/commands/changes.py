"""kubectl gpuvm apply and edit: a manifest, through `gpu-launcher pod`, to `kubectl apply`.

A Deployment and a StatefulSet replace their pods by themselves. A Pod and a Job cannot be changed: they are deleted and
made anew, if the user says so or the guest has ended.
"""

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Annotated

import typer

from gpuvm.commands.options import ClusterFlags, OneVM
from gpuvm.editor import edit_file
from gpuvm.gpu_launcher import printed
from gpuvm.kubectl import Kubectl, Printed, manifest_of
from gpuvm.objects import ID_LABEL, MANIFEST_FILE, AnyObject, Metadata, VMObject
from gpuvm.pods import controller_of, no_such, pods_of, vms
from program.errors import ProgramError, Refusal
from program.output import print_foreign
from program.problem import Problem

_LARGEST = 1 << 20  # bytes of a manifest: a ConfigMap's
_STDIN = "-"
_LEVEL, _PASSED = "gpu-launcher.dev/level", "gpu-launcher.dev/pass-annotation"  # launcher.pod
#: Flags of `gpu-launcher pod` that the launcher in the pod has too.
_SERVED = ("--metrics=", "--allow-host=")

Restart = Annotated[bool, typer.Option("--restart", help="Shut down a guest that runs with another manifest.")]


def apply(
    rest: typer.Context,
    file: Annotated[
        str, typer.Option("--filename", "-f", metavar="VM.yaml", help="The manifest; - for standard input.")
    ],
    cluster: ClusterFlags,
    restart: Restart = False,
) -> None:
    """Make or change the VMs of a manifest. All other flags are those of `gpu-launcher pod`, like --image."""
    given = sys.stdin.buffer.read(_LARGEST + 1) if file == _STDIN else b""
    where = [] if cluster.namespace is None else ["--namespace", cluster.namespace]
    _apply(cluster.kubectl(), printed(file, [*where, *rest.args], given), restart=restart)


def edit(rest: typer.Context, vm: OneVM, cluster: ClusterFlags, restart: Restart = False) -> None:
    """Edit a VM's manifest, and apply it with the image that its pod has. Other flags: those of `gpu-launcher pod`."""
    cluster, target = cluster.of([vm])
    objects = vms(cluster.kubectl())
    edited = controller_of(objects, target.name) or next(iter(pods_of(objects, target.name)), None)
    if edited is None:
        raise no_such(target.name)
    kubectl = replace(cluster, namespace=edited.metadata.namespace).kubectl()
    text = manifest_of(kubectl, edited)
    file = Path(mkdtemp(prefix="kubectl-gpuvm-")) / MANIFEST_FILE
    file.write_text(text, encoding="utf-8")
    try:
        edit_file(file)
    except ProgramError:
        if file.read_bytes() == text.encode():
            _removed(file)
        raise
    if file.read_bytes() != text.encode():
        try:
            flags = flags_of(edited)
            print(f"{edited.name}: has {shlex.join(flags)}", file=sys.stderr)
            _apply(kubectl, printed(str(file), [*flags, *rest.args]), restart=restart)
        except ProgramError as error:
            kept = Problem(str(file), "has your edit", "correct it, and `kubectl gpuvm apply -f` it")
            raise type(error).of([*error.problems, kept]) from error
    else:
        print(f"{target.name}: not changed")
    _removed(file)


def _removed(file: Path) -> None:
    file.unlink()
    file.parent.rmdir()


def flags_of(edited: VMObject) -> list[str]:
    """Return the flags of `gpu-launcher pod` that an object shows. The claims of --dra are in its manifest."""
    container, annotations = edited.spec.launcher, edited.annotations
    kind = [] if edited.kind == "Pod" else [f"--as={edited.kind.lower()}"]
    levels = [f"--level={annotations[_LEVEL]}"] if _LEVEL in annotations else []
    passed = [f"--pass-annotation={each}" for each in annotations.get(_PASSED, "").split(",") if each]
    served = [word for word in container.command if word.startswith(_SERVED)]
    return [f"--image={container.image}", *kind, *levels, *passed, *["--apparmor"] * bool(container.apparmor), *served]


def _apply(kubectl: Kubectl, new: Printed, *, restart: bool) -> None:
    pairs = ((each, kubectl.live_if_changed(each, text)) for each, text in zip(new.objects, new.parts, strict=True))
    changed = [(each, old) for each, old in pairs if old is not None]
    running = [old.name for _, old in changed if not old.has_ended]
    if running and not restart:
        fix = "with --restart the guest shuts down, and starts with what is new"
        raise Refusal(
            ", ".join(running), "runs with another manifest or other flags, and its Pod cannot be changed", fix
        )
    for each, old in changed:
        kubectl.delete(old, _beside(kubectl, old, new, each.vm))
    print_foreign(kubectl.apply(new))


def _beside(kubectl: Kubectl, old: VMObject, new: Printed, vm: str) -> list[AnyObject]:
    """Return what goes with a VM's object and cannot be changed either: its ConfigMap, and the ResourceClaimTemplates
    that are made anew. Others' stay: whoever makes a pod may name any ConfigMap in it."""
    templates = {each.name for each in new.objects if each.kind == "ResourceClaimTemplate"}
    named = [("ConfigMap", old.spec.manifest_name)]
    named += [("ResourceClaimTemplate", claim.resource_claim_template_name) for claim in old.spec.resource_claims]
    beside = (kubectl.named(kind, name) for kind, name in named if name and (kind == "ConfigMap" or name in templates))
    return [each for each in beside if each is not None and _is_its(each.metadata, old, vm)]


def _is_its(metadata: Metadata, old: VMObject, vm: str) -> bool:
    owners = {owner.uid for owner in metadata.owner_references}
    return metadata.labels.get(ID_LABEL) == vm or old.metadata.uid in owners
