"""Kubernetes' control plane in the box, and kubectl to talk to it."""

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.lab import build
from tests.lab.box import CONTROL_PLANE, Box
from tests.lab.waiting import CommandFailed

_HOME = "/run/lab/kubernetes"
_SERVER = "https://127.0.0.1:6443"
#: Where the API server has what is looked at again and again, and where a kubectl passes on what is asked of it: a new
#: process for each look would take as much of a processor as the node does meanwhile.
_PROXY = f"{_HOME}/proxy.sock"
_OFTEN = {
    **dict.fromkeys(("pod", "pods"), "api/v1/namespaces/default/pods"),
    "node": "api/v1/nodes",
    "vmi": "apis/kubevirt.io/v1/namespaces/default/virtualmachineinstances",
}
#: Every node there is by its own name, so that the Node authorizer is in force.
_NODES = ("modern", "legacy", "bare", "kubevirt")


class Cluster:
    """kubectl as the cluster's admin."""

    def __init__(self, box: Box) -> None:
        self.box = box

    def kubectl(self, *arguments: str, stdin: str | None = None, seconds: float = 60) -> str:
        """Its standard output. CommandFailed where it fails, subprocess.TimeoutExpired where it does not end."""
        return self._output(self.argv(*arguments), stdin, seconds)

    def helm(self, *arguments: str, stdin: str | None = None) -> str:
        """The same of helm, which keeps its releases in kube-system here."""
        return self._output(
            (f"{_HOME}/helm", "--kubeconfig", f"{_HOME}/admin.conf", "-n", "kube-system", *arguments), stdin, 60
        )

    def _output(self, argv: tuple[str, ...], stdin: str | None, seconds: float) -> str:
        done = self.box.run(*argv, stdin=stdin, seconds=seconds)
        if done.returncode != 0:
            raise CommandFailed(f"{' '.join(argv)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    @staticmethod
    def argv(*arguments: str) -> tuple[str, ...]:
        """A kubectl's command line in the box."""
        return (f"{_HOME}/kubectl", "--kubeconfig", f"{_HOME}/admin.conf", "--cache-dir", f"{_HOME}/cache", *arguments)

    def apply(self, *objects: dict[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", stdin="\n---\n".join(map(json.dumps, objects)))

    def get(self, kind: str, name: str, *arguments: str) -> dict[str, Any]:
        often = kind in _OFTEN and not arguments
        text = (
            self._read(f"{_OFTEN[kind]}/{name}") if often else self.kubectl("get", kind, name, "-o", "json", *arguments)
        )
        found: dict[str, Any] = json.loads(text)
        return found

    def get_all(self, kinds: str, *arguments: str) -> list[dict[str, Any]]:
        """The objects of a kind, or of several with commas between them."""
        if kinds in _OFTEN and arguments[:1] == ("-l",) and len(arguments) == 2:
            text = self._read(f"{_OFTEN[kinds]}?labelSelector={quote(arguments[1])}")
        else:
            text = self.kubectl("get", kinds, "-o", "json", *arguments)
        found: dict[str, list[dict[str, Any]]] = json.loads(text)
        return found["items"]

    def read(self, path: str) -> dict[str, Any]:
        """What the API server has at a path, like api/v1/pods."""
        found: dict[str, Any] = json.loads(self._read(path))
        return found

    def tried(self, path: str, each: Mapping[str, Any]) -> dict[str, Any]:
        """What an object would be at a path, if it were made. CommandFailed, in the server's words, if it were not."""
        found: dict[str, Any] = json.loads(self._ask("POST", f"{path}?dryRun=All", each, HTTPStatus.CREATED))
        return found

    def patched(self, path: str, patch: Mapping[str, Any]) -> None:
        """Merge this into the object at a path."""
        self._ask("PATCH", path, patch)

    def _read(self, path: str) -> str:
        return self._ask("GET", path)

    def _ask(
        self, method: str, path: str, content: Mapping[str, Any] | None = None, expected: HTTPStatus = HTTPStatus.OK
    ) -> str:
        connection = _Connection(self.box.path(_PROXY), self.box.patience.allowed(60))
        try:
            body = None if content is None else json.dumps(content)
            connection.request(
                method, f"/{path}", body, {"Content-Type": f"application/{'merge-patch+' * (method == 'PATCH')}json"}
            )
            answer = connection.getresponse()
            text = answer.read().decode()
        except (OSError, HTTPException) as error:
            raise CommandFailed(f"{path}: {error}") from error
        finally:
            connection.close()
        if answer.status != expected:
            raise CommandFailed(f"{path}: {text}")
        return text

    def delete(self, kind: str, name: str) -> None:
        """And wait until it is gone, which it may be already."""
        self.kubectl("delete", kind, name, "--ignore-not-found", "--timeout=0", seconds=300)


class _Connection(HTTPConnection):
    """To a Unix socket, whose answers come within so many seconds."""

    def __init__(self, path: Path, seconds: float) -> None:
        super().__init__("localhost", timeout=seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


@contextmanager
def running_control_plane(box: Box) -> Iterator[Cluster]:
    """etcd, API server, controllers and scheduler, until the box ends; ready when a pod could be made."""
    home = box.path(_HOME)
    home.mkdir()
    for name in ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "helm"):
        (home / name).symlink_to(build.kubernetes() / "kubernetes")
    _write_credentials(box, home)
    box.spawn("etcd", f"{_HOME}/etcd", "--data-dir", f"{_HOME}/data", "--unsafe-no-fsync", "--log-level", "warn")
    box.spawn(
        "kube-apiserver", f"{_HOME}/kube-apiserver",
        "--etcd-servers", "http://127.0.0.1:2379",
        "--advertise-address", CONTROL_PLANE,
        "--cert-dir", f"{_HOME}/pki",
        "--token-auth-file", f"{_HOME}/tokens.csv",
        "--authorization-mode", "Node,RBAC",
        "--service-cluster-ip-range", "10.96.0.0/24",
        "--service-account-issuer", "https://kubernetes.default.svc",
        "--service-account-key-file", f"{_HOME}/sa.key",
        "--service-account-signing-key-file", f"{_HOME}/sa.key",
        "--allow-privileged",
        "--kubelet-preferred-address-types", "InternalIP",
        # It asks other API servers, as KubeVirt's, by their pods' addresses, and says for whom.
        "--enable-aggregator-routing",
        "--requestheader-client-ca-file", f"{_HOME}/front.crt",
        "--requestheader-allowed-names", "front",
        "--requestheader-username-headers", "X-Remote-User",
        "--requestheader-group-headers", "X-Remote-Group",
        "--requestheader-extra-headers-prefix", "X-Remote-Extra-",
        "--proxy-client-cert-file", f"{_HOME}/front.crt",
        "--proxy-client-key-file", f"{_HOME}/front.key",
        *(f"--feature-gates={gate}={str(on).lower()}" for gate, on in build.feature_gates().items()),
    )  # fmt: skip
    cluster = Cluster(box)
    box.until("the API server is ready", lambda: cluster.kubectl("get", "--raw", "/readyz") == "ok", 120)
    box.spawn("proxy", *cluster.argv("proxy", f"--unix-socket={_PROXY}"))
    credentials = [
        f"--{what}={_HOME}/admin.conf"
        for what in ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
    ]
    box.spawn("kube-scheduler", f"{_HOME}/kube-scheduler", *credentials, "--leader-elect=false")
    box.spawn(
        "kube-controller-manager", f"{_HOME}/kube-controller-manager", *credentials, "--leader-elect=false",
        "--service-account-private-key-file", f"{_HOME}/sa.key",
        "--root-ca-file", f"{_HOME}/pki/apiserver.crt",
        "--flex-volume-plugin-dir", f"{_HOME}/volumes",
    )  # fmt: skip
    box.until("the default service account is there", lambda: cluster.get("serviceaccount", "default"), 120)
    yield cluster


def _write_credentials(box: Box, home: Path) -> None:
    box.run(
        "openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", f"{_HOME}/sa.key"
    ).check_returncode()
    box.run(
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
        "-subj", "/CN=front", "-days", "30", "-keyout", f"{_HOME}/front.key", "-out", f"{_HOME}/front.crt",
    ).check_returncode()  # fmt: skip
    tokens = [
        'admin,admin,admin,"system:masters"',
        *(f'{node},system:node:{node},{node},"system:nodes"' for node in _NODES),
    ]
    (home / "tokens.csv").write_text("\n".join(tokens))
    (home / "admin.conf").write_text(
        json.dumps({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "lab", "cluster": {"server": _SERVER, "insecure-skip-tls-verify": True}}
            ],
            "users": [{"name": "admin", "user": {"token": "admin"}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "admin"}}],
            "current-context": "lab",
        })
    )  # fmt: skip
