"""KubeVirt's objects as the lab applies them: those that a release's virt-operator writes into a cluster, recorded by
`kubectl get -o json` (docs/testing.md), with certificates of the lab's own, and with virt-api beside the API server."""

import copy
import json
import subprocess
from base64 import b64decode, b64encode
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.lab import build

Object = dict[str, Any]

NAMESPACE = "kubevirt"
#: The Service that webhooks and APIServices name. The cluster has no virt-operator to answer at its own.
_API = "virt-api"
#: When each kind is applied: `crds` and `base` before KubeVirt's programs start, `webhooks` after virt-api.
_STEPS = {
    "CustomResourceDefinition": "crds",
    **dict.fromkeys(("Namespace", "PriorityClass", "ServiceAccount", "Secret", "ConfigMap"), "base"),
    **dict.fromkeys(("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"), "base"),
    "DaemonSet": "handler",
    **dict.fromkeys(("APIService", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"), "webhooks"),
}


class Authority:
    """A new certificate authority, whose files are in `directory`; `bundle` is its certificate, PEM in base64."""

    def __init__(self, directory: Path) -> None:
        self._key, self._certificate = directory / "ca.key", directory / "ca.crt"
        files = ("-keyout", str(self._key), "-out", str(self._certificate))
        _openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=lab", "-days", "30", *files)
        self.bundle = b64encode(self._certificate.read_bytes()).decode()

    def reissue(self, recorded: str) -> dict[str, str]:
        """The `data` of a TLS Secret, base64: a new key, and its certificate with the subject and the extensions of the
        recorded one. KubeVirt's programs know each other by these."""
        key = _openssl("genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048")
        new_key = self._key.with_name("new.key")
        new_key.write_bytes(key)
        copied = ("-copy_extensions", "copyall")
        request = _openssl("x509", "-x509toreq", *copied, "-signkey", str(new_key), stdin=b64decode(recorded))
        issuer = ("-CA", str(self._certificate), "-CAkey", str(self._key), "-days", "30")
        certificate = _openssl("x509", "-req", *copied, *issuer, stdin=request)
        return {"tls.crt": b64encode(certificate).decode(), "tls.key": b64encode(key).decode()}


def read(directory: Path) -> list[Object]:
    """The objects of all files there, each of which is one object or a List."""
    files = [json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))]
    return [item for file in files for item in file.get("items", [file])]


def for_lab(objects: Iterable[Object], authority: Authority, address: str) -> dict[str, list[Object]]:
    """What the lab applies at each step of _STEPS, where virt-api listens at `address`.

    Raise ValueError for an object of a kind that it does not know.
    """
    steps: dict[str, list[Object]] = {step: [] for step in _STEPS.values()}
    for recorded in objects:
        kind, metadata = recorded["kind"], recorded["metadata"]
        if kind not in _STEPS:
            raise ValueError(f"{kind} {metadata['name']}: expected one of {', '.join(_STEPS)}")
        applied = copy.deepcopy(recorded)
        # The rest is of the cluster where it was recorded.
        applied["metadata"] = {key: metadata[key] for key in ("name", "namespace", "labels") if key in metadata}
        applied.pop("status", None)
        match kind:
            case "Secret":
                applied["data"] = authority.reissue(recorded["data"]["tls.crt"])
            case "ConfigMap":
                applied["data"] = {"ca-bundle": b64decode(authority.bundle).decode()}
            case "DaemonSet":
                _adapt_handler(applied["spec"]["template"]["spec"], address)
            case "APIService":
                if not _trust(applied["spec"], authority):
                    continue
            case "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration":
                applied["webhooks"] = [hook for hook in applied["webhooks"] if _trust(hook["clientConfig"], authority)]
        steps[_STEPS[kind]].append(applied)
    steps["base"].sort(key=lambda applied: applied["kind"] != "Namespace")
    steps["base"] += _service(address)
    return steps


def _trust(client: Object, authority: Authority) -> bool:
    """Have the API server trust virt-api's new certificate. Return False for a client of another service."""
    client["caBundle"] = authority.bundle
    return bool(client["service"]["name"] == _API)


def _adapt_handler(pod: Object, address: str) -> None:
    """Give virt-handler's pod the lab's images, the API server's address, and time for an emulated processor."""
    for container in (*pod["initContainers"], *pod["containers"]):
        handler = container["name"] == "virt-handler"
        container["image"] = build.VIRT_HANDLER if handler else build.VIRT_LAUNCHER
        container["imagePullPolicy"] = "IfNotPresent"
        if handler:
            # No kube-proxy routes the address of a Service there.
            container["env"] += [
                {"name": "KUBERNETES_SERVICE_HOST", "value": address},
                {"name": "KUBERNETES_SERVICE_PORT", "value": "6443"},
            ]
            for probe in ("livenessProbe", "readinessProbe"):
                container[probe] |= {"timeoutSeconds": 60, "failureThreshold": 20}


def _service(address: str) -> list[Object]:
    """virt-api's, which no pod answers."""
    metadata = {"name": _API, "namespace": NAMESPACE}
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {"ports": [{"port": 443, "targetPort": 8443}]},
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {**metadata, "labels": {"kubernetes.io/service-name": _API}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
            "ports": [{"port": 8443, "protocol": "TCP"}],
        },
    ]


def _openssl(*arguments: str, stdin: bytes = b"") -> bytes:
    return subprocess.run(["openssl", *arguments], input=stdin, capture_output=True, check=True).stdout
