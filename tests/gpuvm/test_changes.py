"""apply and edit: from a manifest through `gpu-launcher pod` to `kubectl apply`."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import Command
from tests.gpuvm.cluster import Object, golden
from tests.gpuvm.standin import StandIn
from tests.launcher.pod.made import IMAGE, text_of
from tests.processes import BIN, FIXTURES

VM = FIXTURES / "vms" / "no-devices.yaml"
FLAGS = ["--image", IMAGE]


def printed() -> str:
    """What `gpu-launcher pod` prints for it."""
    return text_of(VM, words=[f"--image={IMAGE}"])


def live(text: str, **status: Any) -> Object:
    """The pod of what was applied, as the API server has it."""
    pod = next(each for each in yaml.safe_load_all(text) if each["kind"] == "Pod")
    pod["metadata"].update(namespace="vms", uid="uid")
    pod["spec"].update(nodeName="node-1", dnsPolicy="ClusterFirst")
    return {**pod, "status": {"phase": "Running", **status}}


def would_be(pod: Object, **container: str) -> Object:
    """The pod as the API server says that it would be."""
    first, *others = pod["spec"]["containers"]
    return {**pod, "spec": {**pod["spec"], "containers": [{**first, **container}, *others]}}


@pytest.fixture
def alone(kubectl: StandIn) -> StandIn:
    """A cluster where the VM has had no other record."""
    kubectl.answers("get pods,\\S+ -l vmi.kubevirt.io/id=", [])
    return kubectl


def changes(kubectl: StandIn) -> list[list[str]]:
    """The calls that change something."""
    return [call[1:] for call in kubectl.calls if "get" not in call and "--dry-run=server" not in call]


CANNOT_CHANGE = (
    'The Pod "no-devices" is invalid: spec: Forbidden: pod updates may not change fields other than '
    "`spec.containers[*].image`\n"
)


def test_a_new_vm_is_what_gpu_launcher_prints(kubectl_gpuvm: Command, alone: StandIn) -> None:
    alone.answers("get pod/no-devices")
    alone.answers("^apply", "pod/no-devices created\n")
    result = kubectl_gpuvm("apply", "-f", VM, *FLAGS, env=alone.env)
    assert (result.stdout, result.returncode) == ("pod/no-devices created\n", 0)
    assert alone.calls[-1] == ["kubectl", "apply", "-f", "-"]
    assert alone.given[-1] == printed()
    assert "is Pending until a node offers" in result.stderr  # a note of gpu-launcher's


def test_a_manifest_may_be_on_standard_input(kubectl_gpuvm: Command, alone: StandIn) -> None:
    alone.answers("")
    kubectl_gpuvm("apply", "-f", "-", *FLAGS, env=alone.env, stdin=VM.read_text())
    assert alone.given[-1] == printed()


def test_what_gpu_launcher_refuses_is_its_own_lines(kubectl_gpuvm: Command, kubectl: StandIn, tmp_path: Path) -> None:
    bad = tmp_path / "vm.yaml"
    bad.write_text("kind: VirtualMachine\n")
    result = kubectl_gpuvm("apply", "-f", bad, "--moon", env=kubectl.env)
    assert "No such option: --moon" in result.stderr
    assert kubectl_gpuvm("apply", "-f", bad, env=kubectl.env).stderr.startswith(f"kubectl-gpuvm: {bad}:1: ")
    assert kubectl.calls == []


def test_another_namespace_than_the_manifests_is_refused_before_kubectl_is_asked(
    kubectl_gpuvm: Command, kubectl: StandIn, tmp_path: Path
) -> None:
    file = tmp_path / "vm.yaml"
    file.write_text(VM.read_text().replace("metadata:\n", "metadata:\n  namespace: lab\n", 1))
    result = kubectl_gpuvm("apply", "-f", str(file), "-n", "vms", *FLAGS, env=kubectl.env)
    assert result.stderr == (
        f"kubectl-gpuvm: {file}:6: metadata.namespace: is lab, and --namespace is vms; expected --namespace lab, or "
        "leave it out of the manifest\n"
    )
    assert (result.returncode, kubectl.calls) == (2, [])


def test_the_same_again_changes_nothing(kubectl_gpuvm: Command, alone: StandIn) -> None:
    alone.answers("get pod/no-devices", live(printed()))
    alone.answers("apply --dry-run=server", live(printed()))
    alone.answers("^apply -f -", "pod/no-devices unchanged\n")
    assert kubectl_gpuvm("apply", "-f", VM, *FLAGS, env=alone.env).stdout == "pod/no-devices unchanged\n"
    assert changes(alone) == [["apply", "-f", "-"]]
    assert json.loads(alone.given[1])["kind"] == "Pod"


def test_a_pod_that_has_never_started_has_no_guest_to_shut_down(kubectl_gpuvm: Command, alone: StandIn) -> None:
    alone.answers("get pod/no-devices", live(printed(), phase="Pending"))
    alone.answers("get configmap/", golden(kind="ConfigMap"))
    alone.answers("--dry-run=server", err=CANNOT_CHANGE, code=1)
    alone.answers("^(apply|delete)")
    assert kubectl_gpuvm("apply", "-f", VM, "--image", "gpu-launcher:new", env=alone.env).returncode == 0
    assert changes(alone)[-2][:2] == ["delete", "pod/no-devices"]


@pytest.mark.parametrize("other_image", [True, False])
def test_a_guest_that_runs_is_changed_only_when_that_is_said(
    kubectl_gpuvm: Command, alone: StandIn, *, other_image: bool
) -> None:
    """The API server would take another image, for which the kubelet ends the guest."""
    alone.answers("get pod/no-devices", live(printed()))
    alone.answers("get configmap/", golden(kind="ConfigMap"))
    if other_image:
        alone.answers("--dry-run=server", would_be(live(printed()), image="gpu-launcher:new"))
    else:
        alone.answers("--dry-run=server", err=CANNOT_CHANGE, code=1)
    alone.answers("^(apply|delete)")
    words = ["apply", "-f", VM, "--image", "gpu-launcher:new"]
    result = kubectl_gpuvm(*words, env=alone.env)
    assert result.stderr.endswith(
        "kubectl-gpuvm: no-devices: runs with another manifest or other flags, and its Pod cannot be changed; with "
        "--restart the guest shuts down, and starts with what is new\n"
    )
    assert result.returncode == 1
    assert [call[1] for call in alone.calls] == ["get", "apply"]
    assert kubectl_gpuvm(*words, "--restart", env=alone.env).returncode == 0
    grace = live(printed())["spec"]["terminationGracePeriodSeconds"] + 60
    assert changes(alone)[-2][:2] == ["delete", "pod/no-devices"]
    assert changes(alone)[-2][-2:] == ["--ignore-not-found", f"--timeout={grace}s"]
    assert "image: gpu-launcher:new" in alone.given[-1]


def test_a_guest_that_would_be_suspended_shuts_down_to_be_changed(kubectl_gpuvm: Command, alone: StandIn) -> None:
    pod = live(printed(), containerStatuses=[{"name": "compute", "state": {"running": {}}}])
    pod["metadata"]["annotations"]["gpu-launcher.dev/on-drain"] = "suspend"
    alone.answers("get pod/no-devices", pod)
    alone.answers("get configmap/", golden(kind="ConfigMap"))
    alone.answers("--dry-run=server", err=CANNOT_CHANGE, code=1)
    alone.answers("^(apply|delete)|exec")
    words = ["apply", "-f", VM, "--image", "gpu-launcher:new", "--restart"]
    assert kubectl_gpuvm(*words, env=alone.env).returncode == 0
    assert next((call[0], call[-1]) for call in changes(alone)) == ("exec", "shutdown")


def test_what_the_api_server_refuses_otherwise_is_its_own_words(kubectl_gpuvm: Command, alone: StandIn) -> None:
    alone.answers("get pod/no-devices", live(printed()))
    alone.answers("--dry-run=server", err='Error from server: pods "no-devices" is too moony', code=1)
    result = kubectl_gpuvm("apply", "-f", VM, *FLAGS, "--restart", env=alone.env)
    assert 'kubectl: Error from server: pods "no-devices" is too moony; try ' in result.stderr
    assert [call[1] for call in alone.calls] == ["get", "apply"]


OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "no-devices", "uid": "uid"}
LABELS = {"vmi.kubevirt.io/id": "no-devices"}


@pytest.mark.parametrize(
    ("metadata", "goes"),
    [
        ({"labels": LABELS}, True),
        ({"ownerReferences": [OWNER]}, True),
        ({}, False),
        ({"labels": {"vmi.kubevirt.io/id": "other"}, "ownerReferences": [{**OWNER, "uid": "other"}]}, False),
    ],
)
def test_only_what_is_the_vms_goes_with_its_pod(
    kubectl_gpuvm: Command, alone: StandIn, metadata: Object, *, goes: bool
) -> None:
    """Whoever makes a pod may name anybody's ConfigMap in it."""
    pod = live(printed(), phase="Failed")
    manifest = next(each for each in pod["spec"]["volumes"] if "configMap" in each)
    manifest["configMap"]["name"] = "kube-root-ca.crt"
    alone.answers("get pod/no-devices", pod)
    alone.answers("--dry-run=server", err=CANNOT_CHANGE, code=1)
    alone.answers(
        "get configmap/kube-root-ca.crt", {"kind": "ConfigMap", "metadata": {"name": "kube-root-ca.crt", **metadata}}
    )
    alone.answers("^(apply|delete)")
    assert kubectl_gpuvm("apply", "-f", VM, "--image", "new", env=alone.env).returncode == 0
    assert [call[0] for call in changes(alone)] == ["delete", "apply"]
    assert ("configmap/kube-root-ca.crt" in changes(alone)[-2]) == goes


