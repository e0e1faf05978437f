"""Calls of the programs kubectl and gpu-launcher: their answers, within limits, and their errors."""

import os
import re
import shlex
import subprocess
import threading
import time
from collections.abc import Sequence
from selectors import EVENT_READ, DefaultSelector
from tempfile import TemporaryFile
from typing import IO, NamedTuple, NoReturn

from program.errors import ProgramError, Refusal, UserError
from program.output import print_foreign
from program.problem import Problem

SECONDS = 30.0  # for a call of kubectl that asks and answers
_MOST = 1 << 28  # bytes of an answer: 5,000 pods are some 100 MB
_MOST_WORDS = 1 << 16  # bytes of an error
_LONGEST_LINE = 1 << 16  # bytes; of a longer one each such part is a line
_ENDS_WITHIN = 5.0  # seconds from the end of a program's output

#: What kubectl logs beside its errors (klog), and what it adds to those of a program in a container.
_OURS = "gpu-launcher: "
_NOISE = re.compile(r"[IWEF]\d{4} |command terminated with exit code|Defaulted container")
NOT_REACHED = "see whether this machine reaches the cluster of `kubectl config current-context`"
#: By kubectl's words, as of 1.32: what to do.
_FIXES = (
    (
        r"Forbidden",
        "ask for that right: docs/kubectl.md lists what each verb needs, `kubectl auth can-i --list` what you have",
    ),
    (r"Unauthorized|must be logged in", "log in to the cluster again"),
    (r"context .*(was not found|does not exist)", "`kubectl config get-contexts` lists the contexts"),
    (r"namespaces? .* not found", "`kubectl get namespaces` lists them"),
    (r"NotFound", "`kubectl gpuvm list -A` lists the VMs"),
    (
        r"was refused|Unable to connect|dial tcp|[Tt]imeout|x509",
        NOT_REACHED,
    ),
)


class ProgramAnswer(NamedTuple):
    """A program's exit code and output; `words` are from its standard error."""

    code: int
    out: bytes
    words: str


def exec_program(command: Sequence[str]) -> NoReturn:
    """Become that program (exec). Refusal if it is missing."""
    try:
        os.execvp(command[0], list(command))  # noqa: S606 (no shell)
    except OSError as error:
        raise Refusal(command[0], f"cannot be started: {error.strerror}", "install it") from error


def run_program(
    command: Sequence[str], *, stdin: bytes = b"", within: float = SECONDS, if_late: str = NOT_REACHED
) -> ProgramAnswer:
    """Return a program's answer, with `stdin` on its standard input. Refusal if it cannot be started, or is late;
    `if_late` says what to do then."""
    with TemporaryFile() as file, TemporaryFile() as stderr:
        file.write(stdin)
        file.seek(0)
        with _started(command, file, stderr) as process:
            try:
                out, code = _printed(process, time.monotonic() + within)
            except subprocess.TimeoutExpired as late:
                raise Refusal(shlex.join(command), f"has not answered in {within:g} s", if_late) from late
            finally:
                process.kill()
        if len(out) > _MOST:
            raise Refusal(shlex.join(command), f"prints more than {_MOST >> 20} MiB", "ask for one namespace with -n")
        stderr.seek(0)
        return ProgramAnswer(code, out, stderr.read(_MOST_WORDS).decode(errors="replace"))


def passed_on(command: Sequence[str]) -> None:
    """Print a program's output, line by line, until it ends; unprintable characters are escaped. Raise an error in the
    program's own words if it fails."""
    with _started(command, None, subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        words = bytearray()
        listener = threading.Thread(target=_kept, args=(process.stderr, words), daemon=True)
        listener.start()
        try:
            while line := process.stdout.readline(_LONGEST_LINE):
                print_foreign(line.removesuffix(b"\n") + b"\n")
            code = process.wait(_ENDS_WITHIN)
        except subprocess.TimeoutExpired as late:
            wrong = f"has closed its output, and has not ended {_ENDS_WITHIN:g} s later"
            raise Refusal(shlex.join(command), wrong, "try it again") from late
        finally:
            process.kill()
        listener.join(_ENDS_WITHIN)
    if code:
        raise error_of(ProgramAnswer(code, b"", words.decode(errors="replace")), command)


def _started(command: Sequence[str], stdin: IO[bytes] | None, stderr: IO[bytes] | int) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=stderr)  # noqa: S603 (no shell)
    except OSError as error:
        raise Refusal(command[0], f"cannot be started: {error.strerror}", "install it") from error


def _kept(stream: IO[bytes], words: bytearray) -> None:
    """Read a stream to its end, and keep its first _MOST_WORDS bytes in `words`."""
    while chunk := stream.read1(_MOST_WORDS):  # type: ignore[attr-defined]
        words += chunk[: _MOST_WORDS - len(words)]


def _printed(process: subprocess.Popen[bytes], deadline: float) -> tuple[bytes, int]:
    """Return a program's output and exit code; of an output larger than _MOST only the beginning, and -1. Raise
    TimeoutExpired at the deadline, also if a process that the program started keeps the output open."""
    assert process.stdout is not None
    out = bytearray()
    with DefaultSelector() as selector:
        selector.register(process.stdout, EVENT_READ)
        while len(out) <= _MOST:
            left = deadline - time.monotonic()
            if left <= 0 or not selector.select(left):
                raise subprocess.TimeoutExpired(process.args, left)
            if not (chunk := os.read(process.stdout.fileno(), 1 << 20)):
                return bytes(out), process.wait(max(0, deadline - time.monotonic()))
            out += chunk
    return bytes(out), -1


def error_of(answer: ProgramAnswer, command: Sequence[str]) -> ProgramError:
    """Return a program's failure as an error: kubectl's own words with what to do, gpu-launcher's unchanged."""
    lines = [line for line in answer.words.splitlines() if line.strip() and not _NOISE.match(line)]
    if lines and (ours := [line for line in lines if line.startswith(_OURS)]):
        kind = UserError if answer.code == UserError.exit_code else Refusal
        return kind.of([Problem("", line.removeprefix(_OURS), "") for line in ours])
    words = " ".join(dict.fromkeys(lines)) or f"has ended with {answer.code}"
    fix = next((fix for pattern, fix in _FIXES if re.search(pattern, words)), f"try {shlex.join(command)}")
    return Refusal("kubectl", words, fix)
