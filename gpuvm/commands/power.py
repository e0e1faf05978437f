"""kubectl gpuvm start, stop, restart, suspend and resume.

A controller's VM is stopped and started by the controller. A pod by itself that would start its guest again has to be
deleted, and is made anew from the VM's record; any other stays, and can be started again.
"""

from datetime import UTC, datetime

from gpuvm.commands.changes import make_of_record
from gpuvm.commands.options import ClusterFlags, Force, GracePeriod, VMName
from gpuvm.kubectl import Kubectl
from gpuvm.objects import ConfigMap, Controller, Pod, VMObject
from gpuvm.pods import controller_of, end_guests, look, no_such, pods_of, refuse_not_running
from gpuvm.records import record_of, suspended_to
from program.errors import Refusal, UserError
from program.output import print_foreign

_SAVED = 6 * 3600.0  # seconds for a guest's memory; the launcher gives up where nothing moves


def start(vm: VMName, cluster: ClusterFlags) -> None:
    """Start a VM that is stopped or has ended; one that is suspended goes on."""
    _start(vm, cluster)


def resume(vm: VMName, cluster: ClusterFlags) -> None:
    """Have a suspended VM go on with its memory, on a node that has what it needs."""
    _start(vm, cluster, only_suspended=True)


def _start(vm: list[str], cluster: ClusterFlags, *, only_suspended: bool = False) -> None:
    cluster, target = cluster.of(vm)
    kubectl = cluster.kubectl()
    seen = look(kubectl)
    controller, record = controller_of(seen.objects, target.name), seen.record(target.name)
    pods = pods_of(seen.objects, target.name)
    claim = "" if record is None else suspended_to(record)
    if only_suspended and not claim and not any(pod.is_suspended for pod in pods):
        fix = "`kubectl gpuvm start` starts one that is stopped, and `unpause` has a paused one go on"
        raise Refusal(target.name, "is not suspended", fix)
    if controller is not None:
        if suspended := [pod for pod in pods if pod.is_suspended]:  # its controller makes it anew, and that one goes on
            kubectl.delete_at_once(suspended)
        kubectl.start_controller(controller)
        print(f"{target.name}: its {controller.kind} starts it")
        _forget_claim(kubectl, record)
        return
    if not pods and record is not None:
        make_of_record(kubectl, record_of(record))
        _forget_claim(kubectl, record)
        return
    pod = _pod_of(seen.objects, target.name)
    if not pod.has_ended and not pod.is_suspended:
        raise Refusal(target.name, f"is {pod.phase} already", "`kubectl gpuvm restart` starts it again")
    print_foreign(_made_anew(kubectl, pod))


