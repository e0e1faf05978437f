"""The API server's claims, node, and slices of the node, as the driver needs them."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx2
from lightkube import ALL_NS, ApiError, AsyncClient, ConfigError, KubeConfig, SingleConfig
from lightkube.config.client_adapter import verify_cluster
from lightkube.core.exceptions import NotReadyError
from lightkube.core.generic_client import ListAsyncIterable
from lightkube.generic_resource import create_global_resource, create_namespaced_resource

from pci.slices import DRIVER
from plugin.dra.claims import Reference, has_conditions
from plugin.dra.slices import SliceObject
from program.errors import Refusal, UserError

# httpx2 would log a line for each request.
logging.getLogger("httpx2").setLevel(logging.WARNING)

#: Dicts, not lightkube's models: those would be most of its memory.
_SLICES = create_global_resource("resource.k8s.io", "v1", "ResourceSlice", "resourceslices")
_CLAIMS = create_namespaced_resource("resource.k8s.io", "v1", "ResourceClaim", "resourceclaims")
_NODES = create_global_resource("", "v1", "Node", "nodes")

_ANSWERS_WITHIN = 10.0  # seconds
_LONGEST = 1 << 23  # bytes of an answer: etcd takes 1.5 MiB of an object, and a node has a few slices
#: A watch is begun anew after so many seconds, with or without events: its connection may be dead.
_WATCHES_FOR = 300.0

_LONGEST_WORDS = 300  # characters of an error
#: An answer of too many requests or of a fault is asked for again so often, after the seconds that it names, if these
#: are few: all tries are within _ANSWERS_WITHIN. client-go asks again for the same answers.
_TRIES, _LONGEST_PAUSE = 4, 2
#: A list is read in parts of so many objects, of which a claim has some kilobytes.
_IN_A_PART = 200

T = TypeVar("T")


class Unanswered(Refusal):
    """The API server did not answer, or refused to."""


class Forbidden(Unanswered):
    """The driver lacks the right to this request."""


class NotFound(Refusal):
    """The object does not exist."""


class Invalid(Unanswered):
    """The API server takes no object of this form."""


class Conflict(Refusal):
    """The object was changed since it was read, or exists already."""


class APIServer:
    """Asks the API server. Each request raises Unanswered if it is not answered in time."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    @classmethod
    @contextlib.asynccontextmanager
    async def connected(cls, kubeconfig: Path | None) -> AsyncIterator[Self]:
        """Connect to the server of a kubeconfig, or of the pod's service account; UserError if it names no server."""
        try:
            config = KubeConfig.from_service_account() if kubeconfig is None else KubeConfig.from_file(kubeconfig)
            client = AsyncClient(config=config.get(), trust_env=False, transport=_bounded(config.get()))
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
        """Return the claim with the reference's name, whose UID may differ; NotFound if there is none."""
        question = self._client.get(_CLAIMS, reference.name, namespace=reference.namespace)
        claim: Mapping[str, Any] = await _answer(f"claim {reference}", question)
        return claim

    async def claims(self, node: str) -> tuple[list[dict[str, Any]], str]:
        """Return the claims with binding conditions of a node's devices, and the version of the list of all claims,
        from which to watch."""
        listed = self._client.list(_CLAIMS, namespace=ALL_NS, chunk_size=_IN_A_PART)
        return await _answer("claims", _listed(listed, lambda each: has_conditions(each, node)))

    async def replace_status(self, reference: Reference, claim: Mapping[str, Any]) -> None:
        """Replace the status of a claim; Conflict if the server has another version of it."""
        new = _CLAIMS.Status.from_dict(dict(claim))
        await _answer(f"claim {reference}", self._client.replace(new, reference.name, namespace=reference.namespace))

    async def slices(self, node: str) -> tuple[list[SliceObject], str]:
        """Return the driver's slices of a node, and the version of the list, to watch from."""
        listed = self._client.list(_SLICES, fields=_of(node))
        return await _answer(f"slices of {node}", _listed(listed, lambda _: True))

    async def create(self, new: SliceObject) -> SliceObject:
        """Create a slice; return the server's version of it. Conflict if a slice of its name exists."""
        name = new["metadata"]["name"]
        return dict(await _answer(f"slice {name}", self._client.create(_SLICES.from_dict(new))))

    async def replace(self, new: SliceObject) -> SliceObject:
        """Replace a slice; Conflict if the server has another version of it, NotFound if it does not exist."""
        name = new["metadata"]["name"]
        return dict(await _answer(f"slice {name}", self._client.replace(_SLICES.from_dict(new))))

    async def delete(self, name: str) -> None:
        """Delete a slice if it exists."""
        with contextlib.suppress(NotFound):
            await _answer(f"slice {name}", self._client.delete(_SLICES, name))

    async def changes(self, node: str, version: str) -> AsyncIterator[SliceObject]:
        """Yield each slice of the node that is written or deleted after this version of the list, for some minutes.
        Unanswered if the server ends the watch, or has forgotten the version."""
        events = self._client.watch(
            _SLICES, resource_version=version, server_timeout=int(_WATCHES_FOR), fields=_of(node)
        )
        async for _, changed in _watched(f"slices of {node}", events):
            yield changed

    async def claim_changes(self, version: str) -> AsyncIterator[Mapping[str, Any]]:
        """Yield each claim of the cluster that is written after this version of the list, as `changes` does; a deleted
        claim has no status."""
        events = self._client.watch(
            _CLAIMS, namespace=ALL_NS, resource_version=version, server_timeout=int(_WATCHES_FOR)
        )
        async for operation, changed in _watched("claims", events):
            yield {**changed, "status": {}} if operation == "DELETED" else changed


