"""kubectl gpuvm why."""

import json
import re
from contextlib import suppress

from gpuvm.commands.options import ClusterFlags, Output, VMName
from gpuvm.gpu_launcher import Fit, fit_of
from gpuvm.kubectl import ClusterObject, Kubectl
from gpuvm.pods import CONTAINER, claim_names_of, controller_of, no_such, pods_of, status_of, vms
from gpuvm.reasons import answer, is_for_nodes, no_pod, warnings_of
from program.errors import Refusal
from program.output import print_text
from program.problem import Problem, one_line

_MOST_EVENTS = 3
_LOG_LINES = 20
_STAMP = re.compile(r"[-0-9T:.]+Z (?:DEBUG|INFO|WARNING|ERROR|CRITICAL) ")


def why(vm: VMName, cluster: ClusterFlags, output: Output = None) -> None:
    """Say why a VM is Pending or has failed: one answer, of its pod, the pod's events, its launcher and `fit`."""
    cluster, target = cluster.of(vm)
    kubectl = cluster.kubectl()
    objects = vms(kubectl)
    found = pods_of(objects, target.name)
    controller = controller_of(objects, target.name)
    if not found and controller is None:
        raise no_such(target.name)
    subject = found[-1] if found else controller or {}
    events = _events(kubectl, subject)
    last_line = _last_line(kubectl, subject) if found else ""
    fit = fit_of(kubectl, subject) if found and is_for_nodes(subject) else Fit("")
    claims = _claims(kubectl, subject) if found else []
    reason = answer(subject, events, last_line, fit.answer, claims) if found else no_pod(subject, warnings_of(events))
    reasons = [(str(event.get("reason")), str(event.get("message"))) for event in warnings_of(events)[-_MOST_EVENTS:]]
    if output is not None:
        parts = {**reason._asdict(), "events": [*map(": ".join, reasons)], "launcher": last_line, "fit": fit.text}
        print_text(json.dumps(parts, indent=2) + "\n")
        return
    print_text(_text(reason, reasons, last_line, fit.text))


def _text(reason: Problem, events: list[tuple[str, str]], last_line: str, fit: str) -> str:
    """Return the answer, and below it what it was taken from, unless the answer says it already."""
    lines = [str(reason)]
    lines += [f"event: {one_line(f'{why}: {words}')}" for why, words in events if words not in reason.wrong]
    lines += [f"launcher: {one_line(last_line)}"] * (bool(last_line) and last_line not in reason.wrong)
    return "".join(f"{line}\n" for line in lines) + (f"\n{fit}" if fit else "")


def _events(kubectl: Kubectl, subject: ClusterObject) -> list[ClusterObject]:
    """Return an object's events, the oldest first; none for a user who may not see them."""
    selector = f"--field-selector=involvedObject.uid={subject['metadata']['uid']}"
    with suppress(Refusal):
        found = kubectl.objects("events", selector, "-n", subject["metadata"]["namespace"])
        return sorted(found, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))
    return []


def _claims(kubectl: Kubectl, pod: ClusterObject) -> list[ClusterObject]:
    """Return the claims of a pod without a node, for which the scheduler may wait; none for a user who may not see
    them."""
    if not pod["spec"].get("nodeName") and (names := claim_names_of(pod)):
        with suppress(Refusal):
            return kubectl.objects("resourceclaims", *names, "-n", pod["metadata"]["namespace"])
    return []


def _last_line(kubectl: Kubectl, pod: ClusterObject) -> str:
    """Return the last line of the launcher's log: the pod has it, if the launcher failed; else the log."""
    status = status_of(pod)
    ended = status.get("state", {}).get("terminated") or status.get("lastState", {}).get("terminated") or {}
    text = str(ended.get("message", ""))
    if not text and (status.get("started") or ended):
        with suppress(Refusal):
            name = pod["metadata"]["name"]
            text = kubectl.output("logs", name, "-c", CONTAINER, f"--tail={_LOG_LINES}").decode(errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return message(lines[-1]) if lines else ""


def message(line: str) -> str:
    """Return the message of a line of the launcher's log, in either format, or of an error; any other line as it is."""
    with suppress(ValueError, KeyError, TypeError, RecursionError):
        return str(json.loads(line)["message"])
    return _STAMP.sub("", line, count=1).removeprefix("gpu-launcher: ")
