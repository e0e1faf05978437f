"""HTTP on a port that every pod of the cluster may reach: one request a connection, within limits.

A connection beyond the limit closes the oldest one: a request and its answer need milliseconds, so silent connections
keep nobody out.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TypeAlias

import h11

from program.ports import ALLOW_HOST

#: The most connections at a time.
MOST_CONNECTIONS = 32
#: Seconds for a connection, from its first byte to the last.
SECONDS_FOR_ALL = 5.0
_LONGEST_HEAD = 8192  # bytes of a request's line and headers
_MISDIRECTED = (
    "this is no name of this server's; expected an IP address, localhost, the pod's name, or what the server's flag "
    f"{ALLOW_HOST} names\n"
).encode()
_PAUSE = 0.1  # seconds until the next accept, after one failed


@dataclass(frozen=True, slots=True)
class Answer:
    """A page: the HTTP status, the text, its media type, and more headers."""

    status: int
    text: bytes
    media_type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()


#: The function that makes each page, by path. It must not fail, and has to be quick if it is not asynchronous.
Pages: TypeAlias = Mapping[str, Callable[[], Answer | Awaitable[Answer]]]


@contextlib.asynccontextmanager
async def serving(listener: socket.socket, pages: Pages, names: Collection[str]) -> AsyncIterator[None]:
    """Serve these pages on a listening, non-blocking socket until the block ends.

    `names` are the host names that a request may use, in lower case, beside localhost and every IP address. With any
    other name, a web page whose owner points that name here could read what its reader's browser reaches (DNS
    rebinding).
    """
    accepting = asyncio.create_task(_accept(listener, pages, {"localhost", *names}))
    try:
        yield
    finally:
        accepting.cancel()
        await asyncio.wait([accepting])


async def _accept(listener: socket.socket, pages: Pages, names: Collection[str]) -> None:
    """Serve each connection in its own task."""
    # Not asyncio's server: it accepts a hundred before it hands over one.
    loop = asyncio.get_running_loop()
    tasks: dict[asyncio.Task[None], None] = {}  # the oldest first
    try:
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError:  # the client has gone already, or no descriptors are left
                await asyncio.sleep(_PAUSE)
                continue
            if len(tasks) >= MOST_CONNECTIONS:
                oldest = next(iter(tasks))
                oldest.cancel()
                await asyncio.wait([oldest])
            task = asyncio.create_task(_serve(connection, pages, names))
            tasks[task] = None
            task.add_done_callback(tasks.pop)
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def _serve(connection: socket.socket, pages: Pages, names: Collection[str]) -> None:
    with connection, suppress(OSError, TimeoutError):  # the client has gone, or is too slow
        async with asyncio.timeout(SECONDS_FOR_ALL):
            await _exchange(connection, pages, names)


async def _exchange(connection: socket.socket, pages: Pages, names: Collection[str]) -> None:
    """Read one request and answer it."""
    loop, http = asyncio.get_running_loop(), h11.Connection(h11.SERVER, max_incomplete_event_size=_LONGEST_HEAD)
    with_text = True
    try:
        while (event := http.next_event()) is h11.NEED_DATA:
            http.receive_data(await loop.sock_recv(connection, _LONGEST_HEAD))
        if not isinstance(event, h11.Request):
            return  # the client closed without a request
        answer, with_text = await _answer(event, pages, names), event.method != b"HEAD"
    except h11.RemoteProtocolError as error:
        answer = Answer(error.error_status_hint, b"expected an HTTP request\n")
    headers = [
        ("Content-Type", answer.media_type),
        ("Content-Length", str(len(answer.text))),
        ("Connection", "close"),
        *answer.headers,
    ]
    message = http.send(h11.Response(status_code=answer.status, headers=headers)) or b""
    if with_text:
        message += http.send(h11.Data(data=answer.text)) or b""
    await loop.sock_sendall(connection, message)


async def _answer(request: h11.Request, pages: Pages, names: Collection[str]) -> Answer:
    # Every browser sends a Host; h11 refuses two of them.
    if not all(_is_ours(value, names) for name, value in request.headers if name == b"host"):
        return Answer(421, _MISDIRECTED)
    path = request.target.partition(b"?")[0].decode("ascii")
    page = pages.get(path)
    if page is None:
        return Answer(404, f"expected one of {', '.join(pages)}\n".encode())
    if request.method not in (b"GET", b"HEAD"):
        return Answer(405, b"expected GET\n")
    answer = page()
    return answer if isinstance(answer, Answer) else await answer


def _is_ours(host: bytes, names: Collection[str]) -> bool:
    """Return whether a request's Host, a name or address with or without a port, is this server's."""
    text = host.decode("latin-1").lower()
    name = text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0]
    if name.removesuffix(".") in names:
        return True
    with suppress(ValueError):
        ip_address(name)
        return True
    return False
