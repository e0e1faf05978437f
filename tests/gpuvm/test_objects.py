"""What a tenant of the cluster wrote, before anybody acts on it or prints it."""

import re
from typing import Any

import pytest

from gpuvm.objects import Controller, Pod, checked, objects_in
from program.errors import Nonsense
from tests.conftest import Command
from tests.gpuvm.cluster import controller, pending, pod
from tests.gpuvm.standin import StandIn
from tests.processes import ROOT

FLAGS = ["--server=https://evil", "-s=https://evil", "--cache-dir=/anywhere", "--", "../secret", "a b", "UPPER", ""]


def naming(config_map: str) -> dict[str, Any]:
    """A pod that waits for a node and names that ConfigMap, which the API server takes."""
    named = pending("0/1 nodes are available: 1 Insufficient memory.")
    next(each for each in named["spec"]["volumes"] if "configMap" in each)["configMap"]["name"] = config_map
    return named


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("verb", ["why", "edit"])
def test_a_name_that_is_none_is_no_word_of_kubectls(
    kubectl_gpuvm: Command, kubectl: StandIn, verb: str, name: str
) -> None:
    kubectl.answers("get pods", [naming(name)])
    kubectl.answers("get events", [])
    result = kubectl_gpuvm(verb, "vm", env=kubectl.env)
    assert [call[1:3] for call in kubectl.calls if "pods" not in call[2]] == (
        [["get", "events"]] if verb == "why" else []
    )
    wrong = f"configmap '{name}': is named by the pod, and is no name in Kubernetes" if name else "its manifest is not"
    assert wrong in (result.stdout if verb == "why" else result.stderr)


def test_texts_have_no_control_characters_and_lines_stay() -> None:
    hostile = pod(phase="Failed", status={"message": "\x1b[2J\nline\u202e", "reason": "\x07"})
    value = Pod.model_validate(hostile)
    assert (value.message, value.reason) == ("\\x1b[2J\nline\\u202e", "\\x07")


@pytest.mark.parametrize(
    ("metadata", "wrong"),
    [
        ({"name": "-a"}, "0.metadata.name: String should match pattern"),
        ({"name": "a\n"}, "0.metadata.name: String should match pattern"),
        ({"name": "a", "namespace": "--all"}, "0.metadata.namespace: String should match pattern"),
        ({"name": "a", "uid": "--x"}, "0.metadata.uid: String should match pattern"),
        ({"name": "a", "labels": []}, "0.metadata.labels: Input should be a valid dictionary"),
        (None, "0.metadata: Field required"),
    ],
)
def test_an_object_that_no_api_server_has_is_refused(metadata: object, wrong: str) -> None:
    with pytest.raises(Nonsense, match=re.escape(f"its answer is not as the API server's: {wrong}")):
        checked([{**pod(), "metadata": metadata}], Pod)


def test_null_is_no_field() -> None:
    assert checked([{**pod(), "status": None}], Pod)[0].phase == "Unknown"
    assert objects_in(b" ") == []


@pytest.mark.parametrize("replicas", ["0", "-1", '"7"', "{}", "1.5", "null"])
def test_a_number_of_replicas_that_is_none_counts_as_one(replicas: str) -> None:
    made = controller("Deployment")
    applied = f'{{"spec": {{"replicas": {replicas}}}}}'
    made["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": applied}
    assert Controller.model_validate(made).applied_replicas == 1


def test_three_modules_know_objects_as_the_api_server_has_them() -> None:
    """The others have values; target_pod writes one. An import contract holds who may start programs."""
    modules = {path.name: path.read_text() for path in (ROOT / "gpuvm").rglob("*.py")}
    assert {name for name, text in modules.items() if re.search(r"\bAny\b", text)} == {
        "objects.py",
        "kubectl.py",
        "target_pod.py",
    }
