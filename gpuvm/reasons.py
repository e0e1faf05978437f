"""Why a VM is not running: one answer, from its pod, the pod's events, and its launcher's last line.

The scheduler's, the kubelet's and the controllers' words are those of Kubernetes 1.36.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from gpuvm.objects import ConfigMap, Controller, Event, Pod, ResourceClaim, Terminated, Waiting
from gpuvm.records import suspended_to, was_stopped
from program.ending import Ending
from program.errors import Refusal, UserError
from program.problem import Problem, summary


class _Reason(NamedTuple):
    """`pattern` matches another program's words; `wrong` and `fix` may contain its groups: {0}, {1}."""

    pattern: str
    wrong: str
    fix: str


_LOG_OF_DRIVER = "`kubectl logs -n kube-system -l app.kubernetes.io/name=gpu-plugin`"

#: What the API server says of a namespace's limits, whatever it was to make: the policies of deploy/tenants, a quota.
_LIMITS = (
    _Reason(
        r"denied request: namespace \S+ may not ((?:have|tolerate) [^;]+); ([^()]*[^() ])",
        "your namespace may not {0}: {1}",
        "ask for what it may have, or ask whoever runs the cluster: docs/tenants.md",
    ),
    _Reason(
        r"exceeded quota: (\S+), requested: (\S+), used: (\S+), limited: (\S+)",
        "your namespace may not have more: its quota {0} is {3}, of which {2} is used, and {1} is asked for",
        "stop what uses it, or have the quota raised: `kubectl describe quota`",
    ),
)

#: What the scheduler says before it looks at nodes.
_BEFORE_NODES = (
    _Reason(
        r'(?:resourceclaim|ResourceClaim) "?([^" ]+)"? (?:not found|was not created)|device class (\S+) does not exist',
        "a claim that it names is not there: {0}",
        "make it, or correct spec.resourceClaims of the manifest",
    ),
    _Reason(
        r'persistentvolumeclaim "([^"]+)" not found',
        "there is no PersistentVolumeClaim {0}",
        "make it, or let CDI: `kubectl get datavolumes` shows what it is doing",
    ),
    _Reason(
        r"unbound immediate PersistentVolumeClaims|didn't find available persistent volumes",
        "a PersistentVolumeClaim of its has no volume",
        "`kubectl describe pvc` says why: no default StorageClass, or no volume that fits",
    ),
    _Reason(
        r"ReadWriteOncePod access mode already in-use",
        "another pod has its PersistentVolumeClaim",
        "stop that pod: `kubectl describe pvc` names it under Used By",
    ),
)

#: What the controller says that makes a claim of a pod's template.
_CLAIMS = (
    _Reason(
        r'resource claim template "([^"]+)".* not found',
        "there is no ResourceClaimTemplate {0}",
        "apply the VM again: if the API server refuses the template, it says why",
    ),
)

#: What the scheduler says of nodes, the nearest to a start first: nodes that fail for the last ones were not looked at
#: further. `gpu-launcher fit` says it better, if the user may list nodes.
_NODES = (
    _Reason(
        r"cannot allocate all claims",
        "no node has free cards that its claims accept",
        "see the cards below; wait for one, or ask for less: docs/choosing.md",
    ),
    _Reason(
        r"didn't match PersistentVolume's node affinity|had volume node affinity conflict",
        "its volume is on a node where it cannot start",
        "free what it needs on the volume's node, or move the volume: `kubectl get pv -o wide`",
    ),
    _Reason(
        r"Insufficient (hugepages-\S+?)[,.]",
        "no node has as many free {0}",
        "reserve more on a node (hugepages= on its kernel's command line), or leave memory.hugepages out",
    ),
    _Reason(
        r"Insufficient ([^\s,]+/[^\s,]*[^\s,.])",
        "no node has a free {0}",
        "`kubectl get nodes -o yaml` has what each offers, under allocatable; on a node `gpu-plugin inventory` says "
        "who has which card, and why one isn't offered",
    ),
    _Reason(
        r"Insufficient (memory|cpu|ephemeral-storage)",
        "no node has enough {0} left",
        "stop what has it, or give the VM less: the pod's annotation gpu-launcher.dev/memory has the sum",
    ),
    _Reason(r"Too many pods", "the nodes have as many pods as they take", "stop one, or raise the kubelet's maxPods"),
    _Reason(
        r"didn't match Pod's node affinity/selector",
        "no node has the labels that it selects",
        "compare its nodeSelector and affinity with `kubectl get nodes --show-labels`",
    ),
    _Reason(r"were unschedulable", "the nodes left are cordoned", "`kubectl uncordon NODE`, when its work is done"),
    _Reason(
        r"untolerated taint(?:\(s\)|s?)(?: \{([^}]*)\})?",
        "the nodes left have taints that it does not tolerate",
        "`kubectl describe node` lists them: remove one, or write tolerations into the manifest",
    ),
)

