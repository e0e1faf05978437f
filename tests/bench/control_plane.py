"""Kubernetes' API server, scheduler and controllers on this machine, without a node: as the lab has built them, on
ports of their own, asked over HTTP."""

import http.client
import json
import re
import ssl
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.lab.cache import CACHE

Object = Mapping[str, Any]

_API, _ETCD, _PEER, _SCHEDULER, _CONTROLLERS = 26443, 22379, 22380, 26259, 26257
_TOKEN = "bench"
_WORKERS = 8
_CORE = "/api/v1"
_RESOURCE = "/apis/resource.k8s.io/v1"
_DEFAULT = "namespaces/default"
_PATHS = {
    "Node": f"{_CORE}/nodes",
    "Pod": f"{_CORE}/{_DEFAULT}/pods",
    "DeviceClass": f"{_RESOURCE}/deviceclasses",
    "ResourceSlice": f"{_RESOURCE}/resourceslices",
    "ResourceClaim": f"{_RESOURCE}/{_DEFAULT}/resourceclaims",
    "ResourceClaimTemplate": f"{_RESOURCE}/{_DEFAULT}/resourceclaimtemplates",
    "DeviceTaintRule": "/apis/resource.k8s.io/v1beta2/devicetaintrules",
}
_GATES = "--feature-gates=DRADeviceTaintRules=true,DRAListTypeAttributes=true"  # off by default in 1.36

_REQUESTS = re.compile(r'^apiserver_request_total\{.*?resource="(\w*)".*?verb="(\w+)".*?\} (\S+)$', re.MULTILINE)
#: Verbs of what changes something.
WRITES = ("POST", "PUT", "PATCH", "APPLY", "DELETE")
#: Seconds for which the API server surely keeps a connection that is idle.
_KEPT = 60.0


class NotBuilt(Exception):
    """The lab has not built Kubernetes here."""


class ControlPlane:
    """Its API, as an admin sees it, or who else has a token."""

    def __init__(self) -> None:
        self._threads = threading.local()

    def ask(self, method: str, path: str, content: Object | None = None, token: str = _TOKEN) -> Any:
        """The answer's JSON, or text. RuntimeError for any but a 2xx."""
        if not hasattr(self._threads, "connection") or time.monotonic() - self._threads.asked > _KEPT:
            unverified = ssl._create_unverified_context()
            self._threads.connection = http.client.HTTPSConnection("127.0.0.1", _API, timeout=60, context=unverified)
        connection: http.client.HTTPSConnection = self._threads.connection
        self._threads.asked = time.monotonic()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        try:
            connection.request(method, path, None if content is None else json.dumps(content), headers)
            answer = connection.getresponse()
            text = answer.read().decode()
        except (OSError, http.client.HTTPException):
            del self._threads.connection
            raise
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {text[:500]}")
        return json.loads(text) if text.startswith("{") else text

    def kubeconfig(self, path: Path, token: str) -> None:
        """Write a kubeconfig for whoever has the token."""
        path.write_text(json.dumps(_config(token)))

    def create(self, objects: Iterable[Object]) -> None:
        """Each with its status, where it has one: several at a time, in any order."""
        with ThreadPoolExecutor(_WORKERS) as workers:
            list(workers.map(self._create, objects))

    def _create(self, each: Object) -> None:
        path = _PATHS[each["kind"]]
        made = self.ask("POST", path, each)
        if "status" in each:
            self.ask("PUT", f"{path}/{each['metadata']['name']}/status", {**made, "status": each["status"]})

    @property
    def minor(self) -> int:
        """The minor number of its version: 36."""
        return int(self.ask("GET", "/version")["minor"])

    def every(self, kind: str) -> list[Any]:
        items: list[Any] = self.ask("GET", _PATHS[kind])["items"]
        return [{"apiVersion": "resource.k8s.io/v1", "kind": kind, **item} for item in items]

    def requests(self, *verbs: str) -> Counter[str]:
        """How many requests of these verbs there have been since the start, by resource."""
        counts: Counter[str] = Counter()
        for resource, verb, number in _REQUESTS.findall(self.ask("GET", "/metrics")):
            if verb in verbs:
                counts[resource] += int(float(number))
        return counts


