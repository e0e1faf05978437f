"""The user's kubectl: its context, its rights, its words.

Every command line of kubectl is made here, from our own words, from Names, and from what the user typed; objects come
back as values (objects.py). A text that a tenant chose is never a word by itself: an object is KIND/NAME, and an
invalid name is refused before kubectl is called, which would take `--server=...` for a flag.
"""

import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from tempfile import NamedTemporaryFile
from typing import Any, NamedTuple

from gpuvm.objects import (
    CONTAINER,
    ID_LABEL,
    NAME,
    STOPPED,
    SUSPENDED,
    AnyObject,
    ConfigMap,
    Controller,
    Event,
    Pod,
    ResourceClaim,
    VMObject,
    VolumeClaim,
    checked,
    objects_in,
)
from gpuvm.process import NOT_REACHED, SECONDS, error_of, exec_program, passed_on, run_program
from gpuvm.target_pod import target_of, without_receiving
from pci.cordons import CONFIG_MAP
from program.document import NotYAML, decoded, read_documents
from program.errors import Nonsense, ProgramError, Refusal, UserError
from program.problem import Problem, printable

LONGEST = 120.0  # seconds, for the cards of 5,000 nodes
_MAY_BE_DONE = "it may be done: `kubectl gpuvm state {}` says what the VM does now, if its node answers"
_BESIDE = 60  # seconds for the API server and the kubelet, beside a pod's grace period
_CONTROLLERS = "deployments,statefulsets,jobs"
_STATE = "persistentvolumeclaims"
_BESIDE_KINDS = ("resourceclaimtemplates", "datavolumes.cdi.kubevirt.io")  # which not every API server has
_UNCHANGEABLE = ("Pod", "Job")
_CANNOT_CHANGE = re.compile(r"may not change fields|field is immutable")
_UNSERVED = "the server doesn't have a resource type"
_MARKS = {"stopped": STOPPED, "suspended": SUSPENDED}
#: Where deploy/plugin and deploy/chart's page have the plugin.
PLUGIN_NAMESPACE = "kube-system"
_ENFORCED = "pod-security.kubernetes.io/enforce"

#: What the API server, the scheduler and the kubelet put into a Pod's spec, and would not take from a new one or would
#: put there again; its volume with a token has a name of its own in each pod.
_FILLED_IN = ("nodeName", "serviceAccount", "priority", "preemptionPolicy", "ephemeralContainers")
_TOKEN_VOLUME = "kube-api-access-"  # noqa: S105 (a name)
#: Annotations that kubectl, CNI plugins and the like write.
_WRITTEN = re.compile(
    r"kubectl\.kubernetes\.io/|kubernetes\.io/limit-ranger$|k8s\.v1\.cni\.cncf\.io/networks?-status$"
    r"|cni\.projectcalico\.org/|k8s\.ovn\.org/|ovn\.kubernetes\.io/"
)


