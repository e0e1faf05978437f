"""deploy/chart with the real helm and API server: for each combination of its values it has the objects that kustomize
makes of deploy/; it is installed, upgraded and rolled back, and leaves nothing. There is no node here:
test_getting_started.py installs by it on one.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from deploy.oci import files
from tests.deploy.chart import CHART, DEPLOY
from tests.lab import build
from tests.lab.control_plane import Cluster
from tests.lab.page import OLDER, older_chart
from tests.lab.waiting import CommandFailed, Patience

NAMESPACE = "kube-system"
VGPUS = {"vgpus": [{"vendor": "10de", "types": {"L40S-24Q": 2}}]}
MANAGER = {"fabric": {"manager": "/run/nvidia-fabricmanager/socket"}}
#: CRDs as Prometheus' operator brings them, without their schemas.
OF_THE_OPERATOR: list[dict[str, Any]] = [
    {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{kind.lower()}s.monitoring.coreos.com",
            "annotations": {"api-approved.kubernetes.io": "https://github.com/prometheus-operator"},
        },
        "spec": {
            "group": "monitoring.coreos.com",
            "names": {"kind": kind, "plural": f"{kind.lower()}s"},
            "scope": "Namespaced",
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
                }
            ],
        },
    }
    for kind in ("PodMonitor", "PrometheusRule")
]

#: Kinds to which kustomize gives a namespace that the API server ignores.
_CLUSTERS_OWN = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "DeviceClass")
_HAS_MUTATING_POLICIES = build.kubernetes_minor() >= 36

Objects = dict[tuple[str, str], Any]


def combinations() -> Iterator[dict[str, Any]]:
    """Yield each combination of the values that are components of kustomize's."""
    for dra in (False, True):
        for bind in ("never", "at-start", *(["when-claimed"] if dra else [])):
            for seccomp in (False, True):
                for fabric in ("", "enabled", *(["moduleIds"] if bind == "at-start" else [])):
                    yield {
                        "dra": dra,
                        "bind": bind,
                        "seccomp": seccomp,
                        "vgpus": {"enabled": seccomp},
                        "fabric": {"enabled": bool(fabric), "moduleIds": fabric == "moduleIds"},
                        "tenants": {"enabled": seccomp, "tolerations": seccomp and _HAS_MUTATING_POLICIES},
                        "roles": seccomp,
                        "monitoring": dict.fromkeys(("podMonitor", "alerts", "hours", "dashboard"), seccomp),
                        "config": config(dra, bind) | (MANAGER if fabric else {}) | (VGPUS if seccomp else {})
                        if fabric or seccomp
                        else {},
                    }


def config(dra: bool, bind: str) -> dict[str, Any]:
    return ({"serve": "dra"} if dra else {}) | ({"bind": bind} if bind == "when-claimed" else {})


def in_short(values: Mapping[str, Any]) -> str:
    turned = ["dra"] * values["dra"] + [values["bind"]] + ["seccomp"] * values["seccomp"]
    return " ".join([*turned, *(name for name, is_on in values["fabric"].items() if is_on)])


