"""Two tenants of one cluster, with a real API server, scheduler and controllers: what one may not have is refused in
one line that names the limit, and neither gets the other's card. The nodes are objects alone."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from launcher.choosing.claim import ANY_GPU, _of_resource
from pci.slices import of_resource
from plugin.cards.inventory import Inventory
from tests.clusters import machine, node_of, slices_of
from tests.lab import build
from tests.lab.control_plane import Cluster
from tests.lab.pods import printed
from tests.lab.test_hostile_tenant import WORDS
from tests.lab.test_why import vm
from tests.lab.waiting import CommandFailed, Patience
from tests.processes import ROOT

pytestmark = pytest.mark.skipif(
    build.kubernetes_minor() < 36, reason="a team's claims tolerate by themselves from 1.36"
)

Object = dict[str, Any]
RTX_3090 = "nvidia.com/GA102_GEFORCE_RTX_3090"
OWN = {"red": "red.example.com/card", "blue": "blue.example.com/card"}
DEVICES = "gpu-launcher.dev.deviceclass.resource.k8s.io/devices"
#: What each namespace may have; red's quota is one card by either protocol.
LINES = {
    "red": f"# the team's\n{OWN['red']}\n{RTX_3090}\nnvidia.com/gpu\nred-class\n",
    "blue": f"{OWN['blue']}\n  nvidia.com/GA102*\n",
    "green": f"{RTX_3090}\n",
    "_others": "",
}
MAY = {name: ", ".join(line.strip() for line in text.splitlines() if "#" not in line) for name, text in LINES.items()}
TEAMS = ("red", "blue")
POLICIES = {"gpu-namespaces": f"{ROOT}/deploy/tenants", "gpu-teams": f"{ROOT}/deploy/tenants/tolerations"}


def pod(resource: str, name: str = "asks") -> Object:
    container = {"name": "c", "image": "none", "resources": {"limits": {resource: "1"}}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}}


def init_pod(resource: str) -> Object:
    made = pod("cpu")
    made["spec"]["initContainers"] = [{**pod(resource)["spec"]["containers"][0], "name": "i"}]
    return made


def claim(*expressions: str, of: str = "gpu-launcher.dev", **more: Any) -> Object:
    selectors = [{"cel": {"expression": each}} for each in expressions]
    request = {"name": "gpu", "exactly": {"deviceClassName": of, "selectors": selectors, **more}}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "asks"},
            "spec": {"devices": {"requests": [request]}}}  # fmt: skip


def template(**claimed: Any) -> Object:
    return {**claimed, "kind": "ResourceClaimTemplate", "spec": {"spec": claimed["spec"]}}


def in_turn(*claims: Object) -> Object:
    """A claim whose request may be any of these claims'."""
    requests = [each["spec"]["devices"]["requests"][0]["exactly"] for each in claims]
    alternatives = [{"name": f"a{number}", **request} for number, request in enumerate(requests)]
    return {**claim(), "spec": {"devices": {"requests": [{"name": "gpu", "firstAvailable": alternatives}]}}}


def tolerating(**toleration: str) -> Object:
    return claim(of_resource(RTX_3090), tolerations=[toleration])


def not_have(namespace: str, what: str) -> str:
    return f"namespace {namespace} may not have {what}; it may have {MAY[namespace]} (ConfigMap gpu-namespaces)"


def not_tolerate(namespace: str, what: str) -> str:
    team = (
        f"its label is gpu-launcher.dev/team={namespace}"
        if namespace in TEAMS
        else "it has no label gpu-launcher.dev/team"
    )
    return f"namespace {namespace} may not tolerate {what}; {team}"


