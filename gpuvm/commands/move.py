"""kubectl gpuvm move: a guest goes on in another pod, by `ctl receive` there and `ctl send` here.

The guest is in exactly one of the pods. Where it is not known in which, neither is deleted; the next call finds out.
"""

import json
import re
import secrets
import time
from collections.abc import Callable, Iterable
from typing import Annotated, TypeVar

import typer

from gpuvm.commands.options import ClusterFlags, VMName
from gpuvm.kubectl import Kubectl
from gpuvm.objects import MOVED_FROM, NAME, Pod, VMObject
from gpuvm.pods import look, no_such, pods_of, refuse_not_running
from program.errors import ProgramError, Refusal, UserError
from program.output import print_foreign

_SENT = 6 * 3600.0  # seconds for a guest's memory; the launchers give up where nothing moves
_STARTS, _LOOKS = 900.0, 2.0  # seconds for the target's pod to get its cards and start, and between two looks
_MEMORY = re.compile(rb"<memory unit='KiB'>(\d+)</memory>")
_GBIT = 1e9 / 8  # bytes a second
_RANDOM = "bcdfghjklmnpqrstvwxz2456789"  # as the API server's, which make no words
_OURS = "gpu-launcher-"  # volumes of our pods that are not the VM's

T = TypeVar("T")


def move(
    vm: VMName,
    cluster: ClusterFlags,
    to: Annotated[
        str | None, typer.Option("--to", metavar="NODE", help="The node.  [default: any but the present one]")
    ] = None,
) -> None:
    """Have a guest go on in a new pod, on another node: it stands still while its memory goes there."""
    if to is not None and not re.fullmatch(NAME, to):
        raise UserError(f"--to {to}", "is no node's name", "`kubectl get nodes` lists them")
    cluster, named = cluster.of(vm)
    kubectl = cluster.kubectl()
    objects = look(kubectl).objects
    earlier = _earlier(objects, named.name)
    if earlier is not None:
        _finish(kubectl, *earlier)
        return
    pods = pods_of(objects, named.name)
    if not pods:
        raise no_such(named.name)
    if len(pods) > 1:
        raise UserError(named.name, f"has {len(pods)} pods", "name one of them")
    source = pods[0]
    _refuse_unmovable(kubectl, source, same_node=to == source.spec.node_name)
    memory = _memory(kubectl, source)
    name = f"{source.vm[:50]}-{''.join(secrets.choice(_RANDOM) for _ in range(5))}"
    print_foreign(kubectl.make_target(source, name, to))
    try:
        target, invitation = _ready(kubectl, name)
    except BaseException:
        _delete(kubectl, name)  # the guest has not been touched
        raise
    print_foreign(f"{source.vm}: {_downtime(memory, target.spec.node_name)}\n")
    error, is_declined = kubectl.send(source, target.ips[0].ip, invitation, _SENT)
    if error is None or (is_declined and _has_guest(kubectl, target)):
        _done(kubectl, source, target)
    elif is_declined:
        _delete(kubectl, name)
        raise error
    else:
        fix = f"`kubectl gpuvm move {source.vm}` again finds out where the guest is"
        raise Refusal(source.vm, f"is being moved, or was: {error}", fix)


def _earlier(objects: Iterable[VMObject], name: str) -> tuple[Pod, Pod] | None:
    """Return the source and the target of a move that was cut off."""
    pods = [each for each in objects if isinstance(each, Pod) and name in (each.name, each.vm)]
    by_uid = {each.metadata.uid: each for each in objects if isinstance(each, Pod)}
    pairs = ((by_uid.get(each.annotations.get(MOVED_FROM, "")), each) for each in pods)
    return next(((source, target) for source, target in pairs if source is not None), None)


def _finish(kubectl: Kubectl, source: Pod, target: Pod) -> None:
    """Finish a move that was cut off, or undo it."""
    if source.is_moved or _has_guest(kubectl, target):
        _done(kubectl, source, target)
        return
    if source.launcher.running is None:
        fix = (
            f"if it runs nowhere, `kubectl exec {target.name} -c compute -- gpu-launcher ctl take` has it go on there "
            f"with its memory, and `kubectl delete pod {target.name}` gives that up"
        )
        raise Refusal(source.vm, f"was being moved to {target.name} when pod {source.name} ended", fix)
    state = json.loads(kubectl.ctl(source, "state", "--json"))
    if (state.get("phase"), state.get("state")) != ("running", "running"):
        fix = "wait until that is done, or `kubectl gpuvm unpause` it"
        raise Refusal(source.vm, f"is being moved to {target.name}, or paused", fix)
    _delete(kubectl, target.name)
    fix = f"`kubectl gpuvm move {source.vm}` again moves it"
    raise Refusal(source.vm, f"runs where it was: an earlier move was cut off, and {target.name} is deleted", fix)


