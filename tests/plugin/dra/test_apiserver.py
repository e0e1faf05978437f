"""What the API server may answer, on real HTTP."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from pci.slices import DRIVER
from plugin.dra.apiserver import APIServer, Unanswered
from plugin.dra.claims import Reference, read_claim
from program.errors import Refusal
from tests.apiserver import SLICES, running_apiserver

T = TypeVar("T")
CLAIM = Reference("vms", "gpu", "9f86")
PLACE = "/apis/resource.k8s.io/v1/namespaces/vms/resourceclaims/gpu"


#: Status, headers and text of an answer that is an error.
Error = tuple[int, dict[str, str], bytes]
_JSON, _TEXT = {"Content-Type": "application/json"}, {"Content-Type": "text/plain; charset=utf-8"}


def asked(
    tmp_path: Path,
    objects: dict[str, Any],
    question: Callable[[APIServer], Awaitable[T]],
    errors: Sequence[Error] = (),
) -> T:
    async def ask(kubeconfig: Path) -> T:
        async with APIServer.connected(kubeconfig) as api:
            return await question(api)

    with running_apiserver() as server:
        for path, each in objects.items():
            server.put(path, each)
        server.errors += errors
        answer = asyncio.run(ask(server.kubeconfig(tmp_path / "kubeconfig")))
        assert not server.errors, "each was asked for"
        return answer


async def changes(api: APIServer) -> None:
    async for _ in api.changes("node-1", "1"):
        pass


_UNAUTHORIZED = b'{"kind": "Status", "message": "Unauthorized", "reason": "Unauthorized", "code": 401}'
_TIMED_OUT = b'{"kind": "Status", "message": "etcdserver: request timed out", "reason": "InternalError", "code": 500}'
_RENEW = "delete the plugin's pod if its ServiceAccount was made anew, or renew the token of --kubeconfig"
_AGAIN = "it is asked again; see its log"
_IF_IT_LASTS = "it is asked again; if that lasts, see the API server's flow control (API Priority and Fairness)"
ERRORS: tuple[tuple[Error, str, str], ...] = (
    ((401, _JSON, _UNAUTHORIZED), "401 Unauthorized: Unauthorized", _RENEW),
    (
        (429, _TEXT, b"Too many requests, please try again later.\n"),
        "429 Too Many Requests: Too many requests, please try again later.",
        _IF_IT_LASTS,
    ),
    ((500, _JSON, _TIMED_OUT), "500 InternalError: etcdserver: request timed out", _AGAIN),
    ((500, _JSON, b"{}"), "500 Internal Server Error", _AGAIN),
    ((500, _JSON, b"[1]"), "500 Internal Server Error: [1]", _AGAIN),
    ((503, {}, b"<html>\n<p>No server"), "503 Service Unavailable: <html> <p>No server", _AGAIN),
    ((302, {"Location": "/login"}, b""), "302 Found", _AGAIN),
)


@pytest.mark.parametrize(("error", "answer", "fix"), ERRORS)
@pytest.mark.parametrize("question", [lambda api: api.claim(CLAIM), changes], ids=["claim", "watch"])
def test_an_error_is_said_with_its_status_and_reason(
    tmp_path: Path, question: Callable[[APIServer], Awaitable[object]], error: Error, answer: str, fix: str
) -> None:
    """429, 500 and 401 became "the API server does not say: None"."""
    with pytest.raises(Unanswered) as refused:
        asked(tmp_path, {}, question, [error])
    assert str(refused.value).partition(": ")[2] == f"the API server answers {answer}; {fix}"


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_that_asks_for_another_try_soon_gets_three(tmp_path: Path, status: int) -> None:
    error = (status, {**_TEXT, "Retry-After": "0"}, b"later")
    claim = {"metadata": {"name": "gpu", "uid": "9f86"}}
    answer = asked(tmp_path, {PLACE: claim}, lambda api: api.claim(CLAIM), [error] * 3)
    assert answer["metadata"]["uid"] == "9f86"
    with pytest.raises(Unanswered, match=f"answers {status} .*: later; it is asked again"):
        asked(tmp_path, {PLACE: claim}, lambda api: api.claim(CLAIM), [error] * 4)


@pytest.mark.parametrize("headers", [{"Retry-After": "60"}, {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, {}])
def test_nobody_waits_long_for_another_try(tmp_path: Path, headers: dict[str, str]) -> None:
    began = time.monotonic()
    with pytest.raises(Unanswered, match="answers 429"):
        asked(tmp_path, {}, lambda api: api.claim(CLAIM), [(429, headers, b"")])
    assert time.monotonic() - began < 30


def test_an_answer_is_not_read_beyond_its_bound(tmp_path: Path) -> None:
    """300 MiB made the plugin 442 MB larger."""
    claim = {"metadata": {"name": "gpu", "uid": "9f86", "annotations": {"a": "x" * (9 << 20)}}}
    with pytest.raises(Unanswered, match=r"the API server does not say: an answer of more than 8 MiB"):
        asked(tmp_path, {PLACE: claim}, lambda api: api.claim(CLAIM))


@pytest.mark.parametrize(("size", "number"), [(1 << 20, 10), (9 << 20, 1)])
def test_a_watch_takes_any_number_of_events_and_none_that_is_too_long(tmp_path: Path, size: int, number: int) -> None:
    spec = {"driver": DRIVER, "nodeName": "node-1", "devices": []}
    slices = {
        f"{SLICES}/{name}": {"metadata": {"name": str(name), "annotations": {"a": "x" * size}}, "spec": spec}
        for name in range(number)
    }

    async def watched(api: APIServer) -> int:
        seen = 0
        async for _ in api.changes("node-1", "1"):
            seen += 1
            if seen == number:
                break
        return seen

    if size < 8 << 20:
        assert asked(tmp_path, slices, watched) == number
    else:
        with pytest.raises(Unanswered, match="more than 8 MiB"):
            asked(tmp_path, slices, watched)


@pytest.mark.parametrize(
    ("request_name", "device"), [("gpu\0", "pci-1"), ("../../cdi/x", "pci-1"), ("g" * 64, "pci-1"), ("gpu", "pci\n1")]
)
def test_names_that_are_none_of_kubernetes_are_refused_before_anything_is_bound(request_name: str, device: str) -> None:
    """A NUL was a traceback after the card was bound, and it stayed so."""
    results = [{"driver": DRIVER, "pool": "node-1", "request": request_name, "device": device}]
    claim = {"metadata": {"uid": "9f86"}, "status": {"allocation": {"devices": {"results": results}}}}
    name = request_name.partition("/")[0]
    with pytest.raises(Refusal) as refused:
        read_claim(CLAIM, claim, "node-1")
    assert str(refused.value) == (
        f"claim vms/gpu: allocates {device!r} for {name!r}; expected names of a device and of a request, as the API "
        "server admits them"
    )
