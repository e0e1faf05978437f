"""A VM is changed, against a real API server with its controllers. There is no node: all pods stay Pending."""

from typing import Any

import pytest
import yaml

from tests.lab.control_plane import Cluster
from tests.lab.pods import printed
from tests.lab.waiting import CommandFailed, Patience

_KINDS = "pod,configmap,resourceclaimtemplate"
_BY_LABEL = ("-l", "vmi.kubevirt.io/id=desk")


def vm(memory: str, **template: Any) -> dict[str, Any]:
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": "desk"},
        "spec": {
            "runStrategy": "Always",
            "template": {
                **template,
                "spec": {
                    "domain": {
                        "memory": {"guest": memory},
                        "devices": {"gpus": [{"name": "gpu", "deviceName": "nvidia.com/pgpu"}]},
                    }
                },
            },
        },
    }


def applied(cluster: Cluster, memory: str, *flags: str) -> None:
    cluster.kubectl("apply", "-f", "-", stdin=printed(vm(memory), *flags))


def of_the_vm(cluster: Cluster, kind: str) -> list[Any]:
    return cluster.get_all(kind, *_BY_LABEL)


def memory_of(cluster: Cluster) -> str:
    """What the pod's config map says."""
    pod = cluster.get("pod", "desk")
    config_map = cluster.get("configmap", pod["spec"]["volumes"][0]["configMap"]["name"])
    manifest = yaml.safe_load(config_map["data"]["vm.yaml"])
    return str(manifest["spec"]["template"]["spec"]["domain"]["memory"]["guest"])


@pytest.mark.parametrize("flags", [(), ("--dra",)])
def test_a_vm_is_changed_three_times_as_the_page_says(cluster: Cluster, flags: tuple[str, ...]) -> None:
    applied(cluster, "1Gi", *flags)
    for before, memory in (("1Gi", "2Gi"), ("2Gi", "3Gi"), ("3Gi", "1Gi")):
        # A running VM is not changed.
        with pytest.raises(CommandFailed, match="pod updates may not change fields"):
            applied(cluster, memory, *flags)
        assert memory_of(cluster) == before
        cluster.kubectl("delete", _KINDS, *_BY_LABEL)
        applied(cluster, memory, *flags)
        assert memory_of(cluster) == memory
        assert len(of_the_vm(cluster, "configmap")) == 1
    cluster.kubectl("delete", _KINDS, *_BY_LABEL)


def test_what_a_pod_owns_goes_with_it(cluster: Cluster) -> None:
    for memory in ("1Gi", "2Gi", "3Gi"):
        applied(cluster, memory, "--dra")
        uid = cluster.get("pod", "desk")["metadata"]["uid"]
        applied(cluster, memory, "--dra", "--owner", uid)
        cluster.delete("pod", "desk")
        Patience().until("its objects are gone", lambda: not of_the_vm(cluster, _KINDS), 30)