async def _listed(listed: ListAsyncIterable[Any], fits: Callable[[SliceObject], bool]) -> tuple[list[SliceObject], str]:
    objects: list[SliceObject] = [dict(each) async for each in listed if fits(each)]
    try:
        return objects, str(listed.resourceVersion)
    except NotReadyError:
        return objects, "0"


async def _watched(subject: str, events: AsyncIterable[tuple[str, Any]]) -> AsyncIterator[tuple[str, SliceObject]]:
    try:
        async with asyncio.timeout(_WATCHES_FOR):
            async for operation, changed in events:
                yield operation, dict(changed)
    except TimeoutError:
        return
    except httpx2.HTTPStatusError as error:
        # lightkube reads the status of an event alone.
        refused = error if isinstance(error, ApiError) else ApiError(error.request, error.response)
        raise _refused(subject, refused) from error
    except (ConfigError, httpx2.HTTPError, OSError, ValueError) as error:
        raise _unanswered(subject, error) from error
    finally:
        await events.aclose()  # type: ignore[attr-defined]  # (an async generator)


class _Bounded(httpx2.AsyncHTTPTransport):
    """Ends an answer, or a watch's event, that is too long. Refuses compressed ones, which could have any length.

    Asks again if the server requests that, and gives each error a Status.
    """

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        for _ in range(_TRIES - 1):
            response = await self._answer(request)
            pause = _pause_before_the_next(response)
            if pause is None:
                return response
            await asyncio.sleep(pause)
        return await self._answer(request)

    async def _answer(self, request: httpx2.Request) -> httpx2.Response:
        request.headers["Accept-Encoding"] = "identity"
        response = await super().handle_async_request(request)
        if "content-encoding" in response.headers:
            await response.aclose()
            raise httpx2.DecodingError("a compressed answer", request=request)
        assert isinstance(response.stream, httpx2.AsyncByteStream), "it is asynchronous"
        response.stream = _Answer(response.stream, is_watch="watch" in request.url.params)
        return response if response.is_success else await _with_status(response)