def stop(vm: VMName, cluster: ClusterFlags, force: Force = False, grace_period: GracePeriod = None) -> None:
    """Have a guest shut down: returns at once, and the guest has its grace period."""
    _refuse_other(grace_period, force=force)
    cluster, target = cluster.of(vm)
    kubectl = cluster.kubectl()
    seen = look(kubectl)
    its_pods, record = pods_of(seen.objects, target.name), None
    if (controller := controller_of(seen.objects, target.name)) is not None:
        _refuse_one_of_several(controller, target.name)
        end_guests(kubectl, its_pods, "kill" if force else "shutdown")
        kubectl.stop_controller(controller)
    else:
        record = seen.record(target.name)
        if not its_pods and record is not None:
            raise Refusal(target.name, "is stopped already", "`kubectl gpuvm start` starts it")
        pod = _pod_of(seen.objects, target.name)
        if pod.has_ended:
            raise Refusal(target.name, f"is not running: its pod has {pod.phase.lower()}", "")
        if _stays_off(pod):
            kubectl.ctl(pod, "kill" if force else "shutdown")
            print(f"{target.name}: {_asked(force)}")
            return
        end_guests(kubectl, [pod], "kill" if force else "shutdown")
        kubectl.delete_at_once([pod])
        if record is not None:
            kubectl.mark(record, stopped=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
    for pod in its_pods if force else ():
        if _runs(pod):
            _kill(kubectl, pod)
    by = "start` starts it again" if record is not None else "apply -f vm.yaml` makes its Pod anew"
    print(f"{target.name}: {_asked(force)}{'' if controller is not None else f'; `kubectl gpuvm {by}'}")


def restart(vm: VMName, cluster: ClusterFlags, force: Force = False, grace_period: GracePeriod = None) -> None:
    """Have a guest shut down, and start it again."""
    _refuse_other(grace_period, force=force)
    kubectl, pod = cluster.running_pod(vm)
    its_own = pod.spec.restart_policy == "Always"
    if not its_own and pod.metadata.owner_references:
        fix = "apply it again: `kubectl gpuvm apply --restart -f vm.yaml`"
        raise Refusal(pod.name, "is a Job's, which runs a guest once", fix)
    kubectl.ctl(pod, "kill" if force else "shutdown")
    made = ""
    if not its_own:
        kubectl.wait_for_end(pod)
        made = _made_anew(kubectl, pod)
    print(f"{pod.name}: {_asked(force)}, and starts again")
    print_foreign(made)


def suspend(vm: VMName, cluster: ClusterFlags) -> None:
    """Save a guest's memory to its claim, and end its pod: returns when the memory is there."""
    cluster, target = cluster.of(vm)
    kubectl = cluster.kubectl()
    seen = look(kubectl)
    controller, record = controller_of(seen.objects, target.name), seen.record(target.name)
    if controller is not None and controller.replicas > 1:
        raise Refusal(target.name, "is one of several replicas, which are not suspended", "stop it, or run it alone")
    if record is not None and (claim := suspended_to(record)) and not pods_of(seen.objects, target.name):
        raise Refusal(target.name, f"is suspended already, to the claim {claim}", "`kubectl gpuvm resume` has it go on")
    pod = _pod_of(seen.objects, target.name)
    if not (claim := pod.spec.suspended_claim):
        fix = "name one in its annotation gpu-launcher.dev/suspend-to: docs/suspend.md"
        raise Refusal(target.name, "has no claim for its memory", fix)
    if not pod.is_suspended:
        refuse_not_running(pod)
        kubectl.ctl(pod, "suspend", within=_SAVED)
    # Its memory is there: what would start the guest again is the pod, or who makes it.
    if record is not None:
        kubectl.mark(record, suspended=claim, stopped="")
    if controller is not None:
        kubectl.stop_controller(controller)
    else:
        kubectl.delete_at_once([pod])
    print_foreign(f"{target.name}: is suspended to the claim {claim}; `kubectl gpuvm resume` has it go on\n")


def _forget_claim(kubectl: Kubectl, record: ConfigMap | None) -> None:
    if record is not None and (claim := suspended_to(record)):
        kubectl.mark(record, suspended="")
        print_foreign(f"{record.vm}: goes on with its memory, which is on the claim {claim}\n")


def _kill(kubectl: Kubectl, pod: Pod) -> None:
    """End the guest of a pod that goes; the kubelet may be faster, and then nobody is left who could answer."""
    try:
        kubectl.ctl(pod, "kill")
    except Refusal:
        now = kubectl.pod(pod.name)
        if now is not None and _runs(now) and now.metadata.uid == pod.metadata.uid:
            raise


def _runs(pod: Pod) -> bool:
    return pod.launcher.running is not None


def _asked(force: bool) -> str:
    return "ends now" if force else "is asked to shut down"


def _refuse_other(grace_period: int | None, *, force: bool) -> None:
    if grace_period is not None and (grace_period != 0 or not force):
        fix = "leave it out: the guest has its terminationGracePeriodSeconds; --force ends it now"
        raise UserError(f"--grace-period={grace_period}", "only 0 is taken, with --force", fix)


def _refuse_one_of_several(controller: Controller, name: str) -> None:
    replicas = controller.replicas
    if replicas > 1 and name != controller.name:
        fix = f"`kubectl gpuvm stop {controller.name}` stops all, `restart {name}` starts this one again"
        raise Refusal(name, f"is one of {replicas} replicas, and {controller.kind} would make it anew", fix)


def _stays_off(pod: Pod) -> bool:
    """Whether a guest that shuts down is not started again, and its pod stays."""
    return pod.spec.restart_policy in ("Never", "OnFailure") and pod.phase == "Running"


def _pod_of(objects: list[VMObject], name: str) -> Pod:
    pods = pods_of(objects, name)
    if not pods:
        raise no_such(name)
    return pods[0]


def _made_anew(kubectl: Kubectl, pod: Pod) -> str:
    """Make a pod that has ended anew, and return what kubectl prints. Refusal if its maker or its ConfigMap forbids."""
    owners, name = pod.metadata.owner_references, pod.spec.manifest_name
    if owners:
        fix = "have its owner make it anew"
        raise Refusal(pod.name, f"belongs to {owners[0].kind} {owners[0].name}, and would not any more", fix)
    config_map = kubectl.config_map(name) if name else None
    if config_map is not None and config_map.metadata.owner_references:
        fix = "`kubectl gpuvm apply --restart -f vm.yaml` makes both anew"
        raise Refusal(pod.name, f"owns ConfigMap {name}, which would be deleted with it", fix)
    return kubectl.make_anew(pod)
