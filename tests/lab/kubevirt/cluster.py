"""KubeVirt in the lab's cluster, as virt-operator would have it: virt-handler is its DaemonSet, virt-api and
virt-controller run in the box, beside the API server, by tokens of their service accounts."""

import json
from base64 import b64decode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.lab import build, pods
from tests.lab.box import CONTROL_PLANE
from tests.lab.kubevirt import objects
from tests.lab.lab import Lab

_HOME = "/run/lab/kubevirt"
_START = 900  # seconds that a VM may take to start, on an emulated processor


def permitted(lab: Lab, plugin: str) -> str:
    """What KubeVirt has to permit, as gpu-plugin in that pod prints it."""
    return lab.gpu_plugin(plugin, "inventory", "--permitted", f"--config={pods.CONFIG}", "--dev=/host/dev")


def start(lab: Lab, permitted: str, gates: Sequence[str] = ()) -> None:
    """Apply and start all of it, with what is `permitted` in KubeVirt's CR; until the node takes VMs."""
    programs = build.kubevirt() / "bin"
    lab.node.sh("modprobe tun")  # virt-handler takes no VMs without /dev/net/tun
    home = lab.box.path(_HOME)
    home.mkdir()
    release = build.kubevirt_directory()
    assert release is not None, "KUBEVIRT names the directory"
    steps = objects.for_lab(objects.read(release / "objects"), objects.Authority(home), CONTROL_PLANE)
    _write_certificates(home / "certs", steps["base"])
    for step in ("crds", "base"):
        _apply(lab, steps[step])
    lab.until("the API server knows KubeVirts", lambda: lab.cluster.kubectl("get", "kubevirts", "-A") or "none", 60)
    configure(lab, permitted, gates)
    # What virt-operator says when all runs; nobody reads the configuration before.
    deployed = json.dumps({"status": {"phase": "Deployed", "defaultArchitecture": "amd64"}})
    lab.cluster.kubectl(
        "patch", "kubevirt", "-n", objects.NAMESPACE, "kubevirt", "--subresource=status", "--type=merge", "-p", deployed
    )
    certificates = f"{_HOME}/certs/kubevirt"
    lab.box.spawn(
        "virt-api", programs / "virt-api",
        "--kubeconfig", _credentials(lab, "kubevirt-apiserver"),
        "--port", "8443",
        "--console-server-port", "8186",
        "--tls-cert-file", f"{certificates}-virt-api-certs/tls.crt",
        "--tls-key-file", f"{certificates}-virt-api-certs/tls.key",
        "--handler-cert-file", f"{certificates}-virt-handler-certs/tls.crt",
        "--handler-key-file", f"{certificates}-virt-handler-certs/tls.key",
    )  # fmt: skip
    lab.box.spawn(
        "virt-controller", programs / "virt-controller",
        "--kubeconfig", _credentials(lab, "kubevirt-controller"),
        "--port", "8444",
        "--prom-cert-file", f"{certificates}-controller-certs/tls.crt",
        "--prom-key-file", f"{certificates}-controller-certs/tls.key",
        "--launcher-image", build.VIRT_LAUNCHER,
        "--launcher-qemu-timeout", str(_START),
    )  # fmt: skip
    for step in ("handler", "webhooks"):
        _apply(lab, steps[step])
    lab.until("virt-api answers", lambda: lab.cluster.kubectl("get", "--raw", "/apis/subresources.kubevirt.io/v1"), 60)
    lab.until("the node takes KubeVirt's VMs", lambda: _takes_vms(lab), 300)


def _apply(lab: Lab, applied: Sequence[objects.Object]) -> None:
    text = "\n---\n".join(map(json.dumps, applied))
    lab.cluster.kubectl("apply", "--server-side", "-f", "-", stdin=text, seconds=120)


def _write_certificates(directory: Path, applied: Sequence[objects.Object]) -> None:
    """NAME/tls.crt and NAME/tls.key of each Secret, for the programs that run outside a pod."""
    for secret in (one for one in applied if one["kind"] == "Secret"):
        place = directory / secret["metadata"]["name"]
        place.mkdir(parents=True)
        for name, data in secret["data"].items():
            (place / name).write_bytes(b64decode(data))


def configure(lab: Lab, permitted: str, gates: Sequence[str] = ()) -> None:
    """KubeVirt's CR."""
    lab.cluster.apply({
        "apiVersion": "kubevirt.io/v1",
        "kind": "KubeVirt",
        "metadata": {"name": "kubevirt", "namespace": objects.NAMESPACE},
        "spec": {
            "imagePullPolicy": "IfNotPresent",
            "configuration": {
                "developerConfiguration": {
                    "featureGates": ["HostDevices", *gates],
                    "logVerbosity": dict.fromkeys(("virtLauncher", "virtHandler", "virtController"), 3),
                },
                **yaml.safe_load(permitted),
            },
        },
    })  # fmt: skip


def _takes_vms(lab: Lab) -> bool:
    labels: Mapping[str, str] = lab.cluster.get("node", lab.node.name)["metadata"]["labels"]
    return labels.get("kubevirt.io/schedulable") == "true"


def _credentials(lab: Lab, account: str) -> str:
    """The path of a kubeconfig with a token of that service account."""
    token = lab.cluster.kubectl("create", "token", account, "-n", objects.NAMESPACE, "--duration", "24h").strip()
    server = {"server": "https://127.0.0.1:6443", "insecure-skip-tls-verify": True}
    config: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "lab", "cluster": server}],
        "users": [{"name": account, "user": {"token": token}}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": account}}],
        "current-context": "lab",
    }
    path = f"{_HOME}/{account}.conf"
    lab.box.path(path).write_text(json.dumps(config))
    return path