def test_a_claim_template_is_made_anew_with_its_pod_if_it_is_printed_anew(
    kubectl_gpuvm: Command, alone: StandIn, gpu_launcher: Command
) -> None:
    vm = FIXTURES / "vms" / "one-gpu.yaml"
    text = gpu_launcher("pod", vm, *FLAGS, "--dra").stdout
    alone.answers("get pod/one-gpu", live(text))
    alone.answers("--dry-run=server", err=CANNOT_CHANGE, code=1)
    for each in yaml.safe_load_all(text):
        alone.answers(f"get {each['kind'].lower()}/", each)
    alone.answers("^(apply|delete)")
    words = ["apply", "-f", vm, "--restart", "--image", "gpu-launcher:new"]
    assert kubectl_gpuvm(*words, "--dra", env=alone.env).returncode == 0
    assert any(word.startswith("resourceclaimtemplate/gpu-launcher-one-gpu") for word in changes(alone)[-2])
    assert kubectl_gpuvm(*words, env=alone.env).returncode == 0
    assert not any(word.startswith("resourceclaimtemplate/") for word in changes(alone)[-2])


def editor(path: Path, program: str) -> dict[str, str]:
    """An editor that is that program of Python's, with the file's text as `text`."""
    path.write_text(f"import pathlib, sys; f = pathlib.Path(sys.argv[1]); text = f.read_text(); {program}")
    return {"KUBE_EDITOR": f"{sys.executable} {path}"}


