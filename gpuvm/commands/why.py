"""kubectl gpuvm why."""

import json
import re
from contextlib import suppress

from gpuvm.commands.options import ClusterFlags, VMName
from gpuvm.gpu_launcher import Fit, fit_of
from gpuvm.kubectl import Kubectl
from gpuvm.objects import Event, Pod, ResourceClaim, VMObject
from gpuvm.pods import controller_of, look, no_such, pods_of
from gpuvm.reasons import answer, is_for_nodes, no_pod, of_record, warnings_of
from program.commands import AsJSON
from program.errors import Refusal
from program.output import print_foreign, print_text
from program.problem import Problem, one_line

_MOST_EVENTS = 3
_LOG_LINES = 20
_STAMP = re.compile(r"[-0-9T:.]+Z (?:DEBUG|INFO|WARNING|ERROR|CRITICAL) ")


def why(vm: VMName, cluster: ClusterFlags, as_json: AsJSON = False) -> None:
    """Say why a VM is Pending or has failed: one answer, of its pod, the pod's events, its launcher and `fit`."""
    cluster, target = cluster.of(vm)
    kubectl = cluster.kubectl()
    seen = look(kubectl)
    pods = pods_of(seen.objects, target.name)
    subject = pods[-1] if pods else controller_of(seen.objects, target.name)
    events = [] if subject is None else _events(kubectl, subject)
    warnings = warnings_of(events)
    last_line, fit = "", Fit("")
    if isinstance(subject, Pod):
        last_line = _last_line(kubectl, subject)
        fit = fit_of(kubectl, subject) if is_for_nodes(subject) else fit
        reason = answer(subject, events, last_line, fit.answer, _claims(kubectl, subject))
    elif subject is not None:
        reason = no_pod(subject, warnings)
    elif (record := seen.record(target.name)) is not None:
        reason = of_record(record)
    else:
        raise no_such(target.name)
    reasons = [(event.reason, event.message) for event in warnings[-_MOST_EVENTS:]]
    if as_json:
        parts = {**reason.as_json(), "events": [*map(": ".join, reasons)], "launcher": last_line, "fit": fit.text}
        print_text(json.dumps(parts, indent=2) + "\n")
        return
    print_foreign(_text(reason, reasons, last_line, fit.text))


def _text(reason: Problem, events: list[tuple[str, str]], last_line: str, fit: str) -> str:
    """Return the answer, and below it what it was taken from, unless the answer says it already."""
    lines = [str(reason)]
    lines += [f"event: {one_line(f'{why}: {words}')}" for why, words in events if words not in reason.wrong]
    lines += [f"launcher: {one_line(last_line)}"] * (bool(last_line) and last_line not in reason.wrong)
    return "".join(f"{line}\n" for line in lines) + (f"\n{fit}" if fit else "")


def _events(kubectl: Kubectl, subject: VMObject) -> list[Event]:
    """Return an object's events, the oldest first; none for a user who may not see them."""
    with suppress(Refusal):
        return kubectl.events(subject)
    return []


def _claims(kubectl: Kubectl, pod: Pod) -> list[ResourceClaim]:
    """Return the claims of a pod without a node, for which the scheduler may wait; none for a user who may not see
    them."""
    if not pod.spec.node_name:
        with suppress(Refusal):
            return kubectl.claims(pod)
    return []


def _last_line(kubectl: Kubectl, pod: Pod) -> str:
    """Return the last line of the launcher's log: the pod has it, if the launcher failed; else the log."""
    status = pod.launcher
    text = status.ended.message if status.ended else ""
    if not text and (status.started or status.ended):
        with suppress(Refusal):
            text = kubectl.log(pod, _LOG_LINES)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return message(lines[-1]) if lines else ""


def message(line: str) -> str:
    """Return the message of a line of the launcher's log, in either format, or of an error; any other line as it is."""
    with suppress(ValueError, KeyError, TypeError, RecursionError):
        return str(json.loads(line)["message"])
    return _STAMP.sub("", line, count=1).removeprefix("gpu-launcher: ")
