"""A VM whose pod is gone: its record says that there is one, how it is started again, and what its end takes along."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuvm.objects import ConfigMap
from gpuvm.records import _FLAG, current, record_of
from program.errors import Refusal
from tests.conftest import Command
from tests.gpuvm.cluster import Object, controller, ended, golden, pod
from tests.gpuvm.standin import StandIn
from tests.gpuvm.test_changes import changes
from tests.launcher.pod.made import IMAGE
from tests.processes import FIXTURES

VM = FIXTURES / "vms" / "no-devices.yaml"
TEMPLATE = {
    "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
    "metadata": {"name": "gpu-launcher-desk-1", "namespace": "vms", "labels": {"vmi.kubevirt.io/id": "desk"}},
}  # fmt: skip
STATE = {
    "apiVersion": "v1", "kind": "PersistentVolumeClaim",
    "metadata": {"name": "persistent-state-for-desk", "namespace": "vms", "labels": {"vmi.kubevirt.io/id": "desk"}},
}  # fmt: skip


ALWAYS = """\
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata:
  name: desk
spec:
  runStrategy: Always
  template:
    spec:
      domain:
        memory: {guest: 128Mi}
        devices: {autoattachPodInterface: false}
"""


@pytest.fixture
def always(tmp_path: Path) -> Path:
    """A VM that a controller can run."""
    (tmp_path / "vm.yaml").write_text(ALWAYS)
    return tmp_path / "vm.yaml"


def record(
    vm: str = "no-devices",
    flags: tuple[str, ...] = (f"--image={IMAGE}",),
    *,
    name: str | None = None,
    created: str = "2026-11-22T12:00:00Z",
    stopped: bool = True,
) -> Object:
    """The ConfigMap of a VM, as the API server has it."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name or f"gpu-launcher-{vm}-1", "namespace": "vms", "uid": "uid-of-record",
            "creationTimestamp": created,
            "labels": {"vm.kubevirt.io/name": vm, "vmi.kubevirt.io/id": vm},
            "annotations": {"gpu-launcher.dev/stopped": "2026-11-22T13:00:00Z"} if stopped else {},
        },
        "data": {"vm.yaml": VM.read_text(), "pod-flags": "".join(f"{flag}\n" for flag in flags)},
    }  # fmt: skip


def namespace(level: str | None = None) -> Object:
    labels = {} if level is None else {"pod-security.kubernetes.io/enforce": level}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "vms", "labels": labels}}


def having(kubectl: StandIn, *objects: Object, level: str | None = None) -> None:
    kubectl.answers("get pods", list(objects))
    kubectl.answers("get namespace/vms", namespace(level))
    kubectl.answers("get pod/", "")
    kubectl.answers("apply", "pod/no-devices created\n")
    kubectl.answers("delete|annotate", "done\n")


def made(kubectl: StandIn) -> Any:
    """The pod that was applied."""
    texts = (text for call, text in zip(kubectl.calls, kubectl.given, strict=True) if call[1] == "apply")
    return next(each for text in texts for each in yaml.safe_load_all(text) if each["kind"] == "Pod")