class Printed(NamedTuple):
    """The output of `gpu-launcher pod`, and the objects in it: `parts` are their JSON."""

    text: bytes
    objects: tuple[AnyObject, ...]
    parts: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Kubectl:
    """Calls the user's kubectl. `flags` go with every call: the namespace, the context, the kubeconfig."""

    program: str
    flags: tuple[str, ...] = ()

    # What there is.

    def vms(self, *, everywhere: bool = False, of: AnyObject | None = None) -> list[VMObject | ConfigMap]:
        """Return the pods, controllers and ConfigMaps that have a VM's label; with `of`, an object, only those
        of its VM."""
        where = ["-l", ID_LABEL, *["--all-namespaces"] * everywhere] if of is None else _labelled_as(of)
        return self._get([f"pods,{_CONTROLLERS},configmaps", *where], VMObject | ConfigMap)

    def beside(self, vm: AnyObject) -> list[AnyObject]:
        """Return the claims, claim templates and DataVolumes that have the label of this object's VM."""
        where = _labelled_as(vm)
        objects = self._get([_STATE, *where], AnyObject)
        for kind in _BESIDE_KINDS:
            objects += self._if_served(partial(self._get, [kind, *where], AnyObject))
        return objects

    def enforced_level(self, namespace: str) -> str:
        """Return the level of Pod Security that a namespace enforces; "" for none, or if the user may not see it."""
        with suppress(Refusal):
            its = self.named("namespace", namespace)
            return "" if its is None else its.metadata.labels.get(_ENFORCED, "")
        return ""

    def pods(self, within: float = SECONDS) -> list[Pod]:
        """Return the pods that have a VM's label."""
        return self._get(["pods", "-l", ID_LABEL], Pod, within)

    def pod(self, name: str) -> Pod | None:
        return next(iter(self._get([_one("pod", name)], Pod)), None)

    def volume_claim(self, name: str) -> VolumeClaim | None:
        return next(iter(self._get([_one("persistentvolumeclaim", name)], VolumeClaim)), None)

    def named(self, kind: str, name: str) -> AnyObject | None:
        return next(iter(self._get([_one(kind, name)], AnyObject)), None)

    def config_map(self, name: str) -> ConfigMap | None:
        return next(iter(self._get([_one("configmap", name)], ConfigMap)), None)

    def events(self, each: VMObject) -> list[Event]:
        """Return an object's events, the oldest first."""
        about = f"--field-selector=involvedObject.uid={each.metadata.uid}"
        events = self._get(["events", about, f"--namespace={each.metadata.namespace}"], Event)
        return sorted(events, key=lambda event: event.time)

    def claims(self, pod: Pod) -> list[ResourceClaim]:
        """Return those of a pod's claims that exist."""
        names = [_one("resourceclaim", name) for name in pod.claim_names]
        return self._get([*names, f"--namespace={pod.metadata.namespace}"], ResourceClaim) if names else []

    def all_claims(self) -> list[ResourceClaim]:
        """Return the claims of all namespaces; none if the API server lacks DRA."""
        ask = ["resourceclaims", "--all-namespaces"]
        return self._if_served(lambda: self._get(ask, ResourceClaim, LONGEST))

    def user(self) -> str:
        """Return the user's name, from the API server."""
        command = ["auth", "whoami", "-o", "json"]
        user = self._read(self._output(command), self._command(command))[0].get("status", {}).get("userInfo", {})
        return str(user.get("username", ""))

    def cordons(self) -> list[Any]:
        """Return the ConfigMap of the cards that are out of service; none if the user may not see it."""
        with suppress(Refusal):
            return self._listed([_one("configmap", CONFIG_MAP), f"--namespace={PLUGIN_NAMESPACE}"])
        return []

    def cluster(self, kinds: str, *more: str, beside: Iterable[Any] = ()) -> bytes:
        """Return the whole cluster's objects as JSON for gpu-launcher: of these `kinds`, of each of the `more` kinds
        that the API server serves, and the ones in `beside`. Refusal if the user may not list them."""
        objects = [*self._everywhere(kinds), *beside]
        for each in more:
            objects += self._if_served(partial(self._everywhere, each))
        return json.dumps({"items": objects}).encode()

    @staticmethod
    def _if_served(ask: Callable[[], list[Any]]) -> list[Any]:
        try:
            return ask()
        except Refusal as refusal:
            if _UNSERVED not in str(refusal):
                raise
        return []

    def _everywhere(self, kinds: str) -> list[Any]:
        objects = self._listed([kinds, "--all-namespaces"], LONGEST)
        self._checked(objects, AnyObject)
        return objects

    def log(self, pod: Pod, lines: int) -> str:
        """Return the last lines of the launcher's log."""
        return printable(self._output([*_log(pod), f"--tail={lines}"]).decode(errors="replace"))

    # What is done in a pod.

    def follow_log(self, pod: Pod, *, follow: bool, previous: bool, tail: int | None) -> None:
        """Become `kubectl logs` (exec), which prints the log unchanged."""
        flags = [*["--follow"] * follow, *["--previous"] * previous, *([] if tail is None else [f"--tail={tail}"])]
        exec_program(self._command([*_log(pod), *flags]))

    def ctl(self, pod: Pod, *words: str, within: float = SECONDS) -> bytes:
        """Return what `gpu-launcher ctl` prints in a VM's pod."""
        return self._output(_ctl(pod, words), within=within, if_late=_MAY_BE_DONE.format(pod.name))

    def send(self, pod: Pod, address: str, invitation: bytes, within: float) -> tuple[ProgramError | None, bool]:
        """Have a VM's pod send its guest to an address; return the error, None if it is sent, and whether the
        launcher itself has said that it is not sent."""
        command = self._command(_ctl(pod, ("send", address), "-i"))
        answer = run_program(command, stdin=invitation, within=within, if_late=_MAY_BE_DONE.format(pod.name))
        return (error_of(answer, command), b"not sent" in answer.out) if answer.code else (None, False)

    def follow_ctl(self, pod: Pod, *words: str) -> None:
        """Print what `gpu-launcher ctl` prints, line by line, until it ends."""
        passed_on(self._command(_ctl(pod, words)))

    def join_ctl(self, pod: Pod, *words: str, tty: str) -> None:
        """Become `gpu-launcher ctl` (exec) with this terminal, which gets the guest's output unchanged."""
        exec_program(self._command(_ctl(pod, words, tty)))

    def ctl_command(self, pod: Pod, *words: str) -> list[str]:
        """Return the command line that runs `gpu-launcher ctl` with standard input."""
        return self._command(_ctl(pod, words, "-i"))

    def port_forward(self, pod: Pod, address: str | None, pairs: Sequence[str]) -> None:
        """Become `kubectl port-forward` (exec) for these PORT or PORT:GUEST."""
        where = [] if address is None else [f"--address={address}"]
        exec_program(self._command(["port-forward", _one("pod", pod.name), *where, *pairs]))

    def port_forward_command(self, pod: Pod, port: str) -> list[str]:
        """Return the command line that forwards a free local port to the guest's port."""
        return self._command(["port-forward", _one("pod", pod.name), f":{port}"])

    # What changes something. Each prints nothing, and returns what kubectl prints.

    def start_controller(self, controller: Controller) -> None:
        self._patch(controller, suspend=False, replicas=controller.applied_replicas)

    def stop_controller(self, controller: Controller) -> None:
        self._patch(controller, suspend=True, replicas=0)

    def delete_at_once(self, objects: Iterable[AnyObject]) -> str:
        """Delete objects without waiting for their end."""
        return self._text(["delete", *(_one(each.kind, each.name) for each in objects), "--wait=false"])

    def mark(self, record: ConfigMap, **annotations: str) -> None:
        """Set a record's marks for its VM: `stopped` to a time, or `suspended` to a claim's name; "" removes
        the mark."""
        words = [f"{_MARKS[name]}={value}" if value else f"{_MARKS[name]}-" for name, value in annotations.items()]
        self._output(["annotate", _one("configmap", record.name), *words, "--overwrite"])

    def set_data(self, config_map: str, key: str, value: str | None) -> None:
        """Set one key of a ConfigMap, or remove it if the value is None; keep all others."""
        patch = json.dumps({"data": {key: value}})
        self._output(["patch", _one("configmap", config_map), "--type=merge", "--patch", patch])

    def delete(self, old: VMObject, others: Iterable[AnyObject]) -> None:
        """Delete an object and others with it, and wait for their end as long as its guest may take."""
        seconds = old.spec.termination_grace_period_seconds + _BESIDE
        names = [_one(each.kind, each.name) for each in (old, *others)]
        flags = ["--ignore-not-found", f"--timeout={seconds}s"]
        self._output(["delete", *names, *flags], within=seconds + _BESIDE)

    def wait_for_end(self, pod: Pod) -> None:
        """Wait until a pod has succeeded, as long as its guest may take."""
        seconds = pod.spec.termination_grace_period_seconds + _BESIDE
        ended = "--for=jsonpath={.status.phase}=Succeeded"
        self._output(["wait", _one("pod", pod.name), ended, f"--timeout={seconds}s"], within=seconds + _BESIDE)

    def apply(self, new: Printed) -> str:
        return self._changed(["apply"], new.text, within=_BESIDE)

    def live_if_changed(self, new: AnyObject, text: bytes) -> VMObject | None:
        """Return the object in the cluster if only deleting and making it again could turn it into the new one; None if
        there is none, or if `apply` suffices. The API server tries to apply it (--dry-run=server)."""
        if new.kind not in _UNCHANGEABLE:
            return None
        where = [f"--namespace={new.metadata.namespace}"] if new.metadata.namespace else []
        objects = self._listed([_one(new.kind, new.name), *where])
        for live, value in zip(objects, self._checked(objects, VMObject), strict=True):
            command = self._command(["apply", "--dry-run=server", "-o", "json", "-f", "-"])
            answer = run_program(command, stdin=text)
            if answer.code and not _CANNOT_CHANGE.search(answer.words):
                raise error_of(answer, command)
            if answer.code or [*map(_fixed, self._read(answer.out, command))] != [_fixed(live)]:
                return value  # type: ignore[no-any-return]
        return None

    def make_anew(self, pod: Pod) -> str:
        """Delete a pod that has ended, and make it again, with its name, namespace, labels, annotations and spec.

        If the API server would not take it, raise Refusal before anything is deleted. If it refuses afterwards, the
        error names a file with the pod.
        """
        objects = self._listed([_one("pod", pod.name)])
        if [each.metadata.uid for each in self._checked(objects, Pod)] != [pod.metadata.uid]:
            raise Refusal(pod.place, "is gone or another pod meanwhile", "see `kubectl gpuvm list`")
        new = _anew(objects[0])
        metadata = {name: value for name, value in new["metadata"].items() if name != "name"}
        trial = {**new, "metadata": {**metadata, "generateName": f"{pod.name[:200]}-"}}
        self._changed(["create", "--dry-run=server"], json.dumps(trial).encode())
        self._output(["delete", _one("pod", pod.name)], within=2 * _BESIDE)
        text = json.dumps(new).encode()
        try:
            return self._changed(["create", "--save-config"], text)
        except ProgramError as error:
            file = _saved(text)
            kept = Problem(file, "has the pod, which is deleted", f"`kubectl create -f {file}` makes it anew")
            raise type(error).of([*error.problems, kept]) from error

    def make_target(self, pod: Pod, name: str, node: str | None) -> str:
        """Make a pod of that name for the guest of this one, on a node, or on any other one than the present."""
        (live,) = self._listed([_one("pod", pod.name)])
        return self._changed(["create"], json.dumps(target_of(live, _anew(live), name, node)).encode())

    # Words and answers.

    def _command(self, words: Sequence[str]) -> list[str]:
        return [self.program, *self.flags, *words]

    def _output(
        self, words: Sequence[str], stdin: bytes = b"", within: float = SECONDS, if_late: str = NOT_REACHED
    ) -> bytes:
        """Return what a call prints. Refusal, in kubectl's own words, if it fails or is late."""
        answer = run_program(self._command(words), stdin=stdin, within=within, if_late=if_late)
        if answer.code:
            raise error_of(answer, self._command(words))
        return answer.out

    def _changed(self, words: Sequence[str], stdin: bytes, within: float = SECONDS) -> str:
        return self._text([*words, "-f", "-"], stdin, within)

    def _text(self, words: Sequence[str], stdin: bytes = b"", within: float = SECONDS) -> str:
        return printable(self._output(words, stdin, within).decode(errors="replace"))

    def _patch(self, controller: Controller, *, suspend: bool, replicas: int) -> None:
        spec = {"suspend": suspend} if controller.kind == "Job" else {"replicas": replicas}
        place = _one(controller.kind, controller.name)
        self._output(["patch", place, "--type=merge", "--patch", json.dumps({"spec": spec})])

    def _get(self, words: Sequence[str], kind: Any, within: float = SECONDS) -> list[Any]:
        return self._checked(self._listed(words, within), kind)

    def _listed(self, words: Sequence[str], within: float = SECONDS) -> list[Any]:
        """Return the objects that `kubectl get` prints; no objects are no error."""
        command = ["get", *words, "--ignore-not-found", "-o", "json"]
        return self._read(self._output(command, within=within), self._command(command))

    @staticmethod
    def _read(text: bytes, command: Sequence[str]) -> list[Any]:
        try:
            return objects_in(text)
        except Nonsense as error:
            raise Refusal("kubectl", error.wrong, f"try {shlex.join(command)}") from error

    @staticmethod
    def _checked(objects: list[Any], kind: Any) -> list[Any]:
        try:
            return checked(objects, kind)
        except Nonsense as error:
            raise Refusal("kubectl", error.wrong, "see what `kubectl version` says of the API server") from error


