"""A command line read by a child: typer, and what it is made with, would stay in the memory of a process that goes on
(10 MB)."""

import os
import pickle
from collections.abc import Callable
from typing import Any, TypeVar

from program.entry import ends_with

T = TypeVar("T")


def read_apart(program: str, command: Callable[[], Any], flags: type[T]) -> Callable[[], T | int]:
    """Call the command in a child, from now on; return what waits for it.

    That returns the `flags` that the command has returned; else the exit code to end with, of a command that has done
    all there is to do (--help), or whose error the child has printed. To be called while this process has one thread.
    The child holds the signals that this one does, and ends soon enough: ^C is sent to both, and one has to answer it.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        ends_with(program, lambda: _tell(writer, command(), flags))
    os.close(writer)

    def answer() -> T | int:
        with open(reader, "rb") as told:  # noqa: PTH123 a descriptor
            pickled = told.read()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code:
            return code if code > 0 else 128 - code
        read: T | int = pickle.loads(pickled) if pickled else 0  # noqa: S301 (of our own child)
        return read

    return answer


def _tell(writer: int, result: object, flags: type[object]) -> int | None:
    if not isinstance(result, flags):
        return result if isinstance(result, int) else None
    with open(writer, "wb") as told:
        pickle.dump(result, told)
    os._exit(0)  # Python would take its modules apart first, for 40 ms, and somebody waits
