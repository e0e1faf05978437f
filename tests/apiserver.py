"""A stand-in for the API server: real HTTP, and its habits as far as a DRA driver meets them.

As the API server does: every write has a new resourceVersion and replacing an object takes the one that it has (409
otherwise); a watch sends what was written after a version, and 410 where that is forgotten; what it does not accept is
422; it adds the time to a taint, and drops the fields of features that are off. It can be slow, go away and come back.
"""

import contextlib
import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
_CLAIMS = "/apis/resource.k8s.io/v1/resourceclaims"  # of all namespaces
_CONDITIONS = ("bindingConditions", "bindingFailureConditions")


class APIServer:
    """`objects` by path. `takes_taints`, `takes_conditions` and `takes_counters` are whether the feature is on;
    `refuses_counters`: as where they have to be in one slice with their devices. `forbids` has the methods that nobody
    may ask claims by; `writes` counts those of slices, `requests` everything, and `waiting` those that wait for an
    answer while it `is_silent`. `errors` are the next answers, in place of what was asked for: status,
    headers and text.
    """

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.takes_taints = self.takes_conditions = self.takes_counters = True
        self.refuses_counters = False
        self.forbids: set[str] = set()
        self.is_silent = False
        self.errors: list[tuple[int, dict[str, str], bytes]] = []
        self.writes = 0
        self.requests = 0
        self.waiting = 0
        self._version = 1
        self._events: list[tuple[int, str, str, dict[str, Any]]] = []
        self._forgotten = 0
        self._changed = threading.Condition()
        self._server: _Server | None = None
        self.port = 0

    # Life.

    def start(self) -> None:
        self._server = _Server(("127.0.0.1", self.port), _Handler)
        self._server.api = self
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=[0.01], daemon=True).start()

    def stop(self) -> None:
        """Go away, with every connection."""
        assert self._server is not None
        server, self._server = self._server, None
        server.gone = True
        with self._changed:
            self._changed.notify_all()
        server.shutdown()
        server.server_close()
        server.close_connections()

    def kubeconfig(self, path: Path) -> Path:
        # As in a pod, where one CA is known: the system's would be some of the client's memory.
        server = {"server": f"http://127.0.0.1:{self.port}", "insecure-skip-tls-verify": True}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "here"}}],
            "clusters": [{"name": "here", "cluster": server}],
            "users": [{"name": "here", "user": {"token": "anyone"}}],
        }
        path.write_text(yaml.safe_dump(config))
        return path

    # What the test does by itself.

    def slices(self, node: str | None = None) -> list[dict[str, Any]]:
        with self._changed:
            return [
                deepcopy(each)
                for path, each in sorted(self.objects.items())
                if path.startswith(f"{SLICES}/") and node in (None, each["spec"]["nodeName"])
            ]

    def put(self, path: str, new: dict[str, Any]) -> dict[str, Any]:
        """Write an object as somebody else would."""
        with self._changed:
            return self._store(path, deepcopy(new))

    def remove(self, path: str) -> None:
        with self._changed:
            self._remove(path)

    def forget(self) -> None:
        """Compact: a watch from before now is told 410."""
        with self._changed:
            self._forgotten = self._version
            self._changed.notify_all()

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Answer nothing within the block."""
        self.is_silent = True
        try:
            yield
        finally:
            with self._changed:
                self.is_silent = False
                self._changed.notify_all()

    def add_node(self, name: str) -> None:
        self.put(f"/api/v1/nodes/{name}", {"metadata": {"name": name, "uid": str(uuid.uuid4())}})

    # Requests.

    def wait_to_answer(self) -> None:
        with self._changed:
            self.waiting += 1
            self._changed.wait_for(lambda: not self.is_silent)
            self.waiting -= 1

    def answer(self, method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        with self._changed:
            self.requests += 1
            if method in self.forbids and "/resourceclaims" in path:
                return _status(403, "Forbidden", path)
            if method == "GET" and path in (SLICES, _CLAIMS):
                return 200, {"metadata": {"resourceVersion": str(self._version)}, "items": self._selected(path, query)}
            path, part, _ = path.partition("/status")
            if method == "POST":
                path = f"{path}/{body['metadata']['name']}"
                if path in self.objects:
                    return _status(409, "AlreadyExists", path)
            elif path not in self.objects:
                return _status(404, "NotFound", path)
            if method == "GET":
                return 200, self.objects[path]
            if method == "DELETE":
                self.writes += 1
                self._remove(path)
                return 200, {"kind": "Status", "status": "Success"}
            if method == "PUT":
                if body["metadata"].get("resourceVersion") != self.objects[path]["metadata"]["resourceVersion"]:
                    return _status(409, "Conflict", path)
                if part:
                    known = self.objects[path]
                    known["status"] |= {"devices": body["status"].get("devices", [])}
                    return 200, self._store(path, known)
                if body["spec"]["nodeName"] != self.objects[path]["spec"]["nodeName"]:
                    return _status(422, "Invalid", "spec.nodeName: field is immutable")
            if self.refuses_counters and any("consumesCounters" in each for each in body["spec"].get("devices", ())):
                return _status(422, "Invalid", "spec.devices[0].consumesCounters[0].counterSet: Not found")
            if path.startswith(SLICES) and (wrong := _wrong(body)) is not None:
                return _status(422, "Invalid", wrong)
            self.writes += 1
            return 200, self._store(path, body)

    def changes(self, version: int, path: str, query: dict[str, str], server: "_Server") -> Iterator[dict[str, Any]]:
        while True:
            with self._changed:
                if version < self._forgotten:
                    yield {"type": "ERROR", "object": _status(410, "Expired", "too old resource version")[1]}
                    return
                news = [event for event in self._events if event[0] > version]
                if not news and not server.gone:
                    self._changed.wait(1.0)
                if server.gone:
                    return
            for _, kind, its, each in news:
                if _is_in(path, its) and _fits(each, query):
                    yield {"type": kind, "object": each}
            version = max([version, *(event[0] for event in news)])

    def _selected(self, path: str, query: dict[str, str]) -> list[dict[str, Any]]:
        return [each for its, each in sorted(self.objects.items()) if _is_in(path, its) and _fits(each, query)]

    def _store(self, path: str, new: dict[str, Any]) -> dict[str, Any]:
        self._version += 1
        kind = "MODIFIED" if path in self.objects else "ADDED"
        before = self.objects.get(path, {"metadata": {}})["metadata"]
        new["metadata"] = {"uid": before.get("uid", str(uuid.uuid4())), **new["metadata"]}
        new["metadata"]["resourceVersion"] = str(self._version)
        if path.startswith(SLICES) and not self.takes_counters:
            new["spec"].pop("sharedCounters", None)
            for device in new["spec"].get("devices", ()):
                device.pop("consumesCounters", None)
        for device in (new.get("spec") or {}).get("devices") or () if path.startswith(SLICES) else ():
            if not self.takes_taints:
                device.pop("taints", None)
            for field in () if self.takes_conditions else _CONDITIONS:
                device.pop(field, None)
            for taint in device.get("taints", ()):
                taint.setdefault("timeAdded", "2026-11-22T12:00:00Z")
        self.objects[path] = new
        self._events.append((self._version, kind, path, new))
        self._changed.notify_all()
        return new

    def _remove(self, path: str) -> None:
        self._version += 1
        gone = self.objects.pop(path)
        gone = {**gone, "metadata": {**gone["metadata"], "resourceVersion": str(self._version)}}
        self._events.append((self._version, "DELETED", path, gone))
        self._changed.notify_all()


def _is_in(listed: str, path: str) -> bool:
    """Whether the object of a path is in a list of all namespaces."""
    return path.rpartition("/")[0].rpartition("/")[2] == listed.rpartition("/")[2]


def _fits(each: dict[str, Any], query: dict[str, str]) -> bool:
    selectors = [selector.partition("=") for selector in query.get("fieldSelector", "").split(",") if selector]
    assert all(name in ("spec.driver", "spec.nodeName") for name, _, _ in selectors), selectors
    return all(each["spec"].get(name.removeprefix("spec.")) == value for name, _, value in selectors)


def _wrong(body: dict[str, Any]) -> str | None:
    sets = body["spec"].get("sharedCounters", [])
    if sets and "devices" in body["spec"]:
        return "spec: only one of sharedCounters and devices is allowed"
    if len(sets) > 8 or any(len(each["counters"]) > 32 for each in sets):
        return "spec.sharedCounters: too many"
    devices = body["spec"].get("devices", [])
    most = 64 if any("taints" in device or "consumesCounters" in device for device in devices) else 128
    if len(devices) > most:
        return f"spec.devices: too many: {len(devices)}: must have at most {most} items"
    for device in devices:
        for name, value in device["attributes"].items():
            if len(device["attributes"]) > 32 or len(str(value.get("string", "")).encode()) > 64:
                return f"spec.devices[].attributes[{name}]: too long"
    return None


def _status(code: int, reason: str, message: str) -> tuple[int, dict[str, Any]]:
    return code, {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    api: APIServer
    gone = False

    def __init__(self, *arguments: Any) -> None:
        self._connections: set[Any] = set()
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that go."""

    def close_connections(self) -> None:
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(2)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def handle_any(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        if self.server.api.errors:
            code, headers, text = self.server.api.errors.pop(0)
            self.server.api.requests += 1
            self.send_response(code)
            for name, value in {**headers, "Content-Length": str(len(text))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text)
            return
        if query.get("watch") == "true":
            self.server.api.requests += 1
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for event in self.server.api.changes(int(query["resourceVersion"]), url.path, query, self.server):
                line = json.dumps(event).encode() + b"\n"
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            self.wfile.write(b"0\r\n\r\n")
            return
        self.server.api.wait_to_answer()
        code, answer = self.server.api.answer(self.command, url.path, query, body)
        text = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_PUT = do_DELETE = handle_any  # noqa: N815 (the parent's names)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 (the parent's name)
        """Say nothing."""


@contextmanager
def running_apiserver() -> Iterator[APIServer]:
    api = APIServer()
    api.start()
    try:
        yield api
    finally:
        if api._server is not None:
            api.stop()