def kubectl_on_path(*flags: str) -> Kubectl:
    """Return the kubectl on PATH; Refusal without one."""
    program = shutil.which("kubectl")
    if program is None:
        raise Refusal("kubectl", "is not on PATH", "install it: kubernetes.io/docs/tasks/tools")
    return Kubectl(program, flags)


def read_printed(text: bytes) -> Printed:
    """Return the objects that `gpu-launcher pod` prints. UserError if it prints anything else."""
    try:
        values = [document.value for document in read_documents(decoded(text))]
        return Printed(text, tuple(checked(values, AnyObject)), tuple(json.dumps(value).encode() for value in values))
    except NotYAML as error:
        raise UserError("gpu-launcher pod", f"prints what {error.wrong}", "report it") from error
    except Nonsense as error:
        raise UserError("gpu-launcher pod", error.wrong, "report it") from error


def _one(kind: str, name: str) -> str:
    """Return the word that names one object. Refusal if its name is not valid in Kubernetes."""
    if not re.fullmatch(NAME, name):
        raise Refusal(
            f"{kind.lower()} {name!r}", "is named by the pod, and is no name in Kubernetes", "see who made the pod"
        )
    return f"{kind.lower()}/{name}"


def _labelled_as(vm: AnyObject) -> list[str]:
    """Return the words that select the objects of a VM's label in its namespace, or kubectl's own if the VM
    names none."""
    namespace = vm.metadata.namespace
    return ["-l", f"{ID_LABEL}={vm.metadata.labels[ID_LABEL]}", *([f"--namespace={namespace}"] if namespace else [])]


