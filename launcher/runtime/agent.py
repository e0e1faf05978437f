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
AskAgent = Callable[[str], str]

_LONGEST = 4 << 20  # characters of an answer; a program's output is in it in base64
_TEXT = 256  # characters of a name that is kept
_MOST = 64  # interfaces that are kept, and addresses of each
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


@dataclass(frozen=True)
class GuestInterface:
    """A network interface as the guest has it; `addresses` have the length of their prefix: 10.0.2.2/24."""

    name: str
    mac: str
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class GuestInfo:
    """What the agent tells of the guest; what it does not tell is empty. `agent` is its version."""

    agent: str
    host_name: str
    system: str
    kernel: str
    interfaces: tuple[GuestInterface, ...]


def info(ask: AskAgent) -> GuestInfo:
    """Ask for what the agent says that it can tell. Refusal where it does not answer."""
    about = _mapping(_asked(ask, "guest-info"))
    commands = about.get("supported_commands")
    able = {
        command.get("name")
        for command in (commands if isinstance(commands, list) else ())
        if isinstance(command, dict) and command.get("enabled") is True
    }

    def told(command: str) -> Any:
        return _asked(ask, command) if command in able else {}

    host, system = _mapping(told("guest-get-host-name")), _mapping(told("guest-get-osinfo"))
    interfaces = told("guest-network-get-interfaces")
    return GuestInfo(
        agent=_text(about, "version"),
        host_name=_text(host, "host-name"),
        system=_text(system, "pretty-name"),
        kernel=_text(system, "kernel-release"),
        interfaces=tuple(map(_interface, interfaces[:_MOST] if isinstance(interfaces, list) else ())),
    )


def ping(ask: AskAgent) -> None:
    """Refusal where the agent does not answer."""
    _asked(ask, "guest-ping")


def start(ask: AskAgent, path: str, arguments: Sequence[str]) -> int:
    """Have the guest start a program, without a shell; its process's number in the guest. Refusal where it cannot."""
    program = {"path": path, "arg": list(arguments), "capture-output": True}
    return _number(_mapping(_asked(ask, "guest-exec", program)), "pid")


def ended(ask: AskAgent, pid: int) -> Ended | None:
    """How the program ended; None while it runs. What it said is told once."""
    answer = _mapping(_asked(ask, "guest-exec-status", {"pid": pid}))
    if answer.get("exited") is not True:
        return None
    signal = _number(answer, "signal") if "signal" in answer else 0
    code = _number(answer, "exitcode") if "exitcode" in answer else 0
    return Ended(code, signal, _bytes(answer, "out-data"), _bytes(answer, "err-data"))


def _asked(ask: AskAgent, command: str, arguments: Mapping[str, Any] | None = None) -> Any:
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


def _interface(value: object) -> GuestInterface:
    its = _mapping(value)
    addresses = its.get("ip-addresses")
    return GuestInterface(
        name=_text(its, "name"),
        mac=_text(its, "hardware-address"),
        addresses=tuple(
            f"{_text(_mapping(address), 'ip-address')}/{_number(_mapping(address), 'prefix')}"
            for address in (addresses[:_MOST] if isinstance(addresses, list) else ())
        ),
    )


def _text(answer: Mapping[str, Any], name: str) -> str:
    """A text, or its beginning; empty where there is none."""
    value = answer.get(name, "")
    if not isinstance(value, str):
        raise Refusal(_AGENT, f"gives no text as {name}", _FIX)
    # A lone surrogate is JSON, and no text that anybody can be sent.
    return value[:_TEXT].encode(errors="replace").decode()


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