ANY = _of_resource("nvidia.com/gpu").expression
CLASS = "DeviceClass gpu-launcher.dev"
ALLOWED: dict[str, tuple[str, Object]] = {
    "its own resource": ("red", pod(OWN["red"])),
    "names that begin so": ("blue", pod(RTX_3090)),
    "devices that all pods share": ("default", pod("devices.gpu-launcher.dev/kvm")),
    "no device": ("default", pod("cpu")),
    "its class by an extended resource": ("red", pod("deviceclass.resource.kubernetes.io/red-class")),
    "its class": ("red", claim(of="red-class")),
    "its resource by a claim": ("red", claim(of_resource(RTX_3090))),
    "and another selector": (
        "red",
        claim("device.attributes['gpu-launcher.dev'].type == 'card'", of_resource(RTX_3090)),
    ),
    "its resource by a template": ("red", template(**claim(of_resource(RTX_3090)))),
    "any GPU of a vendor": ("red", claim(ANY)),
    "alternatives": ("red", in_turn(claim(of_resource(RTX_3090)), claim(of="red-class"))),
    "its team's taint": ("red", tolerating(key="gpu-launcher.dev/team", value="red")),
    "a taint of an admin's": ("red", tolerating(key="example.com/repair", operator="Exists")),
}
REFUSED: dict[str, tuple[str, Object, str]] = {
    "the other's resource": ("blue", pod(OWN["red"]), not_have("blue", OWN["red"])),
    "the same of an init container": ("blue", init_pod(OWN["red"]), not_have("blue", OWN["red"])),
    "a resource in a namespace without a line": (
        "default", pod(RTX_3090),
        f"namespace default may not have {RTX_3090}; it may have no devices (ConfigMap gpu-namespaces)",
    ),
    "the other's class by an extended resource": (
        "blue", pod("deviceclass.resource.kubernetes.io/red-class"), not_have("blue", "DeviceClass red-class"),
    ),
    "the other's class": ("blue", claim(of="red-class"), not_have("blue", "DeviceClass red-class")),
    "any device": ("red", claim(), not_have("red", CLASS)),
    "any device by a template": ("red", template(**claim()), not_have("red", CLASS)),
    "another resource": ("red", claim(of_resource("nvidia.com/L40S")), not_have("red", "nvidia.com/L40S")),
    "any GPU": ("blue", claim(ANY), not_have("blue", "nvidia.com/gpu")),
    "more than the resource": ("red", claim(of_resource(RTX_3090) + " || true"), not_have("red", CLASS)),
    "more than a vendor": ("red", claim(f"true || ({ANY})"), not_have("red", CLASS)),
    "the resource of another class": (
        "blue", claim(of_resource(RTX_3090), of="red-class"), not_have("blue", "DeviceClass red-class"),
    ),
    "one of several alternatives": (
        "blue", in_turn(claim(of_resource(RTX_3090)), claim(of="red-class")), not_have("blue", "DeviceClass red-class"),
    ),
    "the other team's taint": (
        "blue", tolerating(key="gpu-launcher.dev/team", value="red"),
        not_tolerate("blue", "the taint gpu-launcher.dev/team=red"),
    ),
    "any team's taint": (
        "red", tolerating(key="gpu-launcher.dev/team", operator="Exists"),
        not_tolerate("red", "the taint gpu-launcher.dev/team"),
    ),
    "a team's taint without a team": (
        "green", tolerating(key="gpu-launcher.dev/team", value=""),
        not_tolerate("green", "the taint gpu-launcher.dev/team"),
    ),
    "every taint": ("red", tolerating(operator="Exists"), not_tolerate("red", "every taint")),
    "a taint of an unhealthy card": (
        "red", tolerating(key="gpu-launcher.dev/unhealthy", operator="Exists"),
        not_tolerate("red", "the taint gpu-launcher.dev/unhealthy"),
    ),
    "a taint in an alternative": (
        "blue", in_turn(claim(of_resource(RTX_3090)), tolerating(operator="Exists")),
        not_tolerate("blue", "every taint"),
    ),
}  # fmt: skip


def config_map(lines: Mapping[str, str]) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "data": dict(lines),
            "metadata": {"name": "gpu-namespaces", "namespace": "kube-system"}}  # fmt: skip


def node(cluster: Cluster, name: str, resources: Mapping[str, str], slices: Sequence[Object] = ()) -> None:
    """A node that is an object alone, with what a device plugin and the DRA driver offer."""
    its = node_of(name, resources)
    cluster.apply({key: value for key, value in its.items() if key != "status"})
    status = json.dumps({"status": its["status"]})
    cluster.kubectl("patch", "node", name, "--subresource=status", "--type=merge", "-p", status)
    for each in slices:
        # A node of another uid: the slice would be deleted.
        cluster.apply({**each, "metadata": {"name": each["metadata"]["name"]}})