def overlay(values: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Return a kustomization, for that directory, that applies what the chart does with these values."""
    turned = {
        "plugin/components/seccomp": values["seccomp"],
        "plugin/components/vgpus": values["vgpus"]["enabled"],
        "plugin/components/bind": values["bind"] == "at-start",
        "plugin/components/fabric": values["fabric"]["enabled"],
        "plugin/components/module-ids": values["fabric"]["moduleIds"],
        "plugin/components/pod-monitor": values["monitoring"]["podMonitor"],
        "plugin/components/alerts": values["monitoring"]["alerts"],
        "plugin/components/hours": values["monitoring"]["hours"],
        "plugin/components/dashboard": values["monitoring"]["dashboard"],
        "dra/components/when-claimed": values["bind"] == "when-claimed",
    }
    bases = {
        "tenants": values["tenants"]["enabled"],
        "tenants/tolerations": values["tenants"]["tolerations"],
        "roles": values["roles"],
    }
    found = values["config"] or (config(values["dra"], values["bind"]) if values["bind"] == "when-claimed" else {})
    generator = {
        "name": "gpu-plugin",
        "namespace": NAMESPACE,
        "behavior": "replace",
        "literals": [f"config.yaml={json.dumps(found)}"],
    }
    deploy = os.path.relpath(DEPLOY, directory)
    return {
        "resources": [
            f"{deploy}/{'dra' if values['dra'] else 'plugin'}",
            *(f"{deploy}/{base}" for base, is_on in bases.items() if is_on),
        ],
        "components": [f"{deploy}/{component}" for component, is_on in turned.items() if is_on],
        "configMapGenerator": [generator] if found else [],
    }


def comparable(text: str) -> Objects:
    """Return the objects by kind and name: without a generated name's hash, lists in an order of their own."""
    objects = {}
    for found in filter(None, yaml.safe_load_all(re.sub(r"(gpu-plugin-seccomp)-[a-z0-9]+", r"\1", text))):
        if found["kind"] in _CLUSTERS_OWN:
            found["metadata"].pop("namespace", None)
        if found["kind"] == "ConfigMap" and "config.yaml" in found.get("data", ()):
            found["data"]["config.yaml"] = yaml.safe_load(found["data"]["config.yaml"])
        if found["kind"] == "DaemonSet":
            pod = found["spec"]["template"]["spec"]
            for container in (*pod["containers"], *pod.get("initContainers", [])):
                container["volumeMounts"].sort(key=lambda mount: str(mount["mountPath"]))
                container.get("env", []).sort(key=lambda variable: str(variable["name"]))
            pod["volumes"].sort(key=lambda volume: str(volume["name"]))
        objects[found["kind"], found["metadata"]["name"]] = found
    return objects


def rendered(cluster: Cluster, values: Mapping[str, Any]) -> str:
    return cluster.helm("template", "gpu-plugin", str(CHART), "-f", "-", stdin=json.dumps(values))


@pytest.fixture(scope="module", autouse=True)
def _monitoring(cluster: Cluster) -> None:
    for each in OF_THE_OPERATOR:
        cluster.apply(each)
        cluster.kubectl("wait", "--for=condition=Established", f"crd/{each['metadata']['name']}")


@pytest.mark.parametrize("values", [*combinations()], ids=in_short)
def test_the_chart_has_the_objects_of_kustomize_and_the_api_server_takes_them(
    cluster: Cluster, tmp_path: Path, values: dict[str, Any]
) -> None:
    (tmp_path / "kustomization.yaml").write_text(json.dumps(overlay(values, tmp_path)))
    of_helm, of_kustomize = rendered(cluster, values), cluster.kubectl("kustomize", str(tmp_path))
    assert comparable(of_helm) == comparable(of_kustomize)
    assert "gpu-plugin" in cluster.kubectl("apply", "--dry-run=server", "-f", "-", stdin=of_helm)


FABRIC = "bind=at-start,fabric.enabled=true,config.fabric.resume=true"
#: Values that are no component of kustomize's, each with the lines that the chart then has.
TURNED = {
    "image.repository=registry.example/gpu-plugin": {"image: registry.example/gpu-plugin:VERSION"},
    "image.tag=1.2.3": {"image: gpu-plugin:1.2.3"},
    f"image.tag=1.2.3,image.digest=sha256:{'0' * 64}": {f"image: gpu-plugin@sha256:{'0' * 64}"},
    "image.pullSecrets[0].name=registry": {"imagePullSecrets:", "- name: registry"},
    "config.groups=together": {"groups: together"},
    "arguments[0]=--rescan=5": {"- --rescan=5"},
    f"{FABRIC},fabric.library=/lib/libnvfm.so.1": {'path: "/lib/libnvfm.so.1"'},
    f"{FABRIC},fabric.moduleIds=true,fabric.driver=/run/nvidia/driver": {'path: "/run/nvidia/driver"'},
    "vgpus.enabled=true,config.vgpus[0].vendor=10de,config.vgpus[0].types.L40S-24Q=2,vgpus.driver=/run/nvidia/driver": {
        'path: "/run/nvidia/driver"'
    },
    "monitoring.namespace=metrics": {'kubernetes.io/metadata.name: "metrics"'},
    "monitoring.podMonitor=true": {"kind: PodMonitor"},
    "monitoring.alerts=true": {"kind: PrometheusRule", "- alert: GPUPluginSeesNoNode"},
    "monitoring.hours=true": {"kind: PrometheusRule", "- record: gpu:seconds"},
    "monitoring.dashboard=true": {"grafana_dashboard: '1'", '"legendFormat": "{{state}}"'},
    "tenants.enabled=true,tenants.namespaces.ml[0]=amd.com/*,tenants.namespaces.ml[1]=x": {'ml: "amd.com/*\\nx"'},
    "tenants.quotas.ml.cpu=8": {"kind: ResourceQuota", "namespace: ml", "cpu: 8"},
    "roles=true": {"name: gpuvm-owner"},
    "nodeSelector.gpu=yes": {'gpu: "yes"'},
    "resources.limits.memory=1Gi": {"memory: 1Gi"},
    "networkPolicy=false": set[str](),
}


@pytest.mark.parametrize("values", TURNED)
def test_a_value_is_where_it_belongs(cluster: Cluster, values: str) -> None:
    lines = {line.strip() for line in cluster.helm("template", "gpu-plugin", str(CHART), "--set", values).splitlines()}
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["version"]
    assert {line.replace("VERSION", version) for line in TURNED[values]} <= lines
    assert ("kind: NetworkPolicy" in lines) == ("networkPolicy" not in values)


REFUSED = {
    "dra=yes": "at '/dra': got string, want boolean",
    "bind=always": "at '/bind': value must be one of 'never', 'at-start', 'when-claimed'",
    "bin=never": "additional properties 'bin' not allowed",
    "config.offer[0].resorce=x": "at '/config/offer/0': additional properties 'resorce' not allowed",
    "config.offer[0].device=10de": "at '/config/offer/0/device'",
    "config.offer[0].resource=nodomain": "at '/config/offer/0/resource'",
    "arguments[0]=--rescn=5": "at '/arguments/0'",
    "resources.limits.memory=lots": "at '/resources/limits/memory'",
    "monitoring.namespace=Metrics": "at '/monitoring/namespace'",
    "image.digest=abc": "at '/image/digest'",
    "tenants.namespaces.ml=x": "at '/tenants/namespaces/ml'",
    "bind=when-claimed": "bind: when-claimed is for cards that DRA serves; set dra: true",
    "vgpus.enabled=true": "vgpus.enabled: needs config.vgpus",
    "fabric.enabled=true": "fabric.enabled: needs config.fabric",
    "config.fabric.resume=true": "config.fabric: needs fabric.enabled: true",
    "fabric.moduleIds=true": "fabric.moduleIds: needs fabric.enabled: true and bind: at-start",
    "config.serve=dra": "config.serve: dra needs dra: true",
    "config.offer[0].vendor=10de,config.offer[0].serve=dra": "config.offer.1.serve: dra needs dra: true",
    "dra=true,config.serve=dra,config.bind=when-claimed": "config.bind: is when-claimed if bind is",
}


@pytest.mark.parametrize("values", REFUSED)
def test_a_wrong_value_is_refused_by_name(cluster: Cluster, values: str) -> None:
    with pytest.raises(CommandFailed, match=re.escape(REFUSED[values])):
        cluster.helm("template", "gpu-plugin", str(CHART), "--set", values)


def _everything(cluster: Cluster) -> set[str]:
    """The names of all objects, but of those that come and go by themselves."""
    kinds = cluster.kubectl("api-resources", "--verbs=list", "-o", "name").split()
    kinds = [kind for kind in kinds if not re.match(r"events|leases|componentstatuses|ipaddresses", kind)]
    return {
        f"{one['kind']} {one['metadata'].get('namespace', '')} {one['metadata']['name']}"
        for one in cluster.get_all(",".join(kinds), "-A")
    }


def test_a_release_is_installed_upgraded_and_rolled_back_and_leaves_nothing(cluster: Cluster, tmp_path: Path) -> None:
    def image() -> str:
        return str(
            cluster.get("daemonset", "gpu-plugin", "-n", NAMESPACE)["spec"]["template"]["spec"]["containers"][0][
                "image"
            ]
        )

    def has_rights() -> bool:
        return "gpu-plugin" in cluster.kubectl("get", "clusterrolebindings", "-o", "name")

    older = older_chart(tmp_path / "older")
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["version"]
    before = _everything(cluster)
    dra = {"dra": True, "bind": "when-claimed", "seccomp": True, "monitoring": {"podMonitor": True}}
    cluster.helm("install", "gpu-plugin", str(older), "-f", "-", stdin=json.dumps(dra))
    assert (image(), has_rights()) == (f"gpu-plugin:{OLDER}", True)
    cluster.helm("upgrade", "gpu-plugin", str(CHART), "--set", "bind=at-start")
    assert (image(), has_rights()) == (f"gpu-plugin:{version}", False)
    cluster.helm("rollback", "gpu-plugin")
    assert (image(), has_rights()) == (f"gpu-plugin:{OLDER}", True)
    cluster.helm("uninstall", "gpu-plugin", "--wait")
    Patience().until("nothing is left", lambda: _everything(cluster) == before, 60)


def test_helm_pulls_the_archive_of_a_release_from_a_registry(tmp_path: Path) -> None:
    """A registry that has the archive's files, by the names of the distribution specification."""
    helm = ["helm", "--kubeconfig", "/dev/null"]
    executable = build.kubernetes() / "kubernetes"
    environ = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}

    def run(*arguments: str | Path) -> None:
        argv = [*helm, *map(str, arguments)]
        subprocess.run(argv, executable=executable, env=environ, check=True, capture_output=True)

    run("package", CHART, "--destination", tmp_path / "packed")
    (packed,) = (tmp_path / "packed").iterdir()
    with registry(files(packed.read_bytes(), created=0)) as address:
        version = packed.stem.removeprefix("gpu-plugin-")
        chart = f"oci://{address}/gpu-plugin"
        run("pull", chart, "--version", version, "--plain-http", "--destination", tmp_path)
    assert (tmp_path / packed.name).read_bytes() == packed.read_bytes()


@contextmanager
def registry(archive: Mapping[str, bytes]) -> Iterator[str]:
    """Serve the blobs and the manifest of an OCI archive; its address."""
    (manifest,) = json.loads(archive["index.json"])["manifests"]

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.path.rpartition("/")[2]
            digest = asked if asked.startswith("sha256:") else manifest["digest"]
            content = archive[f"blobs/{digest.replace(':', '/')}"]
            self.send_response(200)
            if "/manifests/" in self.path:
                self.send_header("Content-Type", manifest["mediaType"])
                self.send_header("Docker-Content-Digest", digest)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        do_HEAD = do_GET  # noqa: N815 (the name that http.server calls)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