@pytest.fixture
def edited(kubectl: StandIn) -> StandIn:
    text = printed()
    record = {"vm.yaml": VM.read_text(), "pod-flags": f"--image={IMAGE}\n--level=baseline\n"}
    data = {"kind": "ConfigMap", "metadata": {"name": "x", "namespace": "vms"}, "data": record}
    kubectl.answers("get pods,", [live(text)])
    kubectl.answers("get configmap/gpu-launcher-no-devices", data)
    kubectl.answers("get pod/no-devices", live(text))
    kubectl.answers("--dry-run=server", err=CANNOT_CHANGE, code=1)
    kubectl.answers("apply|delete")
    return kubectl


def test_an_edit_is_applied_with_the_image_of_the_pod(kubectl_gpuvm: Command, edited: StandIn, tmp_path: Path) -> None:
    env = editor(tmp_path / "ed", "f.write_text(text + '# more\\n')")
    result = kubectl_gpuvm("edit", "no-devices", "--restart", env={**edited.env, **env, "TMPDIR": str(tmp_path)})
    assert result.returncode == 0, result.stderr
    assert f"no-devices: has the flags --image={IMAGE} --level=baseline\n" in result.stderr
    applied = list(yaml.safe_load_all(edited.given[-1]))
    assert applied[0]["data"]["vm.yaml"].endswith("# more\n")
    assert applied[-1]["spec"]["containers"][0]["image"] == IMAGE
    assert edited.calls[-1] == ["kubectl", "--namespace=vms", "apply", "-f", "-"]
    assert not list(tmp_path.glob("kubectl-gpuvm-*"))


