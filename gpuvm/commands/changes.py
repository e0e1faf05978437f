"""kubectl gpuvm apply and edit: a manifest, through `gpu-launcher pod`, to `kubectl apply`.

A Deployment and a StatefulSet replace their pods by themselves. A Pod and a Job cannot be changed: they are deleted and
made anew, if the user says so or the guest has ended.
"""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Annotated

import typer

from gpuvm.commands.options import ClusterFlags, OneVM
from gpuvm.editor import edit_file
from gpuvm.gpu_launcher import manifest_of, printed
from gpuvm.kubectl import ClusterObject, Kubectl
from gpuvm.pods import (
    MANIFEST_FILE,
    applied,
    config_map_of,
    container_of,
    controller_of,
    has_ended,
    no_such,
    pods_of,
    spec_of,
    vms,
)
from program.document import NotYAML, decoded, read_documents
from program.errors import ProgramError, Refusal, UserError
from program.problem import Problem

_UNCHANGEABLE = ("Pod", "Job")
_BESIDE = 60  # seconds for the API server, beside a pod's grace period
_LARGEST = 1 << 20  # bytes of a manifest: a ConfigMap's
_STDIN = "-"
_LEVEL = "gpu-launcher.dev/level"  # launcher.pod.objects

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
    controller = controller_of(objects, target.name)
    found = controller or next(iter(pods_of(objects, target.name)), None)
    if found is None:
        raise no_such(target.name)
    kubectl = replace(cluster, namespace=found["metadata"]["namespace"]).kubectl()
    text = manifest_of(kubectl, found)
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
            _apply(kubectl, printed(str(file), [*flags_of(found), *rest.args]), restart=restart)
        except ProgramError as error:
            kept = Problem(str(file), "has your edit", "correct it, and `kubectl gpuvm apply -f` it")
            raise type(error).of([*error.problems, kept]) from error
    else:
        print(f"{target.name}: not changed")
    _removed(file)


def _removed(file: Path) -> None:
    file.unlink()
    file.parent.rmdir()


def flags_of(found: ClusterObject) -> list[str]:
    """Return the flags of `gpu-launcher pod` that an object shows. The claims of --dra are in its manifest."""
    is_pod, container = found["kind"] == "Pod", container_of(found)
    kind = [] if is_pod else ["--as", found["kind"].lower()]
    annotations = (found if is_pod else found["spec"]["template"])["metadata"].get("annotations", {})
    level = [f"--level={annotations[_LEVEL]}"] if _LEVEL in annotations else []
    has_apparmor = "localhostProfile" in container.get("securityContext", {}).get("appArmorProfile", {})
    return ["--image", container["image"], *kind, *level, *(["--apparmor"] if has_apparmor else [])]


def _apply(kubectl: Kubectl, text: bytes, *, restart: bool) -> None:
    new = _objects(text)
    changed = [
        old
        for each in new
        if each["kind"] in _UNCHANGEABLE and (old := _live(kubectl, each)) is not None and not _is_same(old, each)
    ]
    running = [old["metadata"]["name"] for old in changed if not has_ended(old)]
    if running and not restart:
        fix = "with --restart the guest shuts down, and starts with what is new"
        raise Refusal(
            ", ".join(running), "runs with another manifest or other flags, and its Pod cannot be changed", fix
        )
    for old in changed:
        grace = spec_of(old).get("terminationGracePeriodSeconds", 30) + _BESIDE
        kubectl.output(
            "delete", *_with_its_own(old, new), "--ignore-not-found", f"--timeout={grace}s", within=grace + _BESIDE
        )
    print(kubectl.output("apply", "-f", "-", given=text, within=_BESIDE).decode(errors="replace"), end="")


def _objects(text: bytes) -> list[ClusterObject]:
    try:
        return [document.value for document in read_documents(decoded(text))]
    except NotYAML as error:
        raise UserError("gpu-launcher pod", f"prints what {error.wrong}", "report it") from error


def _live(kubectl: Kubectl, each: ClusterObject) -> ClusterObject | None:
    """Return the object as the API server has it; None if it has none."""
    metadata = each["metadata"]
    where = ["-n", metadata["namespace"]] if "namespace" in metadata else []
    return next(iter(kubectl.objects(f"{each['kind'].lower()}/{metadata['name']}", *where)), None)


def _is_same(old: ClusterObject, new: ClusterObject) -> bool:
    """Whether the same was applied before: the name of the ConfigMap in it tells one manifest from another."""
    before = applied(old)
    return before is not None and bool(before.get("spec") == new["spec"])


def _with_its_own(old: ClusterObject, new: Iterable[ClusterObject]) -> Iterator[str]:
    """Yield it, and what belongs to it and cannot be changed either, as kubectl names them: its ConfigMap, and a
    ResourceClaimTemplate that is made anew."""
    yield f"{old['kind'].lower()}/{old['metadata']['name']}"
    if config_map := config_map_of(old):
        yield f"configmap/{config_map}"
    templates = {each["metadata"]["name"] for each in new if each["kind"] == "ResourceClaimTemplate"}
    for claim in spec_of(old).get("resourceClaims", ()):
        if claim.get("resourceClaimTemplateName") in templates:
            yield f"resourceclaimtemplate/{claim['resourceClaimTemplateName']}"
