"""The server's end of the control socket: who can open it may end the VM, and no more."""

import asyncio
import socket

from launcher.control.connections import Server
from launcher.control.connections import serve as serve_until
from launcher.control.faults import shorten
from launcher.control.health import Health
from launcher.control.virtual_machine import KILL, VMService
from launcher.runtime.vm import VM

_REQUEST = 1 << 16  # bytes


async def serve(listener: socket.socket, end: int, vm: VM) -> None:
    """Answer who comes, until the eventfd `end` is written to; calls in progress have a moment then."""
    shorten("the control socket", "launcher.control.connections", "grpclib.server", "asyncio")
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(end, ended.set)
    server = Server([VMService(vm), Health(vm)], request=_REQUEST, always=KILL)
    await serve_until(server, listener, ended.wait)