def test_an_edit_that_changes_nothing_applies_nothing(kubectl_gpuvm: Command, edited: StandIn, tmp_path: Path) -> None:
    env = editor(tmp_path / "ed", "pass")
    assert kubectl_gpuvm("edit", "no-devices", env={**edited.env, **env}).stdout == "no-devices: not changed\n"
    assert "apply" not in [call[1] for call in edited.calls]


@pytest.mark.parametrize(
    ("program", "wrong"),
    [
        ("f.write_text(text + 'spec: 5\\n')", "the key 'spec' is there twice"),
        ("f.write_text(text.replace('memory', 'memori'))", "gives the guest no memory"),
    ],
)
def test_an_edit_that_is_refused_is_kept(
    kubectl_gpuvm: Command, edited: StandIn, tmp_path: Path, program: str, wrong: str
) -> None:
    env = editor(tmp_path / "ed", program)
    result = kubectl_gpuvm("edit", "no-devices", env={**edited.env, **env, "TMPDIR": str(tmp_path)})
    (kept,) = tmp_path.glob("kubectl-gpuvm-*/vm.yaml")
    assert wrong in result.stderr
    assert result.stderr.endswith(
        f"kubectl-gpuvm: {kept}: has your edit; correct it, and `kubectl gpuvm apply -f` it\n"
    )
    assert result.returncode == 2


@pytest.mark.parametrize(("name", "wrong"), [("false", "has ended with 1"), ("/nowhere/vi", "cannot be started")])
def test_an_editor_that_fails_changes_and_leaves_nothing(
    kubectl_gpuvm: Command, edited: StandIn, tmp_path: Path, name: str, wrong: str
) -> None:
    result = kubectl_gpuvm("edit", "no-devices", env={**edited.env, "EDITOR": name, "TMPDIR": str(tmp_path)})
    assert not list(tmp_path.glob("kubectl-gpuvm-*"))
    assert (result.stderr.count("\n"), result.returncode) == (1, 1)
    assert wrong in result.stderr


def test_without_gpu_launcher_it_says_what_to_install(tmp_path: Path) -> None:
    """In a process of its own, which has no gpu-launcher beside its Python."""
    import subprocess

    program = (
        "import sys; sys.executable = '/nowhere/python'; from gpuvm.gpu_launcher import gpu_launcher; gpu_launcher()"
    )
    done = subprocess.run(
        [BIN / "python", "-c", program], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.stderr.endswith("gpu-launcher: is not on PATH, and this needs it; pip install gpu-launcher\n")
