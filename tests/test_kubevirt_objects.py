"""What the lab applies of the objects that a release's virt-operator writes into a cluster (tests/lab/kubevirt)."""

import contextlib
import json
import ssl
import subprocess
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import pytest

from tests.lab import build
from tests.lab.kubevirt.objects import Authority, Object, for_lab, read

CLIENT = "/CN=kubevirt.io:system:client:virt-handler"
SERVER = "/CN=virt-api.kubevirt.pod.cluster.local"
NAMES = ("-addext", "subjectAltName=DNS:virt-api,DNS:virt-api.kubevirt.svc")


def secret(name: str, scratch: Path, *certificate: str) -> Object:
    """A Secret with a certificate of another authority: its own."""
    files = ("-keyout", scratch / "recorded.key", "-out", scratch / "recorded.crt")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", *certificate, *files],
        stderr=subprocess.DEVNULL, check=True,
    )  # fmt: skip
    data = {"tls.crt": b64encode((scratch / "recorded.crt").read_bytes()).decode(), "tls.key": "a key"}
    return recorded("Secret", name, data=data, type="kubernetes.io/tls")


def recorded(kind: str, name: str, **more: Any) -> Object:
    """An object as `kubectl get -o json` prints it."""
    metadata = {
        "name": name,
        "namespace": "kubevirt",
        "labels": {"app.kubernetes.io/managed-by": "virt-operator"},
        "annotations": {"kubevirt.io/generation": "2"},
        "uid": "0a1b",
        "resourceVersion": "17",
        "ownerReferences": [{"kind": "KubeVirt", "name": "kubevirt", "uid": "2c3d"}],
    }
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, "status": {"phase": "Active"}, **more}


def client(service: str) -> Object:
    return {"service": {"name": service, "namespace": "kubevirt"}, "caBundle": "b2xk"}


def handler() -> Object:
    probe = {"httpGet": {"path": "/healthz"}, "timeoutSeconds": 10, "failureThreshold": 3}
    container = {
        "name": "virt-handler",
        "image": "registry.example/kubevirt/virt-handler:v1.9.0",
        "env": [{"name": "NODE_NAME"}],
        "livenessProbe": probe,
        "readinessProbe": probe,
    }
    labeller = {"name": "virt-launcher", "image": "registry.example/kubevirt/virt-launcher:v1.9.0"}
    pod = {"initContainers": [labeller], "containers": [container]}
    return recorded("DaemonSet", "virt-handler", spec={"template": {"spec": pod}})


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def applied(authority: Authority, *objects: Object) -> dict[str, list[Object]]:
    return for_lab(objects, authority, "10.88.0.1")


def test_objects_are_applied_without_what_their_own_cluster_added_and_the_namespace_first(authority: Authority) -> None:
    role, namespace = recorded("Role", "handler", rules=[{"verbs": ["get"]}]), recorded("Namespace", "kubevirt")
    first, second, service, endpoints = applied(authority, role, namespace)["base"]
    assert first["kind"] == "Namespace"
    labels = {"app.kubernetes.io/managed-by": "virt-operator"}
    metadata = {"name": "handler", "namespace": "kubevirt", "labels": labels}
    assert second == {"apiVersion": "v1", "kind": "Role", "metadata": metadata, "rules": [{"verbs": ["get"]}]}
    assert service["metadata"]["name"] == endpoints["metadata"]["labels"]["kubernetes.io/service-name"] == "virt-api"
    assert endpoints["endpoints"][0]["addresses"] == ["10.88.0.1"]


def test_certificates_are_new_with_the_recorded_names_and_the_api_server_trusts_them(
    authority: Authority, tmp_path: Path
) -> None:
    api, handler = secret("api", tmp_path, SERVER, *NAMES), secret("handler", tmp_path, CLIENT)
    bundle = recorded("ConfigMap", "kubevirt-ca", data={"ca-bundle": "old"})
    server, client, bundle = applied(authority, api, handler, bundle)["base"][:3]
    ends = {}
    for side, own in ((ssl.Purpose.CLIENT_AUTH, server), (ssl.Purpose.SERVER_AUTH, client)):
        for name, data in own["data"].items():
            (tmp_path / name).write_bytes(b64decode(data))
        ends[side] = ssl.create_default_context(side, cadata=bundle["data"]["ca-bundle"])
        ends[side].load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
        ends[side].verify_mode = ssl.CERT_REQUIRED
    first, second = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = ends[ssl.Purpose.SERVER_AUTH].wrap_bio(first, second, server_hostname="virt-api.kubevirt.svc")
    answering = ends[ssl.Purpose.CLIENT_AUTH].wrap_bio(second, first, server_side=True)
    for end in (asking, answering, asking, answering):
        with contextlib.suppress(ssl.SSLWantReadError):
            end.do_handshake()
    certificate = answering.getpeercert()
    assert certificate is not None
    assert certificate["subject"] == ((("commonName", CLIENT.removeprefix("/CN=")),),)


def test_what_virt_api_answers_trusts_the_new_authority_and_what_virt_operator_answers_is_left_out(
    authority: Authority,
) -> None:
    hooks = [
        {"name": "vms", "clientConfig": client("virt-api")},
        {"name": "kubevirts", "clientConfig": client("kubevirt-operator-webhook")},
    ]
    steps = applied(
        authority,
        recorded("ValidatingWebhookConfiguration", "virt-api-validator", webhooks=hooks),
        recorded("APIService", "v1.subresources.kubevirt.io", spec=client("virt-api")),
        recorded("APIService", "v1.template.kubevirt.io", spec=client("virt-template-api")),
    )
    webhooks, service = steps["webhooks"]
    (hook,) = webhooks["webhooks"]
    assert hook["name"] == "vms"
    assert hook["clientConfig"]["caBundle"] == service["spec"]["caBundle"] == authority.bundle
    assert service["metadata"]["name"] == "v1.subresources.kubevirt.io"


def test_the_handler_has_the_labs_images_the_api_servers_address_and_patient_probes(authority: Authority) -> None:
    (daemon_set,) = applied(authority, handler())["handler"]
    pod = daemon_set["spec"]["template"]["spec"]
    (container,), (labeller,) = pod["containers"], pod["initContainers"]
    assert (container["image"], labeller["image"]) == (build.VIRT_HANDLER, build.VIRT_LAUNCHER)
    assert {"name": "KUBERNETES_SERVICE_HOST", "value": "10.88.0.1"} in container["env"]
    patient = {"httpGet": {"path": "/healthz"}, "timeoutSeconds": 60, "failureThreshold": 20}
    assert container["livenessProbe"] == container["readinessProbe"] == patient


def test_an_object_of_a_kind_that_the_lab_does_not_know_is_refused_by_name(authority: Authority) -> None:
    with pytest.raises(ValueError, match=r"^Deployment virt-api: expected one of CustomResourceDefinition, "):
        applied(authority, recorded("Deployment", "virt-api"))


def test_a_file_has_a_list_or_one_object(tmp_path: Path) -> None:
    many = {"apiVersion": "v1", "kind": "List", "items": [recorded("Role", "a"), recorded("Role", "b")]}
    (tmp_path / "1.json").write_text(json.dumps(many))
    (tmp_path / "2.json").write_text(json.dumps(recorded("Role", "c")))
    assert [role["metadata"]["name"] for role in read(tmp_path)] == ["a", "b", "c"]
