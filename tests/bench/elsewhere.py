"""Two nodes' drivers beside the real API server and scheduler: a VM that would rather go to a node whose card cannot be
bound runs on the other one (KEP-5007): `python -m tests.bench.elsewhere`. Each step is checked.

The drivers have the rights of deploy/dra, with tokens that name their nodes. There is no kubelet: a stand-in has the
claim prepared once the pod is bound. The control plane is the one that the lab has built: `make lab`, once.
"""

import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import yaml

from pci.slices import DRIVER
from tests.apiserver import APIServer
from tests.bench.control_plane import ControlPlane, NotBuilt, running_control_plane, until
from tests.kernel import Kernel, answering, bind, make_nodes
from tests.plugin.dra.cluster import Cluster, DRAKubelet
from tests.processes import ROOT

_NODES = ("node-1", "node-2")
_CARDS = ("0000:01:00.0", "0000:01:00.1", "0000:e1:00.0", "0000:e1:00.1")
_DAILY = dict(zip(_CARDS, ("nvidia", "snd_hda_intel") * 2, strict=True))
_CONFIG = "serve: dra\nbind: when-claimed\n"
_NAMESPACE = "/api/v1/namespaces/kube-system"
_CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
_PLACES = {
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "ValidatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
    "DeviceClass": "/apis/resource.k8s.io/v1/deviceclasses",
}


def main() -> None:
    try:
        with running_control_plane() as plane, ExitStack() as stack:
            _apply(plane)
            first, second = (stack.enter_context(_node(plane, name)) for name in _NODES)
            for function in _CARDS:
                first[1].refusing.add((function, "vfio-pci"))
            _place(plane, second[0])
            _check_rights(plane)
    except NotBuilt as error:
        raise SystemExit(str(error)) from error


def _apply(plane: ControlPlane) -> None:
    files = [ROOT / "deploy/dra" / f"{name}.yaml" for name in ("rbac", "admission", "deviceclasses")]
    for file in files:
        for each in yaml.safe_load_all(file.read_text()):
            if each["kind"] == "ClusterRole":
                (patch,) = yaml.safe_load((ROOT / "deploy/dra/components/when-claimed/claims.yaml").read_text())
                each["rules"].append(patch["value"])
            plane.ask("POST", _PLACES[each["kind"]], each)
    plane.ask("POST", f"{_NAMESPACE}/serviceaccounts", {"metadata": {"name": "gpu-plugin"}})