def test_what_stop_deletes_start_makes_of_the_record(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    running = pod("no-devices", spec={"restartPolicy": "Always"})
    having(kubectl, running, record(stopped=False))
    result = kubectl_gpuvm("stop", "no-devices", env=kubectl.env)
    assert result.stdout == "no-devices: is asked to shut down; `kubectl gpuvm start` starts it again\n"
    delete, mark = changes(kubectl)
    assert delete == ["delete", "pod/no-devices", "--wait=false"]
    assert mark[:2] == ["annotate", "configmap/gpu-launcher-no-devices-1"]
    assert mark[2].startswith("gpu-launcher.dev/stopped=20")


def test_a_stopped_vm_starts_as_its_record_says(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    having(kubectl, record(flags=("--image=mine", "--node-devices=example.com", "--metrics=9100")))
    result = kubectl_gpuvm("start", "no-devices", env=kubectl.env)
    assert (result.stdout.splitlines()[0], result.returncode) == ("pod/no-devices created", 0)
    container = made(kubectl)["spec"]["containers"][0]
    assert container["image"] == "mine"
    assert container["resources"]["limits"]["example.com/kvm"] == "1"
    assert "--metrics=9100" in container["command"]


@pytest.mark.parametrize(
    ("recorded", "enforced", "level"),
    [
        ((), None, None), ((), "restricted", "restricted"), (("--level=restricted",), "baseline", "restricted"),
        (("--level=baseline",), None, "baseline"), ((), "moon", None),
    ],
)  # fmt: skip
def test_a_pod_is_of_the_level_of_its_record_or_of_its_namespace_if_that_is_stricter(
    kubectl_gpuvm: Command, kubectl: StandIn, recorded: tuple[str, ...], enforced: str | None, level: str | None
) -> None:
    having(kubectl, record(flags=(f"--image={IMAGE}", *recorded)), level=enforced)
    assert kubectl_gpuvm("start", "no-devices", env=kubectl.env).returncode == 0
    assert made(kubectl)["metadata"]["annotations"].get("gpu-launcher.dev/level") == level


@pytest.mark.parametrize(
    "flag", ["--cluster=/etc/passwd", "--owner=1", "/etc/passwd", "--image=a b", "--vm=/x", "--secret=x", "--image"]
)
def test_a_flag_that_no_record_has_is_refused(flag: str) -> None:
    with pytest.raises(Refusal, match="among the flags of its pod, which gpu-launcher does not write there"):
        record_of(ConfigMap.model_validate(record(flags=(flag,))))


def test_the_flags_of_a_record_are_those_that_gpu_launcher_writes(gpu_launcher: Command, always: Path) -> None:
    flags = (
        f"--image={IMAGE}", "--as=deployment", "--replicas=2", "--max-unavailable=1", "--node-devices=example.com",
        "--level=baseline", "--apparmor", "--pass-annotation=example.com/", "--metrics=9100", "--allow-host=vm",
        "--bars=1Gi", "--kernel=6.12", "--no-datavolumes", "--log-format=json", "--log-level=debug",
    )  # fmt: skip
    result = gpu_launcher("pod", always, *flags)
    assert result.returncode == 0, result.stderr
    first = next(yaml.safe_load_all(result.stdout))
    assert record_of(ConfigMap.model_validate(first)).flags == flags
    other = next(yaml.safe_load_all(gpu_launcher("pod", always, *flags[:-1]).stdout))
    assert other["metadata"]["name"] != first["metadata"]["name"]  # it cannot be changed


def test_a_record_has_each_flag_but_those_of_files_and_of_one_call(gpu_launcher: Command) -> None:
    """Of files the manifest in the record has what they say; of --dra, the names of the claims."""
    shown = re.findall(r"^ *(?:-\w, )?(--[a-z-]+)", gpu_launcher("pod", "--help").stdout, re.MULTILINE)
    others = {
        "--name",
        "--namespace",
        "--instancetype",
        "--preference",
        "--start",
        "--dra",
        "--cluster",
        "--owner",
        "--help",
    }
    assert {*shown} - others == {flag for flag in shown if _FLAG.fullmatch(flag) or _FLAG.fullmatch(f"{flag}=1")}
    assert len({*shown} - others) > 10


def test_a_list_has_vms_without_a_pod_too(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    foreign = {**golden(kind="ConfigMap"), "data": {"some": "thing"}}
    foreign["metadata"]["labels"]["vmi.kubevirt.io/id"] = "foreign"
    records = (record("a"), record("b", stopped=False), record("c"), record("d"), foreign)
    having(kubectl, *records, pod("c"), controller("Job", "d"))
    rows = [line.split()[:2] for line in kubectl_gpuvm("list", env=kubectl.env).stdout.splitlines()]
    assert rows == [["NAME", "STATE"], ["a", "Stopped"], ["b", "NoPod"], ["c", "Running"], ["d", "Starting"]]
    listed = json.loads(kubectl_gpuvm("list", "-o", "json", env=kubectl.env).stdout)
    assert [each["kind"] for each in listed] == ["ConfigMap", "ConfigMap", "Pod", "Job"]


def test_a_vms_record_is_the_one_of_its_pod_else_the_newest() -> None:
    old, new = record(name="old"), record(name="new", created="2026-11-23T12:00:00Z")
    records = [ConfigMap.model_validate(each) for each in (new, old)]
    assert current(records, [])[("vms", "no-devices")].name == "new"


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["stop", "desk"], "desk: is stopped already; `kubectl gpuvm start` starts it\n"),
        (["pause", "desk"], "desk: is stopped; `kubectl gpuvm start` starts it\n"),
        (["console", "desk"], "desk: is stopped; `kubectl gpuvm start` starts it\n"),
    ],
)
def test_what_needs_a_pod_says_that_the_vm_is_stopped(
    kubectl_gpuvm: Command, kubectl: StandIn, words: list[str], wrong: str
) -> None:
    kubectl.answers("get pods -l", [])
    having(kubectl, record("desk"))
    result = kubectl_gpuvm(*words, env=kubectl.env)
    assert (result.stderr, result.returncode, changes(kubectl)) == (f"kubectl-gpuvm: {wrong}", 1, [])


