"""The client's end of the control socket, for `gpu-launcher ctl`."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from launcher.control.messages import LONGEST_ANSWER, A, Method, Nothing, read_answer, request_line
from program.errors import Nonsense, Refusal

_PATIENCE = 20.0  # seconds for the first answer; the launcher gives libvirt less
_NOTHING = Nothing()


def ask(path: Path, method: Method[A], request: object = _NOTHING, *, patience: float = _PATIENCE) -> A:
    """Return the answer of the launcher that serves on this socket. Raise Refusal if there is none, if it refuses, or
    if it does not answer in `patience` seconds."""
    for answer in ask_for_all(path, method, request, patience=patience):
        return answer
    raise Refusal(path, f"no answer to {method.name}", "expected one, from gpu-launcher run")


def ask_for_all(
    path: Path, method: Method[A], request: object = _NOTHING, *, patience: float = _PATIENCE
) -> Iterator[A]:
    """Yield each answer, the first within `patience` seconds. Raise Refusal as ask() does."""
    with _refusing(path, patience), socket.socket(socket.AF_UNIX) as launcher:
        launcher.settimeout(patience)
        launcher.connect(str(path))
        with suppress(BrokenPipeError):  # it says why
            launcher.sendall(request_line(method, request))
        with launcher.makefile("rb") as lines:
            while line := lines.readline(LONGEST_ANSWER):
                answer = read_answer(line, method)
                if answer is None:
                    return
                yield answer
                launcher.settimeout(None)
            raise ConnectionError("no end")


@contextmanager
def _refusing(path: Path, patience: float) -> Iterator[None]:
    """Turn any failure of a request into a Refusal."""
    try:
        yield
    except (TimeoutError, BlockingIOError) as error:  # the latter if too many wait to be taken
        fix = "the launcher is there and hangs, its log says in what"
        raise Refusal(path, f"no answer in {patience:.0f} s", fix) from error
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError) as error:
        raise Refusal(
            path,
            "nobody serves there",
            "expected the control socket of a gpu-launcher run, which is there while it runs: look at its log, "
            "or name another with --socket",
        ) from error
    except PermissionError as error:
        fix = "expected to be the user that gpu-launcher run is, or root"
        raise Refusal(path, error.strerror or "", fix) from error
    except OSError as error:
        raise Refusal(path, "the launcher has ended before it answered, or has hung up", "its log says why") from error
    except Nonsense as error:
        fix = "expected a gpu-launcher run of this version to serve there"
        raise Refusal(path, "who serves there gives an answer that cannot be read", fix) from error