@contextmanager
def _node(plane: ControlPlane, name: str) -> Iterator[tuple[Cluster, Kernel]]:
    """A node whose cards are with their daily drivers, its driver, and its kernel."""
    room = {"cpu": "8", "memory": "64Gi", "pods": "10"}
    status = {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}
    labels = {"kubernetes.io/hostname": name}
    plane.create([{"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status}])
    with tempfile.TemporaryDirectory(prefix="gl-", dir="/tmp") as place:
        directory, sys = Path(place), Path(place) / "sys"
        shutil.copytree(ROOT / "tests/fixtures/sysfs/two-rtx-3090", sys, symlinks=True)
        dev = make_nodes(sys, directory / "dev")
        (directory / "proc").mkdir()
        registry = directory / "reg"
        registry.mkdir()
        plane.kubeconfig(directory / "kubeconfig", _token(plane, name))
        with answering(sys, dev, _DAILY) as kernel:
            for address, driver in _DAILY.items():
                bind(sys, address, driver)
            for group in (dev / "vfio").glob("[0-9]*"):
                group.unlink()
            cluster = Cluster(directory, APIServer(), DRAKubelet(registry), sys)
            with cluster.driver(_CONFIG, "--state", directory / "former", "--node-name", name) as program:
                until(f"{name} promises conditions", lambda: _promises(plane, name), 60)
                try:
                    yield cluster, kernel
                except BaseException:
                    print(*program.log[-20:], sep="\n")
                    raise


def _token(plane: ControlPlane, node: str, prefix: str = "") -> str:
    """The token of a pod of the plugin on that node."""
    containers = [{"name": "c", "image": "none"}]
    spec = {"nodeName": node, "serviceAccountName": "gpu-plugin", "containers": containers}
    pod = {"metadata": {"name": f"{prefix}gpu-plugin-{node}"}, "spec": spec}
    made = plane.ask("POST", f"{_NAMESPACE}/pods", pod)
    bound = {"kind": "Pod", "apiVersion": "v1", "name": made["metadata"]["name"], "uid": made["metadata"]["uid"]}
    audiences = ["https://kubernetes.default.svc"]
    request = {"spec": {"boundObjectRef": bound, "expirationSeconds": 3600, "audiences": audiences}}
    return str(plane.ask("POST", f"{_NAMESPACE}/serviceaccounts/gpu-plugin/token", request)["status"]["token"])


def _promises(plane: ControlPlane, node: str) -> bool:
    slices = [each["spec"] for each in plane.every("ResourceSlice") if each["spec"]["nodeName"] == node]
    devices = [device for each in slices for device in each["devices"]]
    return len(devices) == 2 and all(each.get("bindingConditions") for each in devices)


def _told(plane: ControlPlane) -> Iterator[str]:
    for claim in plane.every("ResourceClaim"):
        for device in (claim.get("status") or {}).get("devices") or ():
            for one in device["conditions"]:
                yield f"{device['pool']} {device['device']} {one['type']}={one['status']}: {one['message']}"


def _place(plane: ControlPlane, other: Cluster) -> None:
    began = time.monotonic()
    claim = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": DRIVER}}]}}
    template = {"kind": "ResourceClaimTemplate", "metadata": {"name": "vm"}, "spec": {"spec": claim}}
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-1"]}]}
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": term}]}
    spec = {
        "affinity": {"nodeAffinity": preferred},
        "containers": [{"name": "c", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "vm"}],
    }
    plane.create([{"apiVersion": "resource.k8s.io/v1", **template}])
    plane.create([{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "vm"}, "spec": spec}])
    seen: list[str] = []

    def is_bound() -> bool:
        for line in set(_told(plane)) - {*seen}:
            seen.append(line)
            print(f"{time.monotonic() - began:5.1f} s  {line}")
        (pod,) = plane.every("Pod")
        return bool(pod["spec"].get("nodeName"))

    until("the pod has a node", is_bound, 300)
    (pod,) = plane.every("Pod")
    print(f"{time.monotonic() - began:5.1f} s  the pod is on {pod['spec']['nodeName']}")
    assert pod["spec"]["nodeName"] == "node-2"
    assert any("Failed=True" in line and line.startswith("node-1") for line in seen)
    (claim,) = plane.every("ResourceClaim")
    (answer,) = other.kubelet.prepare(claim).values()
    assert [device.pool_name for device in answer.devices] == ["node-2"], answer.error
    until("the status says so", lambda: "Prepared" in json.dumps(plane.every("ResourceClaim")), 30)


def _check_rights(plane: ControlPlane) -> None:
    """A driver writes the status of its own devices, and nothing else of a claim."""
    (claim,) = plane.every("ResourceClaim")
    path = f"{_CLAIMS}/{claim['metadata']['name']}/status"
    own, other = (_token(plane, node, "again-") for node in reversed(_NODES))
    told = [{**each, "data": {"by": "somebody"}} for each in claim["status"]["devices"]]
    written = plane.ask("PUT", path, {**claim, "status": {**claim["status"], "devices": told}}, own)
    for token, status in (
        (other, {**written["status"], "devices": claim["status"]["devices"]}),
        (own, {**written["status"], "reservedFor": []}),
        (own, {}),
    ):
        try:
            plane.ask("PUT", path, {**written, "status": status}, token)
        except RuntimeError as error:
            print("refused:", str(error).partition('"message":"')[2][:200])
        else:
            raise AssertionError(status)


if __name__ == "__main__":
    main()
