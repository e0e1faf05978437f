"""The API server, as far as the driver asks it: claims, its node, and the node's slices."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx2
from lightkube import ApiError, AsyncClient, ConfigError, KubeConfig
from lightkube.core.exceptions import NotReadyError
from lightkube.generic_resource import create_global_resource, create_namespaced_resource

from pci.slices import DRIVER
from plugin.dra.claims import Reference
from plugin.dra.slices import SliceObject
from program.errors import Refusal, UserError

# It would log a line for each request.
logging.getLogger("httpx2").setLevel(logging.WARNING)

#: Dicts, not lightkube's models: those would be most of its memory.
_SLICES = create_global_resource("resource.k8s.io", "v1", "ResourceSlice", "resourceslices")
_CLAIMS = create_namespaced_resource("resource.k8s.io", "v1", "ResourceClaim", "resourceclaims")
_NODES = create_global_resource("", "v1", "Node", "nodes")

_ANSWERS_WITHIN = 10.0  # seconds
#: A watch is begun anew after so many seconds, whether anything was told or not: a connection may be dead.
_WATCHES_FOR = 300.0

_NOT_FOUND, _CONFLICT = 404, 409

T = TypeVar("T")


class Unanswered(Refusal):
    """The API server did not answer, or would not."""


class NotFound(Refusal):
    """There is no such object."""


class Conflict(Refusal):
    """The object is another one than what was read, or is there already."""


class APIServer:
    """Asks the API server. Each question raises Unanswered where it is not answered in time."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    @classmethod
    @contextlib.asynccontextmanager
    async def connected(cls, kubeconfig: Path | None) -> AsyncIterator[Self]:
        """Speak with the server that the file names, or with the one whose pod this is; UserError if neither tells."""
        try:
            config = KubeConfig.from_service_account() if kubeconfig is None else KubeConfig.from_file(kubeconfig)
            client = AsyncClient(config=config, trust_env=False)
        except (ConfigError, KeyError, OSError, ValueError) as error:
            raise UserError(
                kubeconfig or "the pod's service account",
                f"does not tell where the API server is: {error}",
                "name a file with --kubeconfig, or mount the service account's token",
            ) from error
        try:
            yield cls(client)
        finally:
            await client.close()

    async def node_uid(self, name: str) -> str:
        """Return the node's UID; NotFound if there is no such node."""
        node = await _answer(f"node {name}", self._client.get(_NODES, name))
        return str(node["metadata"]["uid"])

    async def claim(self, reference: Reference) -> Mapping[str, Any]:
        """Return the claim of that name, whatever its UID is; NotFound if there is none."""
        question = self._client.get(_CLAIMS, reference.name, namespace=reference.namespace)
        claim: Mapping[str, Any] = await _answer(f"claim {reference}", question)
        return claim

    async def slices(self, node: str) -> tuple[list[SliceObject], str]:
        """Return the driver's slices of a node, and the version of the list, to watch from."""
        listed = self._client.list(_SLICES, fields=_of(node))

        async def all_of_them() -> tuple[list[SliceObject], str]:
            objects: list[SliceObject] = [dict(each) async for each in listed]
            try:
                return objects, str(listed.resourceVersion)
            except NotReadyError:
                return objects, "0"

        return await _answer(f"slices of {node}", all_of_them())

    async def create(self, new: SliceObject) -> SliceObject:
        """Create a slice; return it as the server has it. Conflict if one of its name is there."""
        name = new["metadata"]["name"]
        return dict(await _answer(f"slice {name}", self._client.create(_SLICES.from_dict(new))))

    async def replace(self, new: SliceObject) -> SliceObject:
        """Replace a slice; Conflict if the server has another version of it, NotFound if it is gone."""
        name = new["metadata"]["name"]
        return dict(await _answer(f"slice {name}", self._client.replace(_SLICES.from_dict(new))))

    async def delete(self, name: str) -> None:
        """Delete a slice, if it is there."""
        with contextlib.suppress(NotFound):
            await _answer(f"slice {name}", self._client.delete(_SLICES, name))

    async def changes(self, node: str, version: str) -> AsyncIterator[SliceObject]:
        """Yield each slice of the driver and node that is written or deleted after this version of the list, for some
        minutes. Unanswered if the server ends that, or has forgotten the version."""
        events = self._client.watch(
            _SLICES, resource_version=version, server_timeout=int(_WATCHES_FOR), fields=_of(node)
        )
        try:
            async with asyncio.timeout(_WATCHES_FOR):
                async for _, changed in events:
                    yield dict(changed)
        except TimeoutError:
            return
        except (httpx2.HTTPError, OSError, ValueError) as error:
            raise _unanswered(f"slices of {node}", error) from error
        finally:
            await events.aclose()  # type: ignore[attr-defined]  # (an async generator)


def _of(node: str) -> dict[str, Any]:
    return {"spec.driver": DRIVER, "spec.nodeName": node}


async def _answer(subject: str, question: Awaitable[T]) -> T:
    try:
        async with asyncio.timeout(_ANSWERS_WITHIN):
            return await question
    except ApiError as error:
        if error.status.code == _NOT_FOUND:
            raise NotFound(subject, "does not exist", "the pod that wants it may be gone") from error
        if error.status.code == _CONFLICT:
            raise Conflict(subject, "was written by somebody else", "it is read again") from error
        raise _unanswered(subject, error) from error
    except (httpx2.HTTPError, TimeoutError, OSError, ValueError, KeyError) as error:
        raise _unanswered(subject, error) from error


def _unanswered(subject: str, error: Exception) -> Unanswered:
    what = str(error) or type(error).__name__
    return Unanswered(subject, f"the API server does not say: {what[:300]}", "it is asked again; see its log")
