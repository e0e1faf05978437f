"""The command line, read by a child: typer and what it is made with would stay in the sidecar's memory (10 MB).

Meanwhile this process imports what it answers with.
"""

import json
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from program.entry import ends_with


class ToServe(NamedTuple):
    """What `gpu-launcher hook` is to serve: on this socket, with what stands for /sys, as a plugin or as a sidecar."""

    socket: str
    sysfs: str
    is_plugin: bool


def told_by_child(program: str, command: Callable[[], Any], meanwhile: Callable[[], object]) -> ToServe | int:
    """Return what the command returns in a child, where that is to be served; else the child's exit code."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        ends_with(program, lambda: _tell(writer, command()))
    os.close(writer)
    meanwhile()
    with open(reader, "rb") as told:  # noqa: PTH123 a descriptor
        answer = told.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        return code if code > 0 else 128 - code
    return ToServe(*json.loads(answer)) if answer else 0


def _tell(writer: int, result: object) -> int | None:
    if not isinstance(result, ToServe):
        return result if isinstance(result, int) else None
    os.write(writer, json.dumps(result).encode())
    return 0
