"""`deviceName` of KubeVirt's VMs by DRA, with a real API server and scheduler: gpu-plugin's DeviceClasses, and
deploy/hook/claims-policy.yaml. The nodes are objects alone, and VirtualMachineInstances have a small definition."""

import json
from functools import partial
from typing import Any

import pytest
import yaml

from tests.clusters import machine, node_of, slices_of
from tests.lab import build
from tests.lab.control_plane import Cluster
from tests.lab.waiting import CommandFailed, Patience
from tests.processes import FIXTURES, ROOT, finished

pytestmark = pytest.mark.skipif(
    build.kubernetes_minor() < 36,
    reason="extended resources by DRA and MutatingAdmissionPolicy are on from Kubernetes 1.36",
)

A100 = "nvidia.com/GA100_A100_SXM4_40GB"
_MACHINE = "hgx-a100-8-gpu"
_HOSTNAME = "kubernetes.io/hostname"
#: How many a device plugin offers on each node; the last two have slices, too.
NODES = {"by-plugin": "2", "by-both": "2", "by-dra": None}

_SPEC = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_DEFINITION: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "virtualmachineinstances.kubevirt.io"},
    "spec": {
        "group": "kubevirt.io",
        "scope": "Namespaced",
        "names": {"plural": "virtualmachineinstances", "singular": "vmi", "kind": "VirtualMachineInstance"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": _SPEC}}},
            }
        ],
    },
}


def vmi(name: str, **annotations: str) -> dict[str, Any]:
    """An instance with two GPUs and one host device by deviceName, and one GPU by a claim of its own."""
    gpus = [
        {"name": "gpu1", "deviceName": "nvidia.com/gpu", "tag": "first"},
        {"name": "gpu2", "claimName": "own", "requestName": "card"},
        {"name": "gpu3", "deviceName": A100},
    ]
    devices = {"gpus": gpus, "hostDevices": [{"name": "nic", "deviceName": "example.com/nic"}]}
    words = {f"nvidia.com/{word.replace('_', '-')}": text for word, text in annotations.items()}
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {"name": name, "namespace": "default", "annotations": words},
        "spec": {"domain": {"devices": devices}, "resourceClaims": [{"name": "own"}]},
    }


@pytest.fixture(scope="module")
def nodes(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> None:
    config = tmp_path_factory.mktemp("config") / "config.yaml"
    config.write_text("serve: dra\n")
    flags = ("--config", config, "--sysfs", FIXTURES / "sysfs" / _MACHINE, "--pci-ids", FIXTURES / "pci.ids")
    cluster.kubectl("apply", "-f", "-", stdin=finished("gpu-plugin", "inventory", "--device-classes", *flags).stdout)
    for name, offered in NODES.items():
        node = node_of(name, {} if offered is None else {A100: offered}, labels={_HOSTNAME: name})
        cluster.apply({key: value for key, value in node.items() if key != "status"})
        status = json.dumps({"status": node["status"]})
        cluster.kubectl("patch", "node", name, "--subresource=status", "--type=merge", "-p", status)
        for each in slices_of(machine(_MACHINE), name) if name != "by-plugin" else ():
            del each["metadata"]["ownerReferences"]  # a node of another uid: the slice would be deleted
            cluster.apply(each)


@pytest.fixture(scope="module")
def policy(cluster: Cluster) -> None:
    cluster.apply(_DEFINITION)
    cluster.kubectl("apply", "-f", str(ROOT / "deploy/hook/claims-policy.yaml"))
    refused = vmi("refused", use_gputype="none has this")

    def is_in_force() -> bool:
        try:
            created(cluster, refused)
        except CommandFailed as error:
            return "has no ResourceClaimTemplate" in str(error)
        return False

    Patience().until("the policy is in force", is_in_force, 60)


def created(cluster: Cluster, document: dict[str, Any]) -> dict[str, Any]:
    """What the API server would make of it."""
    made = cluster.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(document))
    spec: dict[str, Any] = json.loads(made)["spec"]
    return spec


@pytest.mark.usefixtures("nodes")
def test_a_node_gives_as_many_cards_as_it_has_by_the_plugin_or_else_by_dra(cluster: Cluster) -> None:
    """A class is for the whole cluster, and no card is counted twice: not even where both offer it."""
    for name in NODES:
        for count in ("2", "7"):
            container = {"name": "compute", "image": "none", "resources": {"limits": {A100: count}}}
            spec = {
                "containers": [container],
                "nodeSelector": {_HOSTNAME: name},
                "tolerations": [{"operator": "Exists"}],
            }
            metadata = {"name": f"{name}-{count}"}
            cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    def verdicts() -> dict[str, tuple[bool, bool]] | None:
        pods = [cluster.get("pod", f"{name}-{count}") for name in NODES for count in ("2", "7")]
        conditions = [each for pod in pods for each in pod["status"].get("conditions", [])]
        if sum(each["type"] == "PodScheduled" for each in conditions) < len(pods):
            return None
        return {
            pod["metadata"]["name"]: ("nodeName" in pod["spec"], "extendedResourceClaimStatus" in pod["status"])
            for pod in pods
        }

    placed = (True, False)
    assert Patience().until("each pod is judged", verdicts, 60) == {
        "by-plugin-2": placed,
        "by-plugin-7": (False, False),
        "by-both-2": placed,
        "by-both-7": (False, False),
        "by-dra-2": (True, True),
        "by-dra-7": (False, False),  # it has eight, and two are taken
    }


@pytest.mark.usefixtures("policy")
def test_a_vm_that_chooses_has_the_template_for_its_annotations_and_no_other(cluster: Cluster) -> None:
    by_name = {}
    for model in ("A100", "H100"):
        printed = finished("gpu-launcher", "hook", "--claim", "-", stdin=json.dumps(vmi("any", use_gputype=model)))
        assert printed.stderr == ""
        cluster.kubectl("apply", "-f", "-", stdin=printed.stdout)
        by_name[model] = yaml.safe_load(printed.stdout)["metadata"]["name"]

    for model, template in by_name.items():
        chooses = vmi("chooses", use_gputype=model)
        spec = Patience().until("its template is known", partial(created, cluster, chooses), 20)
        assert spec["resourceClaims"] == [
            {"name": "own"},
            {"name": "gpu-launcher", "resourceClaimTemplateName": template},
        ]
        devices = spec["domain"]["devices"]
        assert devices["gpus"] == [
            {"name": "gpu1", "tag": "first", "claimName": "gpu-launcher", "requestName": "gpu-0"},
            {"name": "gpu2", "claimName": "own", "requestName": "card"},
            {"name": "gpu3", "claimName": "gpu-launcher", "requestName": "gpu-2"},
        ]
        assert devices["hostDevices"] == [{"name": "nic", "claimName": "gpu-launcher", "requestName": "hostdevice-0"}]
    assert created(cluster, vmi("plain")) == vmi("plain")["spec"]
    with pytest.raises(
        CommandFailed, match=r"nvidia\.com/use-gputype, nvidia\.com/numa-bind: namespace default has no"
    ):
        created(cluster, vmi("more", use_gputype="A100", numa_bind="true"))
    elsewhere = vmi("elsewhere", use_gputype="A100")
    elsewhere["metadata"]["namespace"] = "kube-system"
    with pytest.raises(CommandFailed, match="namespace kube-system has no ResourceClaimTemplate"):
        created(cluster, elsewhere)