def _log(pod: Pod) -> list[str]:
    return ["logs", _one("pod", pod.name), "-c", CONTAINER]


def _ctl(pod: Pod, words: Sequence[str], tty: str = "") -> list[str]:
    """Return the words that call `gpu-launcher ctl` in a VM's pod; `tty` is -i or -it."""
    call = ["exec", *([tty] if tty else []), _one("pod", pod.name), "-c", CONTAINER]
    return [*call, "--", "gpu-launcher", "ctl", *words]


def _fixed(each: Mapping[str, Any]) -> object:
    """Return the immutable part of a Pod or a Job."""
    return each["spec"] if each["kind"] == "Pod" else each["spec"]["template"]


def _anew(live: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pod to make in place of one that has ended, without the fields that the cluster filled in."""
    metadata, spec = live["metadata"], {name: value for name, value in live["spec"].items() if name not in _FILLED_IN}
    spec["volumes"] = _without_token(spec.get("volumes", ()))
    for kind in ("containers", "initContainers"):
        if kind in spec:
            spec[kind] = [{**each, "volumeMounts": _without_token(each.get("volumeMounts", ()))} for each in spec[kind]]
    spec["containers"] = [*map(without_receiving, spec["containers"])]
    annotations = {name: value for name, value in metadata.get("annotations", {}).items() if not _WRITTEN.match(name)}
    kept = {"labels": metadata.get("labels", {}), "annotations": annotations}
    named = {"name": metadata["name"], "namespace": metadata["namespace"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {**named, **kept}, "spec": spec}


def _without_token(parts: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [each for each in parts if not each["name"].startswith(_TOKEN_VOLUME)]


def _saved(text: bytes) -> str:
    with NamedTemporaryFile(prefix="kubectl-gpuvm-", suffix=".json", delete=False) as file:
        file.write(text)
    return file.name