#: Why the kubelet has not started the container: what is in the container's status, or in a warning.
_KUBELET = (
    _Reason(
        r"ErrImagePull|ImagePullBackOff|ErrImageNeverPull|InvalidImageName",
        "its image cannot be pulled",
        "see the name, and the pull secret; `gpu-launcher pod --image` names the launcher's",
    ),
    _Reason(
        r"CreateContainerConfigError",
        "its container names what is not there",
        "make the ConfigMap or the Secret that is named here",
    ),
    _Reason(
        r"(?:configmap|ConfigMap) \"([^\"]+)\" not found",
        "there is no ConfigMap {0}",
        "`kubectl gpuvm apply -f vm.yaml` makes the manifest's; make others of the manifest yourself",
    ),
    _Reason(r"secret \"([^\"]+)\" not found", "there is no Secret {0}", "make it: the manifest names it"),
    _Reason(
        r"Multi-Attach error",
        "its volume is still attached to another node",
        "stop the pod that has it there; of a node that is off for good: "
        "`kubectl taint node NODE node.kubernetes.io/out-of-service=nodeshutdown:NoExecute`",
    ),
    _Reason(
        r"FailedPrepareDynamicResources",
        "the DRA driver cannot prepare its claim",
        f"the driver's log on the node says more: {_LOG_OF_DRIVER}",
    ),
    _Reason(
        r"FailedAttachVolume|FailedMount|FailedMapVolume",
        "a volume of its cannot be mounted",
        "see the volume named here",
    ),
    _Reason(
        r"cannot load seccomp profile \"\S*/seccomp/([^\"]+)\"",
        "its node lacks the seccomp profile {0}",
        "install it: components/seccomp of deploy/plugin, docs/restricted.md",
    ),
    _Reason(
        r"apparmor profile not found (\S+)|apparmor is not supported",
        "its node lacks the AppArmor profile that it names",
        "load deploy/node/apparmor there, or on nodes without AppArmor print the pod without --apparmor",
    ),
    _Reason(r"FailedCreatePodSandBox", "its network cannot be made", "see the CNI plugin on its node"),
    _Reason(
        r"CreateContainerError|RunContainerError|StartError", "its container cannot be made", "see its node's runtime"
    ),
)

#: Why the kubelet, or a controller, has ended the whole pod: its status' reason, or that of DisruptionTarget.
_ENDINGS = (
    _Reason(
        r"UnexpectedAdmissionError",
        "its node could not give it the devices",
        "gpu-plugin's log on the node says why; then `kubectl gpuvm start`",
    ),
    _Reason(
        r"OutOf(\S+)", "its node had too little {0} when it came", "`kubectl gpuvm start`: the scheduler looks again"
    ),
    _Reason(
        r"Evicted|TerminationByKubelet",
        "its node has evicted it",
        "give it what it used up, then `kubectl gpuvm start`",
    ),
    _Reason(
        r"NodeLost|DeletionByTaintManager|DeletionByPodGC",
        "its node is lost",
        "bring the node back; if it is off for good: "
        "`kubectl taint node NODE node.kubernetes.io/out-of-service=nodeshutdown:NoExecute`",
    ),
    _Reason(
        r"EvictionByEvictionAPI",
        "its node is being drained",
        "a controller makes it anew; of a Pod: `kubectl gpuvm apply`",
    ),
    _Reason(r"Preempt", "a pod of a higher priority has its place", "give it a priorityClassName, or wait"),
    _Reason(r"NodeShutdown|Terminated", "its node was shut down", "when the node is back: `kubectl gpuvm start`"),
    _Reason(r"DeadlineExceeded", "it has run for its activeDeadlineSeconds", "`kubectl gpuvm start`, or raise them"),
)

#: What an exit code of the launcher says, beside its last line.
_CODES = {
    Refusal.exit_code: "the launcher could not start or keep the guest",
    UserError.exit_code: "the manifest or a variable is wrong",
    **{ending.code: ending.words for ending in Ending if ending.code},
}
_MOST_DEVICES = 3  # that are named
#: The scheduler's bindingTimeout is 10 minutes by default.
_WAIT = f"wait: after 10 minutes it takes other cards, and the driver's log says more: {_LOG_OF_DRIVER}"
_LAST_LINE = "docs/troubleshooting.md has the codes and the lines"


