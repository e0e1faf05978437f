"""What the lab's tests apply to the cluster: the plugin as a DaemonSet, a VM in a launcher's pod."""

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from launcher.pod.controllers import pod_spec
from tests.lab import build
from tests.lab.box import CONTROL_PLANE
from tests.lab.machine import CARD
from tests.processes import ROOT, finished

RESOURCE = "example.com/card"
VARIABLE = "PCI_RESOURCE_EXAMPLE_COM_CARD"
#: What the plugin offers in most tests: every card, and no other device with their vendor; and /dev/kvm.
CARDS: Mapping[str, Any] = {"offer": [{"device": CARD[0], "resource": RESOURCE}], "node_devices": {"kvm": 110}}
CONFIG = "/etc/gpu-plugin/config.yaml"
#: The variables of a container that asks the API server: nothing makes the way of a Service here.
WAY_TO_SERVER = (
    {"name": "KUBERNETES_SERVICE_HOST", "value": CONTROL_PLANE},
    {"name": "KUBERNETES_SERVICE_PORT", "value": "6443"},
)
#: The name of the NetworkAttachmentDefinition, and how its addresses begin.
SECOND_NETWORK, SECOND_ADDRESSES = "second", "10.90.0."
#: A disk in the claim `data`, the pod's network and a second one, for `more`.
DISK_AND_NETWORKS: Mapping[str, Any] = {
    "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
    "networks": [{"name": "default", "pod": {}}, {"name": "second", "multus": {"networkName": SECOND_NETWORK}}],
    "domain": {
        "devices": {
            "autoattachPodInterface": True,
            "interfaces": [
                {"name": "default", "masquerade": {}, "ports": [{"port": 8080}]},
                {"name": "second", "passt": {}, "ports": [{"port": 8081}]},
            ],
            "disks": [{"name": "data", "disk": {"bus": "virtio"}}],
        }
    },
}
#: For the lab's Linux in a VM. As it comes, the kernel of a single processor takes each lock's prefix out of its own
#: code, and looks for host bridges that no firmware tells of, which takes a tenth and a third of a boot here: each read
#: of the configuration space is an exit of an emulated processor.
KERNEL_ARGUMENTS = "console=ttyS0 quiet panic=-1 noreplace-smp pci=lastbus=0"
_CONTAINER = "/spec/template/spec/containers/0"
_ARGUMENTS = f"{_CONTAINER}/args"


def overlay(
    directory: Path,
    config: Mapping[str, Any],
    *,
    base: str = "plugin",
    components: Sequence[str] = (),
    arguments: Sequence[str] = (),
) -> None:
    """Write a kustomization that applies deploy/plugin, or another `base` in deploy/, as a user would: with some
    `components`, paths there, and an image, a config and further `arguments` of one's own."""
    directory.mkdir(exist_ok=True)
    shutil.copytree(ROOT / "deploy", directory / "deploy", dirs_exist_ok=True)
    name, _, tag = build.PLUGIN.rpartition(":")
    # Whoever waits for a plugin waits for two probes.
    often = {"startupProbe": {"periodSeconds": 1, "failureThreshold": 600}, "readinessProbe": {"periodSeconds": 1}}
    patch: list[dict[str, Any]] = [
        *({"op": "add", "path": f"{_ARGUMENTS}/-", "value": argument} for argument in arguments),
        *(
            {"op": "replace", "path": f"{_CONTAINER}/{probe}/{field}", "value": value}
            for probe, fields in often.items()
            for field, value in fields.items()
        ),
    ]
    if base == "dra":
        patch += [{"op": "add", "path": f"{_CONTAINER}/env/-", "value": variable} for variable in WAY_TO_SERVER]
        # The plugin of the lab is not in kube-system.
        for file in (directory / "deploy/dra/admission.yaml", directory / "deploy/dra/rbac.yaml"):
            file.write_text(file.read_text().replace("kube-system", "default"))
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": "default",
        "resources": [f"deploy/{base}"],
        "components": [f"deploy/{component}" for component in components],
        "images": [{"name": "gpu-plugin", "newName": name, "newTag": tag}],
        "configMapGenerator": [
            {"name": "gpu-plugin", "namespace": "kube-system", "behavior": "replace", "files": ["config.yaml"]}
        ],
        "patches": [{"target": {"kind": "DaemonSet"}, "patch": json.dumps(patch)}],
    }
    (directory / "kustomization.yaml").write_text(json.dumps(kustomization))
    (directory / "config.yaml").write_text(json.dumps(config))


def binder(daemon_set: Mapping[str, Any], *arguments: str) -> dict[str, Any]:
    """A pod that runs `gpu-plugin` with these arguments as the DaemonSet's init container would."""
    spec = daemon_set["spec"]["template"]["spec"]
    (container,) = (each for each in spec["initContainers"] if each["name"] == "bind")
    # `unbind` looks at the claims, of which the DRA driver keeps a list.
    state = [each for each in spec["containers"][0]["volumeMounts"] if each["name"] == "dra-state"]
    mounts = [*container["volumeMounts"], *state]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "binder"},
        "spec": {
            "automountServiceAccountToken": False,
            "restartPolicy": "Never",
            "containers": [{**container, "args": [*arguments, "--sysfs=/host/sys"], "volumeMounts": mounts}],
            "volumes": spec["volumes"],
        },
    }