@pytest.fixture(scope="module")
def tenants(cluster: Cluster) -> Cluster:
    """A node whose first card is red's by DRA, and the second everybody's; another with a card of each by plugin."""
    for directory in (*POLICIES.values(), f"{ROOT}/deploy/roles"):
        cluster.kubectl("apply", "-k", directory)
    cluster.kubectl("apply", "-f", f"{ROOT}/deploy/dra/deviceclasses.yaml")
    for name in ("red", "blue", "green"):
        cluster.kubectl("create", "namespace", name)
    for name in TEAMS:
        cluster.kubectl("label", "namespace", name, f"gpu-launcher.dev/team={name}")
    cluster.apply(config_map(LINES))
    snapshot = machine("two-rtx-3090")
    first, second = snapshot.inventory.devices
    shared = replace(snapshot, inventory=Inventory((replace(first, team="red"), second)))
    node(cluster, "dra", {}, slices_of(shared, "dra"))
    node(cluster, "plugin", dict.fromkeys(OWN.values(), "1"))

    def holds() -> bool:
        refused = [trial(cluster, "blue", each) for each in (pod(OWN["red"]), tolerating(operator="Exists"))]
        return all(refused) and "red" in str(made_of(cluster, "red", claim(of_resource(RTX_3090))))

    Patience().until("the policies are in force", holds, 60)
    return cluster


def trial(cluster: Cluster, namespace: str, each: Object) -> str:
    """Return why the API server would not make an object; "" if it would."""
    try:
        cluster.tried(path_of(namespace, each), each)
    except CommandFailed as error:
        return str(json.loads(str(error).partition(": ")[2])["message"])
    return ""


def path_of(namespace: str, each: Object) -> str:
    group = "api" if each["apiVersion"] == "v1" else "apis"
    return f"{group}/{each['apiVersion']}/namespaces/{namespace}/{each['kind'].lower()}s"


def made_of(cluster: Cluster, namespace: str, each: Object) -> list[Object]:
    """Return the tolerations that the claim has then."""
    (request,) = cluster.tried(path_of(namespace, each), each)["spec"]["devices"]["requests"]
    parts = request.get("firstAvailable") or [request["exactly"]]
    return [toleration for part in parts for toleration in part.get("tolerations", [{}])]


def why(cluster: Cluster, namespace: str, name: str) -> str:
    """Return the answer of `kubectl gpuvm why`."""
    path = f"/run/lab/kubernetes:{ROOT / '.venv/bin'}:{os.environ['PATH']}"
    environ = [f"PATH={path}", f"KUBECONFIG={cluster.argv()[2]}", "HOME=/run/lab", "TMPDIR=/run/lab"]
    done = cluster.box.run("env", *environ, "kubectl-gpuvm", "why", "-n", namespace, name, seconds=90)
    assert done.returncode == 0, done.stderr
    return str(done.stdout.splitlines()[0])


def apply(cluster: Cluster, namespace: str, name: str, resource: str, *flags: str) -> None:
    document = vm(name, resource)
    document["metadata"]["namespace"] = namespace
    cluster.kubectl("apply", "-f", "-", stdin=printed(document, *flags))


def is_placed(cluster: Cluster, namespace: str, name: str) -> bool:
    return bool(cluster.get("pod", name, "-n", namespace)["spec"].get("nodeName"))


@pytest.mark.parametrize("case", ALLOWED)
def test_what_the_limits_allow_is_made(tenants: Cluster, case: str) -> None:
    assert trial(tenants, *ALLOWED[case]) == ""


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_namespace_may_not_have_is_refused_in_one_line(tenants: Cluster, case: str) -> None:
    namespace, each, line = REFUSED[case]
    answer = trial(tenants, namespace, each)
    assert answer.endswith(f"denied request: {line}"), answer


def test_the_policies_have_no_type_errors(tenants: Cluster) -> None:
    for name in POLICIES:
        status = tenants.get("validatingadmissionpolicy", name)["status"]
        assert status["typeChecking"] == {}


