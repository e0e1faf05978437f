"""kubectl gpuvm apply, edit and delete: a manifest, through `gpu-launcher pod`, to `kubectl apply`; and its end.

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

from gpuvm.commands.options import ClusterFlags, OneVM, VMName
from gpuvm.editor import edit_file
from gpuvm.gpu_launcher import printed
from gpuvm.kubectl import Kubectl, Printed
from gpuvm.objects import ID_LABEL, MANIFEST_FILE, MOVED_FROM, AnyObject, ConfigMap, Metadata, Pod, VMObject
from gpuvm.pods import controller_of, end_guests, look, no_such, pods_of, recorded
from gpuvm.records import Record, record_of, records_in, suspended_to
from program.errors import ProgramError, Refusal
from program.output import print_foreign
from program.problem import Problem

_LARGEST = 1 << 20  # bytes of a manifest: a ConfigMap's
_STDIN = "-"
#: Controllers that go back to what they had (`kubectl rollout undo`), for which they need older records.
_WITH_HISTORY = ("Deployment", "StatefulSet")
#: What has a VM's state, and is kept when the VM is deleted.
_STATE = ("PersistentVolumeClaim", "DataVolume")

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
    manifest = sys.stdin.buffer.read(_LARGEST + 1) if file == _STDIN else b""
    where = [] if cluster.namespace is None else ["--namespace", cluster.namespace]
    _apply(cluster.kubectl(), printed(file, [*where, *rest.args], manifest), restart=restart)


def edit(rest: typer.Context, vm: OneVM, cluster: ClusterFlags, restart: Restart = False) -> None:
    """Edit a VM's manifest, and apply it with the image that its pod has. Other flags: those of `gpu-launcher pod`."""
    cluster, target = cluster.of([vm])
    seen = look(cluster.kubectl())
    edited = controller_of(seen.objects, target.name) or next(iter(pods_of(seen.objects, target.name)), None)
    if edited is not None:
        record = recorded(replace(cluster, namespace=edited.metadata.namespace).kubectl(), edited)
    elif (config_map := seen.record(target.name)) is not None:
        record = record_of(config_map)
    else:
        raise no_such(target.name)
    kubectl = replace(cluster, namespace=record.config_map.metadata.namespace).kubectl()
    text = record.manifest
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
            flags = _flags(kubectl, record)
            print(f"{target.name}: has the flags {shlex.join(flags)}", file=sys.stderr)
            _apply(kubectl, printed(str(file), [*flags, *rest.args]), restart=restart)
        except ProgramError as error:
            kept = Problem(str(file), "has your edit", "correct it, and `kubectl gpuvm apply -f` it")
            raise type(error).of([*error.problems, kept]) from error
    else:
        print(f"{target.name}: not changed")
    _removed(file)


def delete(
    vm: VMName,
    cluster: ClusterFlags,
    with_state: Annotated[
        bool, typer.Option("--with-state", help="Also the claims that were made for it, with what is on them.")
    ] = False,
) -> None:
    """Delete a VM: its pod, what makes it, and its record. Claims stay, and are named."""
    cluster, target = cluster.of(vm)
    kubectl = cluster.kubectl()
    seen = look(kubectl)
    controller, pods = controller_of(seen.objects, target.name), pods_of(seen.objects, target.name)
    if controller is not None and target.name not in (controller.name, controller.vm):
        fix = f"`kubectl gpuvm delete {controller.name}` deletes all of them"
        raise Refusal(target.name, f"is one of those that {controller.kind} {controller.name} makes", fix)
    running: list[AnyObject] = [*pods] if controller is None else [controller]
    record = seen.record(running[0].vm if running else target.name)
    if not running and record is None:
        raise no_such(target.name)
    subject = running[0] if running else record
    assert subject is not None
    records = records_in(kubectl.vms(of=subject))
    beside = kubectl.beside(subject)
    kept = [] if with_state else [each for each in beside if each.kind in _STATE]
    end_guests(kubectl, pods)
    print_foreign(kubectl.delete_at_once([*running, *records, *(each for each in beside if each not in kept)]))
    if kept:
        names = ", ".join(f"{each.kind} {each.name}" for each in kept)
        print_foreign(f"{subject.vm}: kept are {names}; --with-state deletes them\n")
    if record is not None and (claim := suspended_to(record)):
        file = f"suspended/{subject.vm}.memory"
        print_foreign(f"{subject.vm}: kept is its memory, {file} on the claim {claim}, whoever may read that\n")


def _removed(file: Path) -> None:
    file.unlink()
    file.parent.rmdir()


def make_of_record(kubectl: Kubectl, record: Record) -> None:
    """Make the objects of a VM that is stopped, and print which."""
    where = f"--namespace={record.config_map.metadata.namespace}"
    new = printed("-", [*_flags(kubectl, record), "--start", where], record.manifest.encode())
    _apply(kubectl, new, restart=False)


def _flags(kubectl: Kubectl, record: Record) -> list[str]:
    """Return a record's flags of `gpu-launcher pod`; those of --dra are in its manifest."""
    return record.flags_at(kubectl.enforced_level(record.config_map.metadata.namespace))


def _apply(kubectl: Kubectl, new: Printed, *, restart: bool) -> None:
    pairs = ((each, kubectl.live_if_changed(each, text)) for each, text in zip(new.objects, new.parts, strict=True))
    changed = [(each, old) for each, old in pairs if old is not None]
    unseen = [each for each in new.objects if each.kind == "Pod" and all(each is not one for one, _ in changed)]
    changed += [(each, old) for each in unseen for old in _moved(kubectl, each)]
    running = [old.name for _, old in changed if _has_guest(kubectl, old)]
    if running and not restart:
        fix = "with --restart the guest shuts down, and starts with what is new"
        raise Refusal(
            ", ".join(running), "runs with another manifest or other flags, and its Pod cannot be changed", fix
        )
    for each, old in changed:
        end_guests(kubectl, [old] if isinstance(old, Pod) else [])
        kubectl.delete(old, _beside(kubectl, old, new, each.vm))
    keeps_history = any(each.kind in _WITH_HISTORY for each in new.objects)
    records = [each for each in new.objects if each.kind == "ConfigMap" and not keeps_history]
    older = [each for record in records for each in _older(kubectl, record)]
    print_foreign(kubectl.apply(new))
    if older:
        print_foreign(kubectl.delete_at_once(older))


def _moved(kubectl: Kubectl, new: AnyObject) -> list[Pod]:
    """Return the pods to which `move` has brought the VM of a Pod: beside them, this one would be its second."""
    its = (each for each in kubectl.vms(of=new) if isinstance(each, Pod) and each.vm == new.vm)
    return [each for each in its if MOVED_FROM in each.annotations and each.name != new.name]


def _has_guest(kubectl: Kubectl, old: VMObject) -> bool:
    """Return whether a guest would be shut down with a Pod or a Job: one whose launcher never ran has none."""
    if isinstance(old, Pod):
        return old.has_started and not old.has_ended
    return not old.has_ended and any(isinstance(each, Pod) and each.has_started for each in kubectl.vms(of=old))


def _older(kubectl: Kubectl, record: AnyObject) -> list[ConfigMap]:
    """Return the records that a VM had before this one, and that no pod has any more."""
    objects = kubectl.vms(of=record)
    used = {each.spec.manifest_name for each in objects if not isinstance(each, ConfigMap)}
    return [each for each in records_in(objects) if each.name not in {record.name, *used}]


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