def vm(
    name: str,
    cards: int,
    *,
    env: Mapping[str, str] | None = None,
    without: tuple[str, ...] = (),
    share_processes: bool = False,
    grace: int = 60,
    annotations: Mapping[str, str] | None = None,
    more: Mapping[str, Any] | None = None,
    run_strategy: str | None = None,
    dra: bool = False,
    level: str | None = None,
    sleeps: bool = False,
) -> tuple[dict[str, Any], ...]:
    """A VM that boots the lab's Linux, with that many cards, in the pod that `gpu-launcher pod` makes of it.

    `annotations` are the VM's, and `more` is merged into its spec; with `run_strategy` it is a VirtualMachine. The rest
    is done to the pod: variables of its own, `without` capabilities, and with `share_processes` the launcher is not its
    first process; and whether it is ready is looked at seldom. The guest has `grace` seconds to shut down. With `dra`
    there are ResourceClaimTemplates as well. `level` is --level. A pod that `sleeps` has its cards and no launcher.
    """
    document = manifest(name, cards, grace=grace, annotations=annotations, more=more, run_strategy=run_strategy)
    objects = made(document, *(["--dra"] if dra else []), *([f"--level={level}"] if level is not None else []))
    (pod,) = (found for found in objects if found["kind"] == "Pod")
    (container,) = pod["spec"]["containers"]
    container["env"] += [{"name": name, "value": value} for name, value in (env or {}).items()]
    capabilities = container["securityContext"]["capabilities"]
    capabilities["add"] = [capability for capability in capabilities.get("add", []) if capability not in without]
    pod["spec"]["shareProcessNamespace"] = share_processes
    if sleeps:
        # Process 1 ends by a signal only if it asks for it, and the pod has 45 s beside its guest's.
        container["command"] = ["sh", "-c", "trap exit TERM; sleep infinity & wait"]
        del container["readinessProbe"]
    return objects


def manifest(
    name: str,
    cards: int,
    *,
    grace: int = 60,
    annotations: Mapping[str, str] | None = None,
    more: Mapping[str, Any] | None = None,
    run_strategy: str | None = None,
) -> dict[str, Any]:
    """That VM as its user writes it."""
    metadata = {"name": name, "annotations": dict(annotations or {})}
    spec = merged(
        {
            "terminationGracePeriodSeconds": grace,
            "domain": {
                "memory": {"guest": "256Mi"},
                "cpu": {"model": "qemu64"},
                "firmware": {
                    "kernelBoot": {
                        "container": {"image": build.GUEST, "kernelPath": "/vmlinuz", "initrdPath": "/initrd"},
                        "kernelArgs": KERNEL_ARGUMENTS,
                    }
                },
                "devices": {
                    "gpus": [{"name": f"gpu{n}", "deviceName": RESOURCE} for n in range(1, cards + 1)],
                    "autoattachPodInterface": False,
                    "logSerialConsole": True,
                },
            },
        },
        more or {},
    )
    document: dict[str, Any] = {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": metadata,
        "spec": spec,
    }
    if run_strategy is not None:
        template = {"metadata": {"annotations": metadata.pop("annotations")}, "spec": spec}
        document |= {"kind": "VirtualMachine", "spec": {"runStrategy": run_strategy, "template": template}}
    return document


def made(document: Mapping[str, Any], *flags: str) -> tuple[dict[str, Any], ...]:
    """The objects that `gpu-launcher pod` prints for that VM; whether a pod is ready is looked at seldom."""
    objects = tuple(yaml.safe_load_all(printed(document, *flags)))
    for spec in filter(None, map(pod_spec, objects)):
        # Each look is a process in the container, which takes an emulated processor a second.
        spec["containers"][0]["readinessProbe"] |= {"periodSeconds": 30, "timeoutSeconds": 30}
    return objects


def printed(document: Mapping[str, Any], *flags: str) -> str:
    """What `gpu-launcher pod` prints for that VM, with the image of the working tree."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        json.dump(document, file)
        file.flush()
        done = finished("gpu-launcher", "pod", file.name, "--image", build.LAUNCHER, *flags)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def claim(name: str, directory: str) -> tuple[dict[str, Any], ...]:
    """A claim by that name, and the volume that it is bound to: a directory of the node's."""
    size = {"storage": "1Mi"}
    common = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
    return (
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {**common, "capacity": size, "hostPath": {"path": directory}},
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name},
            "spec": {**common, "resources": {"requests": size}, "volumeName": name},
        },
    )


def second_network() -> tuple[dict[str, Any], ...]:
    """What an installation of Multus applies, and a network: a bridge of its own, with addresses. Multus calls the API
    server as the node."""
    group, plural = "k8s.cni.cncf.io", "network-attachment-definitions"
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    network = {
        "cniVersion": "1.0.0",
        "type": "bridge",
        "bridge": "cni1",
        "ipam": {"type": "host-local", "dataDir": "/run/cni", "ranges": [[{"subnet": f"{SECOND_ADDRESSES}0/24"}]]},
    }
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "multus"}
    return (
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.{group}"},
            "spec": {
                "group": group,
                "scope": "Namespaced",
                "names": {"plural": plural, "kind": "NetworkAttachmentDefinition"},
                "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": anything}}],
            },
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "multus"},
            "rules": [{"apiGroups": [group], "resources": [plural], "verbs": ["get", "list", "watch"]}],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "multus"},
            "roleRef": role,
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:nodes"}],
        },
        {
            "apiVersion": f"{group}/v1",
            "kind": "NetworkAttachmentDefinition",
            "metadata": {"name": SECOND_NETWORK},
            "spec": {"config": json.dumps(network)},
        },
    )


def merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The other's values over the one's, mapping by mapping."""
    return {
        **one,
        **{
            key: merged(one[key], value) if isinstance(value, Mapping) and key in one else value
            for key, value in other.items()
        },
    }