def test_claims_of_a_teams_namespace_tolerate_its_taint_beside_what_they_say(tenants: Cluster) -> None:
    team = {"key": "gpu-launcher.dev/team", "operator": "Equal", "value": "red", "effect": "NoSchedule"}
    repair = {"key": "example.com/repair", "operator": "Exists"}
    plain = claim(of_resource(RTX_3090))
    assert made_of(tenants, "red", plain) == [team]
    assert made_of(tenants, "red", claim(of_resource(RTX_3090), tolerations=[repair])) == [repair, team]
    assert made_of(tenants, "red", in_turn(plain, tolerating(**repair))) == [team, repair, team]
    assert made_of(tenants, "green", plain) == [{}]


def test_a_change_is_an_apply(tenants: Cluster) -> None:
    asks = pod("example.com/new")
    assert "may not have" in trial(tenants, "green", asks)
    tenants.apply(config_map({**LINES, "green": f"{RTX_3090}\nexample.com/new"}))
    try:
        Patience().until("green may have it", lambda: trial(tenants, "green", asks) == "", 30)
    finally:
        tenants.apply(config_map(LINES))
    Patience().until("green may not", lambda: trial(tenants, "green", asks) != "", 30)


def test_neither_gets_the_others_card_and_each_is_told_why(tenants: Cluster) -> None:
    """By DRA red has the tainted card and the common one, blue the common one alone; by device plugin each its own."""
    apply(tenants, "blue", "first", RTX_3090, "--dra")
    Patience().until("blue has a card", partial(is_placed, tenants, "blue", "first"), 60)
    apply(tenants, "blue", "second", RTX_3090, "--dra")
    for namespace in TEAMS:
        apply(tenants, namespace, "own", OWN[namespace])
        Patience().until(f"{namespace} has its own", partial(is_placed, tenants, namespace, "own"), 60)
        apply(tenants, namespace, "more", OWN[namespace])
    tally = "(1 tainted gpu-launcher.dev/team, 1 taken); wait for 0000:e1:00.0 of dra"
    Patience().until("blue waits for the common one", lambda: tally in why(tenants, "blue", "second"), 60)
    answer = why(tenants, "blue", "more")
    assert answer.startswith(
        f"blue/more: is Pending: no node takes it, and plugin is the nearest: has 0 of 1 {OWN['blue']}"
    )
    apply(tenants, "red", "first", RTX_3090, "--dra")
    Patience().until("red has its card", partial(is_placed, tenants, "red", "first"), 60)
    (its,) = tenants.get_all("resourceclaims", "-n", "red")
    (result,) = its["status"]["allocation"]["devices"]["results"]
    assert (result["pool"], result["device"]) == ("dra", "pci-0000-01-00-0")
    assert not is_placed(tenants, "blue", "second")
    for namespace in TEAMS:
        tenants.kubectl("delete", "pods", "--all", "-n", namespace, "--grace-period=0", "--force")


