"""What the lab's tests apply to the cluster: the plugin as a DaemonSet, a VM in a launcher's pod."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher.paths import KERNEL_BOOT
from tests.lab import build
from tests.lab.machine import CARD
from tests.processes import ROOT

RESOURCE = "example.com/card"
VARIABLE = "PCI_RESOURCE_EXAMPLE_COM_CARD"
#: What the plugin offers in most tests: every card, and no other device with their vendor.
CARDS: Mapping[str, Any] = {"offer": [{"device": CARD[0], "resource": RESOURCE}]}
CONFIG = "/etc/gpu-plugin/config.yaml"


def overlay(directory: Path, config: Mapping[str, Any], *, bind: bool) -> None:
    """Write a kustomization that applies deploy/plugin as a user would: with an image and a config of one's own and,
    with `bind`, the init container that gives the cards to vfio."""
    directory.mkdir(exist_ok=True)
    shutil.copytree(ROOT / "deploy", directory / "deploy", dirs_exist_ok=True)
    name, _, tag = build.PLUGIN.rpartition(":")
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": "default",
        "resources": ["deploy/plugin"],
        "components": ["deploy/plugin/components/bind"] if bind else [],
        "images": [{"name": "gpu-plugin", "newName": name, "newTag": tag}],
        "configMapGenerator": [
            {"name": "gpu-plugin", "namespace": "kube-system", "behavior": "replace", "files": ["config.yaml"]}
        ],
    }
    (directory / "kustomization.yaml").write_text(json.dumps(kustomization))
    (directory / "config.yaml").write_text(json.dumps(config))


def binder(daemon_set: Mapping[str, Any], *arguments: str) -> dict[str, Any]:
    """A pod that runs `gpu-plugin` with these arguments as the DaemonSet's init container would."""
    spec = daemon_set["spec"]["template"]["spec"]
    (container,) = spec["initContainers"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "binder"},
        "spec": {
            "automountServiceAccountToken": False,
            "restartPolicy": "Never",
            "containers": [{**container, "args": [*arguments, "--sysfs=/host/sys"]}],
            "volumes": spec["volumes"],
        },
    }


def vm(
    name: str,
    cards: int,
    *,
    env: Mapping[str, str] | None = None,
    capabilities: tuple[str, ...] = ("SYS_RESOURCE",),
    share_processes: bool = False,
    grace: int = 60,
    annotations: Mapping[str, str] | None = None,
) -> tuple[dict[str, Any], ...]:
    """A VM that boots the lab's Linux, in a pod that asks for that many cards. `annotations` are the VM's.

    With `share_processes` the launcher is not the pod's first process. The guest has `grace` seconds to shut down.
    """
    manifest = {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {"name": name, "annotations": dict(annotations or {})},
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
                "devices": {
                    "gpus": [{"name": f"gpu{n}", "deviceName": RESOURCE} for n in range(1, cards + 1)],
                    # The image has no passt.
                    "autoattachPodInterface": False,
                },
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
