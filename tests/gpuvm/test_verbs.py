"""kubectl-gpuvm as people call it, over a stand-in for kubectl: what it calls, what it prints, and its exit code."""

import json
from typing import Any

import pytest
from jsonschema_rs import Draft7Validator

from gpuvm import objects
from gpuvm.objects import Pod
from launcher.manifest.parser import read_vm
from launcher.pod.metadata import labels
from launcher.pod.objects import MEMORY
from launcher.vm import paths
from tests.conftest import Command
from tests.gpuvm.cluster import CARD, controller, ended, event, golden, pending, pod, waiting
from tests.gpuvm.standin import StandIn
from tests.openapi import ANSWERED, ANSWERS
from tests.processes import FIXTURES

SCHEMA = json.loads(ANSWERS.read_text())
GET_PODS = ["kubectl", "get", "pods", "-l", "vmi.kubevirt.io/id", "--ignore-not-found", "-o", "json"]
GET_ALL = [*GET_PODS[:2], "pods,deployments,statefulsets,jobs,configmaps", *GET_PODS[3:]]


NO_SUCH = "there is no such VM in this namespace; `kubectl gpuvm list -A` lists all; name its namespace with -n"


def in_pod(*words: str, tty: tuple[str, ...] = (), name: str = "vm") -> list[str]:
    return [
        "kubectl",
        "--namespace=vms",
        "exec",
        *tty,
        f"pod/{name}",
        "-c",
        "compute",
        "--",
        "gpu-launcher",
        "ctl",
        *words,
    ]


@pytest.mark.parametrize(
    "answer",
    [
        pod(), pod(owner="ReplicaSet/vm-1", metadata={"deletionTimestamp": "2026-11-22T12:10:00Z"}),
        pending("0/1 nodes"), waiting("ErrImagePull", "no"), ended(12, "the last line"), event("FailedMount", "no"),
        controller("Deployment"), controller("StatefulSet", applied=3), controller("Job"),
    ],
    ids=lambda answer: str(answer["kind"]),
)  # fmt: skip
def test_the_objects_of_these_tests_are_of_kubernetes_schema(answer: dict[str, Any]) -> None:
    schema = {**SCHEMA, "$ref": f"#/definitions/{ANSWERED[answer['kind']]}"}
    assert [error.message for error in Draft7Validator(schema).iter_errors(answer)] == []


def test_the_pods_of_gpu_launcher_are_known_by_what_it_writes() -> None:
    made = golden()
    spec = Pod.model_validate(made).spec
    assert (MEMORY, spec.launcher.name) == (objects.MARK, objects.CONTAINER)
    assert objects.ID_LABEL in labels(read_vm(FIXTURES / "vms" / "one-gpu.yaml").instance.metadata)
    assert spec.manifest_name == golden(kind="ConfigMap")["metadata"]["name"]
    assert [*golden(kind="ConfigMap")["data"]] == [objects.MANIFEST_FILE] == [paths.MANIFEST.rpartition("/")[2]]


VERBS = {
    "pause": (["pause", "vm"], ("pause",), "vm: paused\n"),
    "pause as kubectl virt": (["pause", "vm", "vm"], ("pause",), "vm: paused\n"),
    "unpause": (["unpause", "vm/vm/vms"], ("resume",), "vm: unpaused\n"),
    "reset": (["reset", "vmi/vm"], ("reset",), "vm: reset\n"),
    "state": (["state", "vm"], ("state",), ""),
    "state for programs": (["state", "vm", "-o", "json"], ("state", "--json"), ""),
    "events": (["events", "vm"], ("events",), ""),
    "events for programs": (["events", "-o", "json", "vm"], ("events", "--json"), ""),
    "guest info": (["guest", "info", "vm"], ("guest", "info"), ""),
    "guest users": (["guest", "users", "vm"], ("guest", "users"), ""),
    "guest gpus": (["guest", "gpus", "vm"], ("guest", "gpus"), ""),
    "guest filesystems": (["guest", "filesystems", "vm", "-o", "json"], ("guest", "filesystems", "--json"), ""),
}


@pytest.mark.parametrize("name", VERBS)
def test_what_ctl_does_is_one_call_in_the_pod(kubectl_gpuvm: Command, kubectl: StandIn, name: str) -> None:
    words, expected, said = VERBS[name]
    kubectl.answers(r"^(--namespace=vms )?get pods", [pod()])
    kubectl.answers(r"exec pod/vm -c compute", "what ctl prints\n" if not said else "")
    result = kubectl_gpuvm(*words, env=kubectl.env)
    assert (result.stdout, result.stderr, result.returncode) == (said or "what ctl prints\n", "", 0)
    assert kubectl.calls[-1] == in_pod(*expected)


