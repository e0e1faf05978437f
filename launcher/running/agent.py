"""What is asked of the guest's agent: qemu-guest-agent, or whoever answers in the guest under its name.

The guest may be hostile and its agent silent: each answer has a bound here, and each call a deadline in libvirt.
https://www.qemu.org/docs/master/interop/qemu-ga-ref.html
"""

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from program.errors import Refusal

#: Asks the agent that, an object of JSON in its protocol, and returns its answer, another one.
Ask = Callable[[str], str]

_LONGEST = 4 << 20  # characters of an answer; a program's output is in it in base64
_OUTPUT = 1 << 16  # bytes of a program's output that are kept, of either kind
_AGENT = "the guest's agent"
_FIX = "expected qemu-guest-agent, from the guest's own system"


@dataclass(frozen=True)
class Ended:
    """How a program in the guest ended: with this `code`, or by that `signal`, of which the other is 0. `out` and `err`
    are the beginnings of what it said there."""

    code: int
    signal: int
    out: bytes
    err: bytes


def ping(ask: Ask) -> None:
    """Refusal where the agent does not answer."""
    _asked(ask, "guest-ping")


def start(ask: Ask, path: str, arguments: Sequence[str]) -> int:
    """Have the guest start a program, without a shell; its process's number in the guest. Refusal where it cannot."""
    program = {"path": path, "arg": list(arguments), "capture-output": True}
    return _number(_mapping(_asked(ask, "guest-exec", program)), "pid")


def ended(ask: Ask, pid: int) -> Ended | None:
    """How the program ended; None while it runs. What it said is told once."""
    answer = _mapping(_asked(ask, "guest-exec-status", {"pid": pid}))
    if answer.get("exited") is not True:
        return None
    signal = _number(answer, "signal") if "signal" in answer else 0
    code = _number(answer, "exitcode") if "exitcode" in answer else 0
    return Ended(code, signal, _bytes(answer, "out-data"), _bytes(answer, "err-data"))


def _asked(ask: Ask, command: str, arguments: Mapping[str, Any] | None = None) -> Any:
    text = ask(json.dumps({"execute": command, **({"arguments": arguments} if arguments is not None else {})}))
    if len(text) > _LONGEST:
        raise Refusal(_AGENT, f"answers {command} with {len(text)} characters", f"expected at most {_LONGEST}")
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refusal(_AGENT, f"answers {command} with what is no JSON", _FIX) from error
    return _mapping(answer).get("return")


def _mapping(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise Refusal(_AGENT, "gives an answer that is not of its protocol", _FIX)
    return value


def _number(answer: Mapping[str, Any], name: str) -> int:
    """A number of a process, a signal, or an exit code (Windows' have 32 bits)."""
    value = answer.get(name)
    if not isinstance(value, int) or not 0 <= value < 1 << 32:
        raise Refusal(_AGENT, f"gives no number as {name}", _FIX)
    return value


def _bytes(answer: Mapping[str, Any], name: str) -> bytes:
    value = answer.get(name, "")
    try:
        return base64.b64decode(value)[:_OUTPUT]
    except (ValueError, TypeError) as error:
        raise Refusal(_AGENT, f"gives no base64 as {name}", _FIX) from error