def test_why_says_which_limit_keeps_a_vm_from_starting(tenants: Cluster) -> None:
    hard = {f"requests.{OWN['red']}": "0", DEVICES: "0"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus", "namespace": "red"}}
    tenants.apply({**quota, "spec": {"hard": hard}})
    asks = partial(trial, tenants, "red", pod(OWN["red"]))
    Patience().until("the quota is in force", lambda: "exceeded quota: gpus" in asks(), 60)
    apply(tenants, "red", "plugin", OWN["red"], "--as=job")
    apply(tenants, "red", "claimed", RTX_3090, "--dra")
    apply(tenants, "blue", "foreign", OWN["red"], "--as=job")
    over = "your namespace may not have more: its quota gpus is"
    told: dict[tuple[str, str], Callable[[str], bool]] = {
        ("red", "plugin"): lambda text: f"without a pod: {over} requests.{OWN['red']}=0" in text,
        ("red", "claimed"): lambda text: f"is Pending: {over} {DEVICES}=0" in text,
        ("blue", "foreign"): lambda text: (
            f"your namespace may not have {OWN['red']}: it may have {MAY['blue']}" in text
        ),
    }
    for (namespace, name), holds in told.items():
        Patience().until(f"why of {name}", lambda: holds(why(tenants, namespace, name)), 60)  # noqa: B023


def test_the_vendors_are_those_of_the_program() -> None:
    text = (ROOT / "deploy/tenants/namespaces-policy.yaml").read_text()
    assert all(f'"{resource}": "{vendor}"' in text for resource, vendor in ANY_GPU.items())


def by_token(cluster: Cluster, role: str, *, everywhere: bool) -> str:
    """Bind a role to a new service account of green, and return a kubeconfig with its token."""
    account, name = f"system:serviceaccount:green:{role}", f"{role}.conf"
    cluster.kubectl("create", "serviceaccount", role, "-n", "green")
    kind = ("clusterrolebinding", role) if everywhere else ("rolebinding", role, "-n", "green")
    cluster.kubectl("create", *kind, f"--clusterrole={role}", f"--user={account}")
    config = json.loads(cluster.box.path(cluster.argv()[2]).read_text())
    config["users"][0]["user"] = {"token": cluster.kubectl("create", "token", role, "-n", "green").strip()}
    cluster.box.path(f"/run/lab/{name}").write_text(json.dumps(config))
    return f"/run/lab/{name}"


def says(cluster: Cluster, kubeconfig: str, *words: str) -> str:
    """What `kubectl gpuvm` prints for whoever has a kubeconfig, of green's VMs."""
    path = f"/run/lab/kubernetes:{ROOT / '.venv/bin'}:{os.environ['PATH']}"
    environ = [f"PATH={path}", f"KUBECONFIG={kubeconfig}", "HOME=/run/lab", "TMPDIR=/run/lab", "KUBE_EDITOR=true"]
    verb, *others = words
    done = cluster.box.run("timeout", "60", "env", *environ, "kubectl-gpuvm", verb, "-n", "green", *others, seconds=90)
    return str(done.stdout + done.stderr)


def may(cluster: Cluster, kubeconfig: str, *words: str) -> bool:
    done = cluster.box.run(cluster.argv()[0], "--kubeconfig", kubeconfig, "auth", "can-i", *words)
    return str(done.stdout).strip() == "yes"


def test_a_viewer_looks_at_all_and_changes_nothing(tenants: Cluster) -> None:
    apply(tenants, "green", "seen", RTX_3090, "--dra")
    viewer = by_token(tenants, "gpuvm-viewer", everywhere=True)
    for words in (("list",), ("why", "seen"), ("map",), ("logs", "seen")):
        assert "forbidden" not in says(tenants, viewer, *words).lower(), words
    for words in (("stop", "seen"), ("delete", "seen")):
        assert "forbidden" in says(tenants, viewer, *words).lower(), words
    # What is done in a pod is not tried here: none runs.
    assert not any(may(tenants, viewer, "create", f"pods/{way}", "-n", "green") for way in ("exec", "portforward"))


def test_an_owner_has_every_verb_in_a_namespace(tenants: Cluster) -> None:
    owner = by_token(tenants, "gpuvm-owner", everywhere=False)
    file = "/run/lab/owned.yaml"
    document = vm("owned", RTX_3090)
    document["metadata"]["namespace"] = "green"
    tenants.box.path(file).write_text(json.dumps(document))
    names = {"VM": "owned", "FILE": file, "VM:/x": "owned:/x"}
    for verb, words in {"apply --dra": ("apply", "-f", "FILE", "--dra"), **WORDS}.items():
        if verb not in ("map", "why", "cordon", "uncordon"):  # which look at the cluster
            text = says(tenants, owner, *(names.get(word, word) for word in words))
            assert "forbidden" not in text.lower(), f"{verb}: {text}"
    assert all(may(tenants, owner, "create", f"pods/{way}", "-n", "green") for way in ("exec", "portforward"))
    assert not may(tenants, owner, "create", "pods", "-n", "red")


def test_an_operator_says_who_may_have_what_and_makes_no_pod(tenants: Cluster) -> None:
    operator = by_token(tenants, "gpuvm-operator", everywhere=True)
    for name in ("gpu-namespaces", "gpu-plugin-cordons"):
        assert may(tenants, operator, "patch", f"configmap/{name}", "-n", "kube-system")
    assert may(tenants, operator, "create", "resourcequotas", "-n", "green")
    assert may(tenants, operator, "create", "deviceclasses.resource.k8s.io")
    assert not may(tenants, operator, "patch", "configmap/gpu-plugin", "-n", "kube-system")
    assert not may(tenants, operator, "create", "pods", "-n", "green")