def test_what_a_pod_says_cannot_steer_the_terminal(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    kubectl.answers("get pods", [pod()])
    kubectl.answers("exec", b"vms/vm: \x1b[2Jrunning\nmore\xff\n")
    assert kubectl_gpuvm("state", "vm", env=kubectl.env).stdout == "vms/vm: \\x1b[2Jrunning\nmore\\xff\n"


def test_what_happens_cannot_steer_the_terminal_either(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    """An event has the words of a pod that only says that it is a VM, for as long as it likes."""
    kubectl.answers("get pods", [pod()])
    error = "gpu-launcher: \x1b]0;root\x07no\n"
    kubectl.answers("exec", b"one\n\x1b[2J\x9btwo\xff" + b"x" * 70_000 + b"\nthree", err=error, code=1)
    result = kubectl_gpuvm("events", "vm", env=kubectl.env)
    assert [line[:16] for line in result.stdout.splitlines()] == ["one", "\\x1b[2J\\x9btwo\\x", "x" * 16, "three"]
    assert (result.stderr, result.returncode) == ("kubectl-gpuvm: \\x1b]0;root\\x07no\n", 1)


def test_the_console_has_input_and_a_terminal_only_if_there_is_one(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    kubectl.answers("^get pods", [pod()])
    kubectl.answers("exec -i pod/vm", "login: ")
    result = kubectl_gpuvm("console", "vm", env=kubectl.env, stdin="root\n")
    assert (result.stdout, result.returncode) == ("login: ", 0)
    assert kubectl.calls == [GET_PODS, in_pod("console", tty=("-i",))]
    assert kubectl.given[-1] == "root\n"


@pytest.mark.parametrize(
    "words", ["console vm", "pause vm", "vnc vm --proxy-only", "port-forward vm 22", "ssh vm", "restart vm"]
)
def test_a_vm_without_a_launcher_is_asked_nothing(kubectl_gpuvm: Command, kubectl: StandIn, words: str) -> None:
    kubectl.answers("get pods", [waiting("ErrImagePull", "no")])
    result = kubectl_gpuvm(*words.split(), env=kubectl.env)
    state = "vm: is ErrImagePull: its launcher does not run"
    assert result.stderr == f"kubectl-gpuvm: {state}; `kubectl gpuvm why vm` says what it waits for\n"
    assert result.returncode == 1
    assert [call[1] for call in kubectl.calls] == ["get"]


def test_a_vm_that_has_ended_says_so(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    kubectl.answers("get pods", [ended(0, phase="Succeeded")])
    assert kubectl_gpuvm("console", "vm", env=kubectl.env).stderr == (
        "kubectl-gpuvm: vm: is not running: its pod has succeeded; `kubectl gpuvm start vm` starts it\n"
    )


def test_a_paused_guest_is_listed_as_such(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    kubectl.answers("get", [pod(ready=False, ready_since="2026-11-22T12:00:01Z")])
    assert kubectl_gpuvm("list", env=kubectl.env).stdout.splitlines()[1].split()[:2] == ["vm", "Paused"]


def test_the_context_and_the_namespace_are_kubectls_own_flags(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    kubectl.answers("get pods", [pod()])
    kubectl.answers("exec", "")
    kubectl_gpuvm("pause", "vm", "-n", "vms", "--context", "lab", "--kubeconfig=k", env=kubectl.env)
    flags = ["--namespace=vms", "--context=lab", "--kubeconfig=k"]
    assert kubectl.calls == [["kubectl", *flags, *GET_PODS[1:]], ["kubectl", *flags, *in_pod("pause")[2:]]]


def test_logs_are_kubectls(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    kubectl.answers("get pods", [pod()])
    kubectl.answers("logs", "a line\n")
    result = kubectl_gpuvm("logs", "vm", "-f", "--tail", "5", "-p", env=kubectl.env)
    assert result.stdout == "a line\n"
    logs = ["kubectl", "--namespace=vms", "logs", "pod/vm", "-c", "compute", "--follow", "--previous", "--tail=5"]
    assert kubectl.calls[-1] == logs


def test_a_replica_is_found_by_its_vm_if_there_is_one(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    old = pod("vm-1-a", vm="vm", owner="ReplicaSet/vm-1", metadata={"deletionTimestamp": "2026-11-22T12:10:00Z"})
    kubectl.answers("get pods", [old, pod("vm-2-b", vm="vm", owner="ReplicaSet/vm-2"), pod("other")])
    kubectl.answers("exec", "")
    assert kubectl_gpuvm("pause", "vm", env=kubectl.env).stdout == "vm-2-b: paused\n"
    assert kubectl_gpuvm("pause", "vm-1-a", env=kubectl.env).stdout == "vm-1-a: paused\n"


def test_of_several_replicas_one_has_to_be_named(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    kubectl.answers("get pods", [pod(f"vm-{n}", vm="vm", owner="StatefulSet/vm") for n in (1, 0)])
    result = kubectl_gpuvm("pause", "vm", env=kubectl.env)
    assert (result.stderr, result.returncode) == ("kubectl-gpuvm: vm: has 2 pods; name one of them: vm-0, vm-1\n", 2)


def test_a_pod_of_kubevirts_own_is_no_vm_here(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    theirs = pod()
    del theirs["metadata"]["annotations"][MEMORY]
    kubectl.answers("get", [theirs])
    for words in (["pause", "vm"], ["why", "vm"], ["stop", "vm"], ["start", "vm"], ["edit", "vm"]):
        result = kubectl_gpuvm(*words, env=kubectl.env)
        assert (result.stderr, result.returncode) == (
            f"kubectl-gpuvm: vm: {NO_SUCH}\n",
            1,
        )
    assert kubectl_gpuvm("list", env=kubectl.env).stdout == "No VMs found.\n"


def test_a_list_has_node_cards_address_and_state(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    health = {"allocatedResourcesStatus": [
        {"name": CARD, "resources": [{"resourceID": "0000:01:00.0", "health": "Healthy"}]},
        {"name": "devices.gpu-launcher.dev/kvm", "resources": [{"resourceID": "kvm-1"}]},
    ]}  # fmt: skip
    running = pod("a")
    running["status"]["containerStatuses"][0].update(health)
    dra = pod("b", of="dra", ready=False)
    kubectl.answers("get", [
        dra, running, pending("0/1 nodes", name="c"), waiting("ErrImagePull", name="d"),
        ended(0, name="e", phase="Succeeded"), controller("StatefulSet", "f", replicas=0),
        controller("StatefulSet", "h"),
        pod("g", metadata={"deletionTimestamp": "2026-11-22T12:10:00Z"}),
    ])  # fmt: skip
    result = kubectl_gpuvm("list", env=kubectl.env)
    table = [line.split(None, 5) for line in result.stdout.splitlines()]
    cards = Pod.model_validate(golden()).spec.launcher.limits
    names = ", ".join(f"{cards[name]} {name}" for name in sorted(cards) if "devices." not in name and "/" in name)
    assert table[0] == ["NAME", "STATE", "AGE", "NODE", "ADDRESS", "CARDS"]
    assert [(row[0], row[1], row[3], row[4], row[5]) for row in table[1:]] == [
        ("a", "Running", "node-1", "10.244.1.5", f"{names} (0000:01:00.0)"),
        ("b", "Starting", "node-1", "10.244.1.5", "claim gpus, claim vgpus"),
        ("c", "ErrorUnschedulable", "-", "-", names),
        ("d", "ErrImagePull", "node-1", "10.244.1.5", names),
        ("e", "Succeeded", "node-1", "10.244.1.5", names),
        ("f", "Stopped", "-", "-", names),
        ("g", "Terminating", "node-1", "10.244.1.5", names),
        ("h", "Starting", "-", "-", names),
    ]
    assert kubectl.calls == [GET_ALL]


def test_a_list_counts_as_people_do(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    places = [("vms-2", "train-2"), ("vms-2", "train-10"), ("vms-10", "train-1")]
    kubectl.answers("get", [pod(name, namespace=namespace) for namespace, name in reversed(places)])
    rows = [line.split()[:2] for line in kubectl_gpuvm("list", "-A", env=kubectl.env).stdout.splitlines()]
    assert rows == [["NAMESPACE", "NAME"], *map(list, places)]
    vms = json.loads(kubectl_gpuvm("list", "-A", "-o", "json", env=kubectl.env).stdout)
    assert [(vm["namespace"], vm["name"]) for vm in vms] == places


def test_a_list_for_programs_has_the_same(kubectl_gpuvm: Command, kubectl: StandIn) -> None:
    kubectl.answers("--all-namespaces", [pod("vm-0", vm="vm", owner="StatefulSet/vm")])
    (found,) = json.loads(kubectl_gpuvm("list", "-A", "-o", "json", env=kubectl.env).stdout)
    assert found == {
        "kind": "Pod", "namespace": "vms", "name": "vm-0", "vm": "vm", "state": "Running", "node": "node-1",
        "addresses": ["10.244.1.5"], "cards": found["cards"], "devices": [], "created": "2026-11-22T12:00:00Z",
    }  # fmt: skip
    assert kubectl_gpuvm("list", "-A", env=kubectl.env).stdout.startswith("NAMESPACE  NAME")


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["pause"], "Missing argument 'VM'"),
        (["pause", "a", "b"], "a b: is not one VM; expected NAME, vm NAME or vm/NAME[/NAMESPACE]"),
        (["pause", "card/a"], "card/a: names no VM; expected NAME"),
        (["pause", "vm/a/b/c"], "vm/a/b/c: names no VM; expected"),
        (["pause", "vm/a/"], "vm/a/: '' is no name in Kubernetes; expected"),
        (["pause", "A"], "A: 'A' is no name in Kubernetes; expected"),
        (["pause", "@vm/a"], "@vm/a: names no VM; expected"),
        (["paws", "a"], "No such command 'paws'"),
        (["state", "a", "-o", "yaml"], "Invalid value for '--output' / '-o'"),
        (["guest", "pets", "a"], "'pets' is not one of 'info', 'users', 'filesystems'"),
        (["port-forward", "a", "udp/53"], "udp/53: kubectl forwards TCP alone; expected [tcp/]PORT[:GUEST]"),
        (["port-forward", "a", "0"], "0: is no port; expected"),
        (["port-forward", "a", "1:2:3"], "1:2:3: is no port; expected"),
        (["scp", "a", "b"], "scp a b: expected one of both in a guest; write it as [USER@]VM:PATH"),
        (["stop", "a", "--grace-period", "5"], "--grace-period=5: only 0 is taken, with --force; leave it out"),
        (["screenshot", "a"], "Missing option '--file' / '-f'"),
    ],
)  # fmt: skip
def test_a_wrong_word_is_one_line_and_2(kubectl_gpuvm: Command, kubectl: StandIn, words: list[str], wrong: str) -> None:
    result = kubectl_gpuvm(*words, env=kubectl.env)
    assert (result.stderr.count("\n"), result.returncode, kubectl.calls) == (1, 2, [])
    assert result.stderr.startswith("kubectl-gpuvm: ")
    assert wrong in result.stderr


def test_a_screenshot_is_a_file_or_standard_output(kubectl_gpuvm: Command, kubectl: StandIn, tmp_path: Any) -> None:
    kubectl.answers("get pods", [pod()])
    kubectl.answers("screenshot", b"\x89PNG\r\n\x00\xff")
    file = tmp_path / "screen.png"
    assert kubectl_gpuvm("screenshot", "vm", "-f", file, env=kubectl.env).returncode == 0
    assert file.read_bytes() == b"\x89PNG\r\n\x00\xff"
    assert kubectl.calls[-1] == in_pod("screenshot", "-")
    nowhere = kubectl_gpuvm("screenshot", "vm", "-f", "/nowhere/a.png", env=kubectl.env)
    assert "/nowhere/a.png: cannot be written: No such file or directory" in nowhere.stderr


def test_a_screenshot_of_an_older_qemu_is_named_for_what_it_is(
    kubectl_gpuvm: Command, kubectl: StandIn, tmp_path: Any
) -> None:
    kubectl.answers("get pods", [pod()])
    kubectl.answers("screenshot", b"P6\n")
    result = kubectl_gpuvm("screenshot", "vm", "--file", tmp_path / "a.png", env=kubectl.env)
    assert result.stderr.endswith("a.png: QEMU there makes no PNG, but PPM; name it FILE.ppm\n")
    assert kubectl_gpuvm("screenshot", "vm", "-f", tmp_path / "a.ppm", env=kubectl.env).returncode == 0


def test_help_names_every_verb_and_needs_no_kubectl(kubectl_gpuvm: Command) -> None:
    from gpuvm.cli import VERBS

    result = kubectl_gpuvm("--help", env={"PATH": "/nowhere"})
    assert result.returncode == 0
    for verb in VERBS:
        assert f"\n  {verb} " in result.stdout
        told = kubectl_gpuvm(verb, "-h", env={"PATH": "/nowhere"})
        assert (told.returncode, told.stderr) == (0, ""), verb