@contextmanager
def running_control_plane(version: str | None = None) -> Iterator[ControlPlane]:
    """Ended with all that it has when this ends; NotBuilt where the lab's programs are not there. `version`: one of
    those that the lab does not take by itself, as 1.37."""
    name = "kubernetes" if version is None else f"kubernetes-{version}"
    programs = sorted(CACHE.glob(f"{name}-{'?' * 12}/kubernetes"), key=lambda path: path.stat().st_mtime)
    if not programs:
        build = "make lab" if version is None else f"KUBERNETES={version} python -m tests.lab.build"
        raise NotBuilt(f"there is no {name} in {CACHE}; {build} builds it")
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        key = home / "sa.key"
        make_key = ["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(key)]
        subprocess.run(make_key, check=True, capture_output=True)
        (home / "tokens.csv").write_text(f'{_TOKEN},admin,admin,"system:masters"\n')
        config = home / "config"
        config.write_text(json.dumps(_config()))
        running: list[subprocess.Popen[bytes]] = []

        def start(name: str, *arguments: str) -> None:
            (home / name).symlink_to(programs[-1])
            with (home / f"{name}.log").open("wb") as log:
                command = ["nice", "-n", "15", str(home / name), *arguments]
                running.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=home))

        try:
            etcd, peer = f"http://127.0.0.1:{_ETCD}", f"http://127.0.0.1:{_PEER}"
            start(
                "etcd", f"--data-dir={home}/data", "--unsafe-no-fsync", "--log-level=error",
                f"--listen-client-urls={etcd}", f"--advertise-client-urls={etcd}", f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}",
            )  # fmt: skip
            start(
                "kube-apiserver", f"--etcd-servers={etcd}", f"--secure-port={_API}", "--bind-address=127.0.0.1",
                f"--cert-dir={home}/pki", f"--token-auth-file={home}/tokens.csv", "--authorization-mode=RBAC",
                "--service-cluster-ip-range=10.96.0.0/24", f"--service-account-key-file={key}",
                "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-signing-key-file={key}",
                "--disable-admission-plugins=TaintNodesByCondition,ServiceAccount", _GATES,
                "--runtime-config=resource.k8s.io/v1beta2=true",
            )  # fmt: skip
            plane = ControlPlane()
            until("the API server is ready", lambda: plane.ask("GET", "/readyz") == "ok", 120)
            configs = [
                f"--{what}={config}" for what in ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
            ]
            common = [*configs, "--leader-elect=false", "--bind-address=127.0.0.1"]
            start("kube-scheduler", *common, f"--secure-port={_SCHEDULER}", _GATES)
            start(
                "kube-controller-manager", *common, f"--secure-port={_CONTROLLERS}",
                "--controllers=resourceclaim-controller", f"--flex-volume-plugin-dir={home}/volumes",
            )  # fmt: skip
            yield plane
        finally:
            for process in reversed(running):
                process.kill()
                process.wait()


def until(what: str, holds: Callable[[], bool], seconds: float, pause: float = 0.1) -> None:
    """Wait for it, asking after each pause; TimeoutError where it does not come true."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if holds():
                return
        except OSError:
            pass  # it does not listen yet
        except RuntimeError as error:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: {error}") from error
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds} s")
        time.sleep(pause)


def _config(token: str = _TOKEN) -> Object:
    server = {"server": f"https://127.0.0.1:{_API}", "insecure-skip-tls-verify": True}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "bench", "cluster": server}],
        "users": [{"name": "admin", "user": {"token": token}}],
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "admin"}}],
        "current-context": "bench",
    }
