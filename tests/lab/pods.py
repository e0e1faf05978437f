"""What the lab's tests apply to the cluster: the plugin as a DaemonSet, a VM in a launcher's pod."""

import json
from collections.abc import Mapping
from typing import Any

from launcher.elements.firmware import KERNEL_BOOT
from tests.lab import build
from tests.lab.machine import CARD

RESOURCE = "example.com/card"
VARIABLE = "PCI_RESOURCE_EXAMPLE_COM_CARD"
_PLUGINS = "/var/lib/kubelet/device-plugins"
_PODS = "/var/lib/kubelet/pod-resources"


def plugin() -> tuple[dict[str, Any], ...]:
    """gpu-plugin on every node, offering the cards as RESOURCE; it sees /sys as any container does."""
    config = {"offer": [{"device": CARD[0], "resource": RESOURCE}]}
    labels = {"app": "gpu-plugin"}
    pod = {
        "metadata": {"labels": labels},
        "spec": {
            "automountServiceAccountToken": False,
            "tolerations": [{"operator": "Exists"}],
            "containers": [
                {
                    "name": "gpu-plugin",
                    "image": build.PLUGIN,
                    "imagePullPolicy": "Never",
                    "args": ["serve", "--config", "/etc/gpu-plugin/config.yaml", "--dev", "/host/dev"],
                    "volumeMounts": [
                        {"name": "config", "mountPath": "/etc/gpu-plugin"},
                        {"name": "kubelet", "mountPath": _PLUGINS},
                        {"name": "pods", "mountPath": _PODS, "readOnly": True},
                        {"name": "dev", "mountPath": "/host/dev", "readOnly": True},
                    ],
                }
            ],
            "volumes": [
                {"name": "config", "configMap": {"name": "gpu-plugin"}},
                {"name": "kubelet", "hostPath": {"path": _PLUGINS, "type": "Directory"}},
                {"name": "pods", "hostPath": {"path": _PODS, "type": "Directory"}},
                {"name": "dev", "hostPath": {"path": "/dev", "type": "Directory"}},
            ],
        },
    }
    return (
        _config_map("gpu-plugin", {"config.yaml": json.dumps(config)}),
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": "gpu-plugin"},
            "spec": {"selector": {"matchLabels": labels}, "template": pod},
        },
    )


def vm(
    name: str,
    cards: int,
    *,
    env: Mapping[str, str] | None = None,
    capabilities: tuple[str, ...] = ("SYS_RESOURCE",),
    share_processes: bool = False,
    grace: int = 60,
) -> tuple[dict[str, Any], ...]:
    """A VM that boots the lab's Linux, in a pod that asks for that many cards.

    With `share_processes` the launcher is not the pod's first process. The guest has `grace` seconds to shut down.
    """
    manifest = {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": grace,
            "domain": {
                "memory": {"guest": "256Mi"},
                "cpu": {"model": "qemu64"},
                "firmware": {
                    "kernelBoot": {
                        "container": {"image": build.GUEST, "kernelPath": "/vmlinuz", "initrdPath": "/initrd"},
                        "kernelArgs": "console=ttyS0 quiet panic=-1",
                    }
                },
                "devices": {"gpus": [{"name": f"gpu{n}", "deviceName": RESOURCE} for n in range(1, cards + 1)]},
            },
        },
    }
    container = {
        "name": "compute",
        "image": build.LAUNCHER,
        "imagePullPolicy": "Never",
        "args": ["run", "--vm", "/etc/vm/vm.yaml", "--emulation"],
        "env": [{"name": name, "value": value} for name, value in (env or {}).items()],
        "resources": {"limits": {RESOURCE: str(cards), "memory": "1Gi"}},
        "securityContext": {"capabilities": {"add": list(capabilities)}},
        "volumeMounts": [
            {"name": "vm", "mountPath": "/etc/vm"},
            {"name": "kernel-boot", "mountPath": KERNEL_BOOT},
        ],
    }
    return (
        _config_map(name, {"vm.yaml": json.dumps(manifest)}),
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "automountServiceAccountToken": False,
                "restartPolicy": "Never",
                "shareProcessNamespace": share_processes,
                "terminationGracePeriodSeconds": grace + 30,
                "containers": [container],
                "volumes": [
                    {"name": "vm", "configMap": {"name": name}},
                    {"name": "kernel-boot", "image": {"reference": build.GUEST, "pullPolicy": "Never"}},
                ],
            },
        },
    )


def _config_map(name: str, data: dict[str, str]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
