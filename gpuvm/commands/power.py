"""kubectl gpuvm start, stop and restart.

A controller's VM is stopped and started by the controller. A pod by itself that would start its guest again has to be
deleted; any other stays, and can be started again.
"""

import json

from gpuvm.commands.options import ClusterFlags, Force, GracePeriod, VMName, ctl_in
from gpuvm.kubectl import ClusterObject, Kubectl
from gpuvm.pods import applied, config_map_of, controller_of, has_ended, no_such, pods_of, status_of, vms
from program.errors import Refusal, UserError

_BESIDE = 60  # seconds for the API server and the kubelet, beside the pod's grace period


def start(vm: VMName, cluster: ClusterFlags) -> None:
    """Start a VM that is stopped or has ended."""
    cluster, target = cluster.of(vm)
    kubectl = cluster.kubectl()
    objects = vms(kubectl)
    if (controller := controller_of(objects, target.name)) is not None:
        replicas = (applied(controller) or {}).get("spec", {}).get("replicas", 1)
        _set(kubectl, controller, {"suspend": False} if controller["kind"] == "Job" else {"replicas": replicas})
        print(f"{target.name}: its {controller['kind']} starts it")
        return
    pod = _pod_of(objects, target.name)
    if not has_ended(pod):
        raise Refusal(target.name, f"is {pod['status']['phase']} already", "`kubectl gpuvm restart` starts it again")
    _again(kubectl, pod)
    print(f"{target.name}: started")


def stop(vm: VMName, cluster: ClusterFlags, force: Force = False, grace_period: GracePeriod = None) -> None:
    """Have a guest shut down: returns at once, and the guest has its grace period."""
    _refuse_other(grace_period, force=force)
    cluster, target = cluster.of(vm)
    kubectl = cluster.kubectl()
    objects = vms(kubectl)
    its_pods = pods_of(objects, target.name)
    if (controller := controller_of(objects, target.name)) is not None:
        _refuse_one_of_several(controller, target.name)
        _set(kubectl, controller, {"suspend": True} if controller["kind"] == "Job" else {"replicas": 0})
    else:
        pod = _pod_of(objects, target.name)
        if has_ended(pod):
            raise Refusal(target.name, f"is not running: its pod has {pod['status']['phase'].lower()}", "")
        if _stays_off(pod):
            kubectl.output(*ctl_in(pod, "kill" if force else "shutdown"))
            print(f"{target.name}: {_asked(force)}")
            return
        kubectl.output("delete", "pod", pod["metadata"]["name"], "--wait=false")
    for pod in its_pods if force else ():
        if _runs(pod):
            _kill(kubectl, pod)
    kept = (
        "" if controller is not None else "; its Pod is gone then, and `kubectl gpuvm apply -f vm.yaml` makes it anew"
    )
    print(f"{target.name}: {_asked(force)}{kept}")


def restart(vm: VMName, cluster: ClusterFlags, force: Force = False, grace_period: GracePeriod = None) -> None:
    """Have a guest shut down, and start it again."""
    _refuse_other(grace_period, force=force)
    kubectl, pod = cluster.pod(vm)
    name = pod["metadata"]["name"]
    if has_ended(pod):
        raise Refusal(name, f"is not running: its pod has {pod['status']['phase'].lower()}", "`kubectl gpuvm start`")
    its_own = pod["spec"]["restartPolicy"] == "Always"
    if not its_own and pod["metadata"].get("ownerReferences"):
        fix = "apply it again: `kubectl gpuvm apply --restart -f vm.yaml`"
        raise Refusal(name, "is a Job's, which runs a guest once", fix)
    kubectl.output(*ctl_in(pod, "kill" if force else "shutdown"))
    if not its_own:
        seconds = pod["spec"].get("terminationGracePeriodSeconds", 30) + _BESIDE
        ended = "--for=jsonpath={.status.phase}=Succeeded"
        kubectl.output("wait", f"pod/{name}", ended, f"--timeout={seconds}s", within=seconds + _BESIDE)
        _again(kubectl, pod)
    print(f"{name}: {_asked(force)}, and starts again")


def _kill(kubectl: Kubectl, pod: ClusterObject) -> None:
    """End the guest of a pod that goes; the kubelet may be faster, and then nobody is left who could answer."""
    try:
        kubectl.output(*ctl_in(pod, "kill"))
    except Refusal:
        now = kubectl.objects(f"pod/{pod['metadata']['name']}")
        if any(_runs(each) and each["metadata"].get("uid") == pod["metadata"].get("uid") for each in now):
            raise


def _runs(pod: ClusterObject) -> bool:
    return bool(status_of(pod).get("state", {}).get("running"))


def _asked(force: bool) -> str:
    return "ends now" if force else "is asked to shut down"


def _refuse_other(grace_period: int | None, *, force: bool) -> None:
    if grace_period is not None and (grace_period != 0 or not force):
        fix = "leave it out: the guest has its terminationGracePeriodSeconds; --force ends it now"
        raise UserError(f"--grace-period={grace_period}", "only 0 is taken, with --force", fix)


def _refuse_one_of_several(controller: ClusterObject, name: str) -> None:
    metadata, replicas = controller["metadata"], controller["spec"].get("replicas", 1)
    if replicas > 1 and name != metadata["name"]:
        fix = f"`kubectl gpuvm stop {metadata['name']}` stops all, `restart {name}` starts this one again"
        raise Refusal(name, f"is one of {replicas} replicas, and {controller['kind']} would make it anew", fix)


def _stays_off(pod: ClusterObject) -> bool:
    """Whether a guest that shuts down is not started again, and its pod stays."""
    return (pod["spec"]["restartPolicy"], pod["status"]["phase"]) in (("Never", "Running"), ("OnFailure", "Running"))


def _pod_of(objects: list[ClusterObject], name: str) -> ClusterObject:
    found = pods_of(objects, name)
    if not found:
        raise no_such(name)
    return found[0]


def _set(kubectl: Kubectl, controller: ClusterObject, spec: ClusterObject) -> None:
    place = f"{controller['kind'].lower()}/{controller['metadata']['name']}"
    kubectl.output("patch", place, "--type=merge", "--patch", json.dumps({"spec": spec}))


def _again(kubectl: Kubectl, pod: ClusterObject) -> None:
    """Make a pod that has ended anew, as it was applied."""
    name, before = pod["metadata"]["name"], applied(pod)
    if before is None:
        fix = "`kubectl gpuvm apply --restart -f vm.yaml` makes it anew"
        raise Refusal(name, "was not made by `kubectl apply`, so that nobody knows how", fix)
    if (config_map := config_map_of(pod)) and _is_owned(kubectl, config_map):
        fix = "`kubectl gpuvm apply --restart -f vm.yaml` makes both anew"
        raise Refusal(name, f"owns ConfigMap {config_map}, which would be deleted with it", fix)
    kubectl.output("delete", "pod", name, within=2 * _BESIDE)
    kubectl.output("apply", "-f", "-", given=json.dumps(before).encode())


def _is_owned(kubectl: Kubectl, config_map: str) -> bool:
    """Whether a ConfigMap goes with its owner."""
    return any(each["metadata"].get("ownerReferences") for each in kubectl.objects(f"configmap/{config_map}"))