def answer(
    pod: Pod,
    events: Sequence[Event],
    last_line: str,
    of_nodes: tuple[str, str] | None = None,
    claims: Sequence[ResourceClaim] = (),
) -> Problem:
    """Return why a pod's VM is in its state. `events` are the pod's, the oldest first. `of_nodes`: why no node takes
    the pod, and what to do, if that `is_for_nodes` and better known than from the scheduler. `claims`: those of a pod
    without a node, which the scheduler may be waiting for."""
    name, phase = pod.place, pod.phase
    if not pod.metadata.deletion_timestamp and (not_ready := _of_claims(claims)) is not None:
        wrong, fix = not_ready
        return Problem(name, f"is {_state(pod, phase)}: {wrong}", fix)
    if of_nodes is not None:
        wrong, fix = of_nodes
        return Problem(name, f"is {_state(pod, phase)}: {wrong}", fix)
    for reason_of in (_deleted, _ended, _unscheduled, _crashed, _not_started, _paused):
        if (reason := reason_of(pod, events, last_line)) is not None:
            wrong, fix = reason
            return Problem(name, f"is {_state(pod, phase)}: {wrong}", fix)
    if pod.condition("Ready").status == "True":
        return Problem(name, "is Running: nothing keeps it", "")
    last = f": {last_line}" if last_line else ""
    return Problem(
        name, f"is Starting: the guest does not run yet{last}", "`kubectl gpuvm state` and `logs -f` follow it"
    )


def is_for_nodes(pod: Pod) -> bool:
    """Return whether a pod waits for a suitable node, and for nothing else that the scheduler reports."""
    scheduled = pod.condition("PodScheduled")
    is_waiting = scheduled.reason == "Unschedulable" and not pod.metadata.deletion_timestamp
    return is_waiting and _first(_BEFORE_NODES, scheduled.message) is None


def no_pod(controller: Controller, warnings: Sequence[Event]) -> Problem:
    """Return the answer for a controller without a pod: the error when it tried to make one, or that it is stopped."""
    name = controller.place
    fix = "see the controller: `kubectl describe`"
    # A Deployment's ReplicaSet is told, and has the events.
    failure = controller.condition("ReplicaFailure")
    message = failure.message if failure.status == "True" else warnings[-1].message if warnings else ""
    if not message and not controller.is_stopped:
        return Problem(name, "is without a pod: its controller has made none yet", fix)
    if not message:
        return Problem(name, "is Stopped: its controller is to have no pod", "`kubectl gpuvm start`")
    if (limit := _first(_LIMITS, message)) is not None:
        wrong, fix = limit
        return Problem(name, f"is without a pod: {wrong}", fix)
    if "PodSecurity" in message:
        fix = "print it for the level that its namespace enforces, `gpu-launcher pod --level`: docs/restricted.md"
    return Problem(name, f"is without a pod: the API server refuses it ({message})", fix)


def _state(pod: Pod, phase: str) -> str:
    if pod.metadata.deletion_timestamp:
        return "Terminating"
    return "Paused" if pod.is_paused else phase


def of_record(record: ConfigMap) -> Problem:
    """Return the answer for a VM that has nothing but its record."""
    name = record.metadata.namespace + "/" + record.vm
    if claim := suspended_to(record):
        return Problem(name, f"is Suspended: its memory is on the claim {claim}", "`kubectl gpuvm resume` has it go on")
    wrong = "is Stopped" if was_stopped(record) else "has no pod: it was never started, or its pod was deleted"
    return Problem(name, wrong, "`kubectl gpuvm start` starts it")


_Found = tuple[str, str] | None


def _deleted(pod: Pod, events: Sequence[Event], last_line: str) -> _Found:
    if not pod.metadata.deletion_timestamp:
        return None
    if known := _first(_ENDINGS, pod.condition("DisruptionTarget").reason):
        return known
    seconds, until = pod.metadata.deletion_grace_period_seconds, pod.metadata.deletion_timestamp
    return f"it was deleted, and the guest has until {until} to shut down ({seconds} s in all)", (
        "wait; `kubectl gpuvm stop --force` ends the guest now"
    )


def _ended(pod: Pod, events: Sequence[Event], last_line: str) -> _Found:
    if not pod.has_ended:
        return None
    if pod.reason and (known := _first(_ENDINGS, pod.reason)):
        wrong, fix = known
        return f"{wrong}{_quoted(pod.message)}", fix
    if pod.phase == "Succeeded":
        return "the guest has powered itself off, or was asked to", "`kubectl gpuvm start` starts it again"
    return _exit(pod.launcher.terminated or Terminated(), last_line)