def _refuse_unmovable(kubectl: Kubectl, source: Pod, *, same_node: bool) -> None:
    if owners := source.metadata.owner_references:
        wrong = f"belongs to {owners[0].kind} {owners[0].name}, which would make its pod anew"
        raise Refusal(source.name, wrong, "suspend and resume it: docs/suspend.md")
    refuse_not_running(source)
    for claim in source.spec.resource_claims:
        if claim.resource_claim_name:
            fix = "have each pod make its own by a ResourceClaimTemplate"
            raise Refusal(f"ResourceClaim {claim.resource_claim_name}", "is one that both pods would share", fix)
    for volume in source.spec.volumes:
        if volume.host_path and not same_node and not volume.name.startswith(_OURS):
            raise Refusal(volume.name, f"is {volume.host_path} of {source.spec.node_name}", _SAME)
        if not volume.claim:
            continue
        of_volume = kubectl.volume_claim(volume.claim)
        modes = () if of_volume is None else of_volume.access_modes
        if "ReadWriteMany" not in modes and not (same_node and "ReadWriteOnce" in modes):
            wrong = f"is {', '.join(modes) or 'gone'}, and both pods have to have it at once"
            raise Refusal(f"claim {volume.claim}", wrong, f"expected ReadWriteMany; {_SAME}")


_SAME = "or move it to the same node, or suspend and resume it: docs/suspend.md"


def _ready(kubectl: Kubectl, name: str) -> tuple[Pod, bytes]:
    """Wait until the target has its cards and waits for a guest; return its pod and its invitation."""
    refusal: ProgramError = Refusal(name, "has not started", f"`kubectl gpuvm why {name}` says what it waits for")

    def look_once() -> tuple[Pod, bytes] | None:
        nonlocal refusal
        pod = kubectl.pod(name)
        if pod is None or pod.has_ended or pod.launcher.ended is not None:
            raise Refusal(name, "has ended, and waits for no guest", f"its log: {_last_words(kubectl, pod)}")
        if pod.launcher.running is None or not pod.ips:
            return None
        try:
            return pod, kubectl.ctl(pod, "receive")
        except Refusal as error:  # it does not wait yet
            refusal = error
            return None

    if (ready := _until(look_once, _STARTS)) is None:
        raise refusal
    return ready


def _has_guest(kubectl: Kubectl, target: Pod) -> bool:
    """Return whether the guest runs at the target, which may take a moment."""

    def look_once() -> bool | None:
        state = json.loads(kubectl.ctl(target, "state", "--json"))
        return True if state.get("phase") == "running" else None

    try:
        return bool(_until(look_once, _LOOKS))
    except Refusal:
        return False


def _done(kubectl: Kubectl, source: Pod, target: Pod) -> None:
    kubectl.ctl(target, "take")  # it may not have heard that the guest is its own
    kubectl.delete_at_once([source])
    print_foreign(f"{source.vm}: goes on in pod {target.name}, on {target.spec.node_name}\n")


def _delete(kubectl: Kubectl, name: str) -> None:
    if (pod := kubectl.pod(name)) is not None:
        kubectl.delete_at_once([pod])


def _memory(kubectl: Kubectl, source: Pod) -> int:
    """Return the bytes of its guest's memory."""
    kibibytes = _MEMORY.search(kubectl.ctl(source, "xml"))
    return int(kibibytes[1]) << 10 if kibibytes else 0


def _downtime(memory: int, node: str) -> str:
    fast, slow = (memory / (gbit * _GBIT) for gbit in (10, 1))
    return (
        f"stands still while up to {memory / (1 << 30):.1f} GiB go to {node}, {fast:.0f} s at 10 Gbit/s and {slow:.0f} "
        "s at 1 Gbit/s, and while QEMU there reads them"
    )


def _last_words(kubectl: Kubectl, pod: Pod | None) -> str:
    lines = "" if pod is None else kubectl.log(pod, 1)
    return lines.strip() or "empty"


def _until(ask: Callable[[], T | None], within: float) -> T | None:
    deadline = time.monotonic() + within
    while (answer := ask()) is None and time.monotonic() < deadline:
        time.sleep(_LOOKS)
    return answer
