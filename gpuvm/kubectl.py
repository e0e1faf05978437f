"""The user's kubectl: its context, its rights, its words."""

import json
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from selectors import EVENT_READ, DefaultSelector
from tempfile import TemporaryFile
from typing import Any, NamedTuple, NoReturn

from program.errors import ProgramError, Refusal, UserError
from program.problem import Problem

ClusterObject = dict[str, Any]

SECONDS = 30.0  # for a call of kubectl that asks and answers
_MOST = 1 << 28  # bytes of an answer: 5,000 pods are some 100 MB
_MOST_WORDS = 1 << 16  # bytes of an error

#: What kubectl logs beside its errors (klog), and what it adds to those of a program in a container.
_OURS = "gpu-launcher: "
_NOISE = re.compile(r"[IWEF]\d{4} |command terminated with exit code|Defaulted container")
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
        "see whether this machine reaches the cluster of `kubectl config current-context`",
    ),
)


class KubectlAnswer(NamedTuple):
    """What a program has said: `words` are those on its standard error."""

    code: int
    out: bytes
    words: str


@dataclass(frozen=True, slots=True)
class Kubectl:
    """`flags` go with every call: the namespace, the context, the kubeconfig."""

    program: str
    flags: tuple[str, ...] = ()

    def command(self, *words: str) -> list[str]:
        return [self.program, *self.flags, *words]

    def output(self, *words: str, given: bytes = b"", within: float = SECONDS) -> bytes:
        """Return what a call prints. Refusal, in kubectl's own words, where it fails or is late."""
        answer = answered(self.command(*words), given=given, within=within)
        if answer.code:
            raise error_of(answer, self.command(*words))
        return answer.out

    def objects(self, *words: str, within: float = SECONDS, given: bytes = b"") -> list[ClusterObject]:
        """Return the objects that `kubectl get` finds; none is no error."""
        text = self.output("get", *words, "--ignore-not-found", "-o", "json", given=given, within=within)
        try:
            found = json.loads(text) if text.strip() else {"items": []}
            return list(found.get("items", [found]))
        except (ValueError, AttributeError, TypeError, RecursionError) as error:
            raise Refusal(
                "kubectl get", "its answer is no JSON", f"try {shlex.join(self.command('get', *words))}"
            ) from error

    def be(self, *words: str) -> NoReturn:
        """Replace this process by that call of kubectl."""
        become(self.command(*words))


def found_kubectl(*flags: str) -> Kubectl:
    """Return the kubectl on PATH; Refusal without one."""
    program = shutil.which("kubectl")
    if program is None:
        raise Refusal("kubectl", "is not on PATH", "install it: kubernetes.io/docs/tasks/tools")
    return Kubectl(program, flags)


def become(command: Sequence[str]) -> NoReturn:
    """Become that program (exec). Refusal if it is not there."""
    try:
        os.execvp(command[0], list(command))  # noqa: S606 (no shell)
    except OSError as error:
        raise Refusal(command[0], f"cannot be started: {error.strerror}", "install it") from error


def answered(command: Sequence[str], *, given: bytes = b"", within: float = SECONDS) -> KubectlAnswer:
    """Return what a program says with `given` on its standard input. Refusal if it is late, or cannot be started."""
    with TemporaryFile() as stdin, TemporaryFile() as stderr:
        stdin.write(given)
        stdin.seek(0)
        try:
            process = subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=stderr)  # noqa: S603 (no shell)
        except OSError as error:
            raise Refusal(command[0], f"cannot be started: {error.strerror}", "install it") from error
        with process:
            try:
                out, code = _printed(process, time.monotonic() + within)
            except subprocess.TimeoutExpired as late:
                fix = "see whether this machine reaches the cluster of `kubectl config current-context`"
                raise Refusal(shlex.join(command), f"has not answered in {within:g} s", fix) from late
            finally:
                process.kill()
        if len(out) > _MOST:
            raise Refusal(shlex.join(command), f"prints more than {_MOST >> 20} MiB", "ask for one namespace with -n")
        stderr.seek(0)
        return KubectlAnswer(code, out, stderr.read(_MOST_WORDS).decode(errors="replace"))


def _printed(process: subprocess.Popen[bytes], deadline: float) -> tuple[bytes, int]:
    """Return what a program prints, not much more than _MOST, and its exit code if it is not more. TimeoutExpired
    at the deadline, also while a process that the program has started keeps its output open."""
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


def error_of(answer: KubectlAnswer, command: Sequence[str]) -> ProgramError:
    """Return kubectl's own words as an error, and what to do; those of `gpu-launcher` as they are."""
    lines = [line for line in answer.words.splitlines() if line.strip() and not _NOISE.match(line)]
    if lines and (ours := [line for line in lines if line.startswith(_OURS)]):
        kind = UserError if answer.code == UserError.exit_code else Refusal
        return kind.of([Problem("", line.removeprefix(_OURS), "") for line in ours])
    words = " ".join(dict.fromkeys(lines)) or f"has ended with {answer.code}"
    fix = next((fix for pattern, fix in _FIXES if re.search(pattern, words)), f"try {shlex.join(command)}")
    return Refusal("kubectl", words, fix)