@pytest.mark.parametrize(("stopped", "state"), [(True, "is Stopped"), (False, "has no pod: it was never started, or")])
def test_why_a_vm_without_a_pod_does_not_run(
    kubectl_gpuvm: Command, kubectl: StandIn, state: str, *, stopped: bool
) -> None:
    having(kubectl, record("desk", stopped=stopped))
    assert kubectl_gpuvm("why", "desk", env=kubectl.env).stdout.startswith(f"vms/desk: {state}")


def test_a_stopped_vm_is_edited_and_its_older_record_goes(
    kubectl_gpuvm: Command, kubectl: StandIn, tmp_path: Any
) -> None:
    having(kubectl, record(), record(name="older", created="2026-11-21T12:00:00Z"))
    env = {**kubectl.env, "KUBE_EDITOR": "sed -i s/256Mi/272Mi/", "TMPDIR": str(tmp_path)}
    result = kubectl_gpuvm("edit", "no-devices", env=env)
    assert result.returncode == 0, result.stderr
    apply, delete = changes(kubectl)
    assert apply == ["--namespace=vms", "apply", "-f", "-"]
    names = ["configmap/gpu-launcher-no-devices-1", "configmap/older"]
    assert delete == ["--namespace=vms", "delete", *names, "--wait=false"]


def test_a_record_that_a_pod_still_has_stays(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    other = ended(0, phase="Succeeded", name="no-devices")
    used = next(each for each in other["spec"]["volumes"] if "configMap" in each)["configMap"]["name"]
    having(kubectl, record(name=used), other)
    kubectl_gpuvm("apply", "-f", VM, "--image=new", env=kubectl.env)
    assert changes(kubectl) == [["apply", "-f", "-"]]


@pytest.mark.parametrize("kind", ["deployment", "statefulset"])
def test_a_controller_keeps_older_records_for_a_rollback(
    kubectl_gpuvm: Command, kubectl: StandIn, always: Path, kind: str
) -> None:
    having(kubectl, record("desk", name="older"))
    result = kubectl_gpuvm("apply", "-f", always, f"--image={IMAGE}", f"--as={kind}", env=kubectl.env)
    assert (result.returncode, changes(kubectl)) == (0, [["apply", "-f", "-"]])


@pytest.mark.parametrize(
    ("objects", "goes"),
    [
        ([record("desk")], ["configmap/gpu-launcher-desk-1"]),
        ([record("desk"), record("desk", name="older"), pod("desk")],
         ["pod/desk", "configmap/gpu-launcher-desk-1", "configmap/older"]),
        ([record("desk"), pod("desk-0", vm="desk", owner="StatefulSet/desk"), controller("StatefulSet", "desk")],
         ["statefulset/desk", "configmap/gpu-launcher-desk-1"]),
    ],
    ids=["stopped", "pod", "controller"],
)  # fmt: skip
def test_an_end_takes_the_record_and_leaves_claims(
    kubectl_gpuvm: Command, kubectl: StandIn, objects: list[Object], goes: list[str]
) -> None:
    kubectl.answers("get persistentvolumeclaims -l vmi.kubevirt.io/id=desk --namespace=vms", [STATE])
    kubectl.answers("get resourceclaimtemplates", [TEMPLATE])
    kubectl.answers("get datavolumes", err='error: the server doesn\'t have a resource type "datavolumes"', code=1)
    having(kubectl, *objects)
    result = kubectl_gpuvm("delete", "desk", env=kubectl.env)
    template = "resourceclaimtemplate/gpu-launcher-desk-1"
    assert changes(kubectl) == [["delete", *goes, template, "--wait=false"]]
    kept = "desk: kept are PersistentVolumeClaim persistent-state-for-desk; --with-state deletes them\n"
    assert (result.stdout, result.returncode) == (f"done\n{kept}", 0)
    kubectl_gpuvm("delete", "desk", "--with-state", env=kubectl.env)
    state = "persistentvolumeclaim/persistent-state-for-desk"
    assert changes(kubectl)[-1] == ["delete", *goes, state, template, "--wait=false"]


def test_one_of_several_is_not_deleted_alone(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    having(kubectl, controller("StatefulSet", "desk"), pod("desk-0", vm="desk", owner="StatefulSet/desk"))
    result = kubectl_gpuvm("delete", "desk-0", env=kubectl.env)
    assert result.stderr == (
        "kubectl-gpuvm: desk-0: is one of those that StatefulSet desk makes; `kubectl gpuvm delete desk` deletes all "
        "of them\n"
    )
    assert changes(kubectl) == []