class _Answer(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, *, is_watch: bool) -> None:
        self._stream, self._is_watch = stream, is_watch

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for part in self._stream:
            ended = part.rfind(b"\n") + 1 if self._is_watch else 0
            size = len(part) - ended + (0 if ended else size)
            if size > _LONGEST:
                raise httpx2.ReadError(f"an answer of more than {_LONGEST >> 20} MiB")
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()


def _pause_before_the_next(response: httpx2.Response) -> int | None:
    """Return the seconds after which to ask again; None if the server does not request that, or for too long."""
    after = response.headers.get("Retry-After", "")
    is_passing = response.status_code == HTTPStatus.TOO_MANY_REQUESTS or response.is_server_error
    return int(after) if is_passing and after in map(str, range(_LONGEST_PAUSE + 1)) else None


async def _with_status(response: httpx2.Response) -> httpx2.Response:
    """Return an error response with the Status that lightkube expects: the server's own, completed. Flow control
    answers in plain text, and a proxy before the API server may answer anything."""
    text = (await response.aread()).decode(errors="replace")
    await response.aclose()
    try:
        status = json.loads(text)
    except (ValueError, RecursionError):
        status = None
    if not isinstance(status, dict):
        status = {"message": " ".join(text.split())}
    reason, message = (str(status.get(field) or "")[:_LONGEST_WORDS] for field in ("reason", "message"))
    completed = {"code": response.status_code, "reason": reason or response.reason_phrase, "message": message}
    headers = {name: value for name, value in response.headers.items() if name == "retry-after"}
    return httpx2.Response(response.status_code, headers=headers, json=completed)


def _bounded(config: SingleConfig | None) -> _Bounded:
    if config is None or config.user is None:
        raise ConfigError("it has no user")
    tls = verify_cluster(config.cluster, config.user, config.abs_file, trust_env=False)
    return _Bounded(verify=tls, trust_env=False)


def _of(node: str) -> dict[str, Any]:
    return {"spec.driver": DRIVER, "spec.nodeName": node}


async def _answer(subject: str, question: Awaitable[T]) -> T:
    try:
        async with asyncio.timeout(_ANSWERS_WITHIN):
            return await question
    except ApiError as error:
        raise _refused(subject, error) from error
    except (ConfigError, httpx2.HTTPError, TimeoutError, OSError, ValueError, KeyError) as error:
        raise _unanswered(subject, error) from error


def _refused(subject: str, error: ApiError) -> Refusal:
    """Return the error of an error response: NotFound, Conflict, or Unanswered."""
    code, message = error.status.code, str(error.status.message or "")[:_LONGEST_WORDS]
    words = " ".join(filter(None, (str(code), error.status.reason))) + (f": {message}" if message else "")
    match code:
        case HTTPStatus.NOT_FOUND:
            return NotFound(subject, "does not exist", "the pod that wants it may be gone")
        case HTTPStatus.CONFLICT:
            return Conflict(subject, "was written by somebody else", "it is read again")
        case HTTPStatus.FORBIDDEN:
            return Forbidden(subject, f"the API server forbids it: {message}", "see deploy/dra")
        case HTTPStatus.UNPROCESSABLE_ENTITY:
            return Invalid(subject, f"the API server does not take it: {message}", "see its log")
        case HTTPStatus.UNAUTHORIZED:
            fix = "delete the plugin's pod if its ServiceAccount was made anew, or renew the token of --kubeconfig"
        case HTTPStatus.TOO_MANY_REQUESTS:
            fix = "it is asked again; if that lasts, see the API server's flow control (API Priority and Fairness)"
        case _:
            fix = "it is asked again; see its log"
    return Unanswered(subject, f"the API server answers {words}", fix)


def _unanswered(subject: str, error: Exception) -> Unanswered:
    what = str(error) or type(error).__name__
    return Unanswered(
        subject, f"the API server does not say: {what[:_LONGEST_WORDS]}", "it is asked again; see its log"
    )