def _unscheduled(pod: Pod, events: Sequence[Event], last_line: str) -> _Found:
    scheduled = pod.condition("PodScheduled")
    if pod.spec.node_name:
        return None
    if scheduled.reason == "SchedulingGated":
        gates = ", ".join(gate.name for gate in pod.spec.scheduling_gates)
        fix = "whoever set a gate removes it"
        if "kueue.x-k8s.io/admission" in gates:
            fix = "the queue admits it when there is room: `kubectl get workloads`"
        return f"scheduling gates hold it back: {gates}", fix
    if not pod.has_claims and (refused := _claims_refused(events)) is not None:
        return refused
    if scheduled.status == "False":
        wrong, fix = _first((*_BEFORE_NODES, *_NODES), scheduled.message) or (
            "no node takes it",
            "read the scheduler's words",
        )
        return f"{wrong}{_quoted(scheduled.message.partition(' preemption: ')[0])}", fix
    for event in events:
        if event.reason == "BindingConditionsPending":  # who sees it may not see the claims
            return f"its cards are made ready for it{_quoted(event.message)}", _WAIT
    scheduler = pod.spec.scheduler_name
    return f"no scheduler has looked at it ({scheduler})", "see whether a scheduler of that name runs, and its log"


def _claims_refused(events: Sequence[Event]) -> _Found:
    """Return why the pod's claims could not be made from their templates; None if they could."""
    for event in reversed(events):
        if event.reason == "FailedResourceClaimCreation":
            return _first((*_LIMITS, *_CLAIMS), event.message) or (
                f"a claim cannot be made for it{_quoted(event.message)}",
                "see its ResourceClaimTemplate: `kubectl get resourceclaimtemplates`",
            )
    return None


def _of_claims(claims: Sequence[ResourceClaim]) -> _Found:
    """Return which allocated devices the scheduler waits for, or could not have, by their binding conditions
    (KEP-5007): before it binds the pod, all conditions have to be true, and no failure condition."""
    failed: dict[str, str] = {}
    awaited: dict[str, str] = {}
    for claim in claims:
        conditions = {each.key: each.conditions for each in claim.devices}
        for device in claim.results:
            messages = {each.type: each.message for each in conditions.get(device.key, ())}
            true = {each.type for each in conditions.get(device.key, ()) if each.status == "True"}
            name = f"{device.device} of {device.pool}"
            if failures := true & {*device.binding_failure_conditions}:
                failed[name] = messages[min(failures)]
            elif missing := {*device.binding_conditions} - true:
                awaited[name] = messages.get(min(missing), "")
    if failed:
        wrong = f"{summary([*failed], _MOST_DEVICES)} cannot be made ready for it{_quoted(next(iter(failed.values())))}"
        return wrong, f"the scheduler looks for other cards, and the driver's log says more: {_LOG_OF_DRIVER}"
    if awaited:
        wrong = f"the scheduler waits until {summary([*awaited], _MOST_DEVICES)} can be used"
        return f"{wrong}{_quoted(next(iter(awaited.values())))}", _WAIT
    return None


def _crashed(pod: Pod, events: Sequence[Event], last_line: str) -> _Found:
    status = pod.launcher
    terminated = status.ended
    if status.running is not None or terminated is None:
        return None
    if terminated.exit_code == 0:
        return "the guest has powered itself off, and its pod starts it again", "`kubectl gpuvm stop` keeps it off"
    return _exit(terminated, last_line)


def _exit(terminated: Terminated, last_line: str) -> tuple[str, str]:
    if terminated.reason == "OOMKilled":
        return "its container used more memory than its limit", "set memory.reservedOverhead.addedOverhead: docs/pod.md"
    code = terminated.exit_code
    words = _CODES.get(code, f"signal {code - 128} has ended the launcher" if code > 128 else "the launcher has failed")
    return f"{words} (exit code {code}){': ' * bool(last_line)}{last_line}", _LAST_LINE


def _not_started(pod: Pod, events: Sequence[Event], last_line: str) -> _Found:
    waiting = pod.launcher.waiting
    if waiting is None and pod.phase != "Pending":
        return None
    waiting = waiting or Waiting()
    if known := _first(_KUBELET, f"{waiting.reason} {waiting.message}"):
        wrong, fix = known
        return f"{wrong}{_quoted(waiting.message)}", fix
    for event in reversed(warnings_of(events)):
        if known := _first(_KUBELET, f"{event.message} {event.reason}"):
            wrong, fix = known
            return f"{wrong}{_quoted(event.message)}", fix
    return None


def _paused(pod: Pod, events: Sequence[Event], last_line: str) -> _Found:
    if not pod.is_paused:
        return None
    return f"its guest does not run any more{_quoted(last_line)}", "`kubectl gpuvm unpause` lets it run again"


def warnings_of(events: Sequence[Event]) -> list[Event]:
    return [event for event in events if event.type == "Warning"]


def _first(reasons: Sequence[_Reason], words: str) -> tuple[str, str] | None:
    for reason in reasons:
        if match := re.search(reason.pattern, words):
            groups = [group for group in match.groups() if group is not None]
            return reason.wrong.format(*groups, match[0]), reason.fix
    return None


def _quoted(words: str) -> str:
    return f" ({' '.join(words.split()).rstrip('.,')})" if words else ""
