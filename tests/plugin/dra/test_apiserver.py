"""What the API server may answer, on real HTTP."""

import asyncio
from collections.abc import Awaitable, Callable
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


def asked(tmp_path: Path, objects: dict[str, Any], question: Callable[[APIServer], Awaitable[T]]) -> T:
    async def ask(kubeconfig: Path) -> T:
        async with APIServer.connected(kubeconfig) as api:
            return await question(api)

    with running_apiserver() as server:
        for path, each in objects.items():
            server.put(path, each)
        return asyncio.run(ask(server.kubeconfig(tmp_path / "kubeconfig")))


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
