"""Questions to the guest's agent, qemu-guest-agent, or what answers in the guest in its place.

The guest may be hostile and its agent silent: answers are bounded here, and each call has a deadline in libvirt.
https://www.qemu.org/docs/master/interop/qemu-ga-ref.html
"""

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from program.errors import Refusal

#: Sends the agent a command and returns its answer, both JSON objects of its protocol.
AskAgent = Callable[[str], str]

_LONGEST = 4 << 20  # characters of an answer; a program's output is in it in base64
_TEXT = 256  # characters of a name that is kept
_MOST = 64  # interfaces that are kept, addresses of each, users, and file systems
_OUTPUT = 1 << 16  # bytes that are kept of a program's output, and of its errors
_BYTES = 1 << 64  # of a file system, at most
_YEAR_9999 = 253370764800  # seconds from 1970 to it
_AGENT = "the guest's agent"
_FIX = "expected qemu-guest-agent, from the guest's own system"


@dataclass(frozen=True)
class Ended:
    """How a program in the guest ended: its exit `code`, or the `signal` that ended it; the other one is 0. `out` and
    `err` are the beginnings of its output and its errors."""

    code: int
    signal: int
    out: bytes
    err: bytes


@dataclass(frozen=True)
class GuestInterface:
    """A network interface in the guest; each of the `addresses` has its prefix length, as 10.0.2.2/24."""

    name: str
    mac: str
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class GuestUser:
    """A user logged in to the guest since `login_time`, in seconds since 1970; only Windows guests give a `domain`."""

    name: str
    domain: str
    login_time: float


@dataclass(frozen=True)
class GuestFilesystem:
    """A mounted file system of the guest; `used` and `total` are bytes, or 0 if the agent does not report them."""

    name: str
    mount_point: str
    type: str
    used: int
    total: int


@dataclass(frozen=True)
class GuestInfo:
    """What the guest's agent reports; `agent` is its version. A field that the agent does not report is empty."""

    agent: str
    host_name: str
    system: str
    kernel: str
    interfaces: tuple[GuestInterface, ...]


def info(ask: AskAgent) -> GuestInfo:
    """Ask the agent for every fact about the guest that it supports; Refusal if it does not answer."""
    about = _mapping(_answer(ask, "guest-info"))
    commands = about.get("supported_commands")
    able = {
        command.get("name")
        for command in (commands if isinstance(commands, list) else ())
        if isinstance(command, dict) and command.get("enabled") is True
    }

    def answer_to(command: str) -> Any:
        return _answer(ask, command) if command in able else {}

    host, system = _mapping(answer_to("guest-get-host-name")), _mapping(answer_to("guest-get-osinfo"))
    interfaces = answer_to("guest-network-get-interfaces")
    return GuestInfo(
        agent=_text(about, "version"),
        host_name=_text(host, "host-name"),
        system=_text(system, "pretty-name"),
        kernel=_text(system, "kernel-release"),
        interfaces=tuple(map(_interface, interfaces[:_MOST] if isinstance(interfaces, list) else ())),
    )


def users(ask: AskAgent) -> tuple[GuestUser, ...]:
    """Ask the agent who is logged in to the guest. Refusal if it does not answer."""
    return tuple(
        GuestUser(name=_text(user, "user"), domain=_text(user, "domain"), login_time=_time(user, "login-time"))
        for user in _mappings(_answer(ask, "guest-get-users"))
    )


def filesystems(ask: AskAgent) -> tuple[GuestFilesystem, ...]:
    """Ask the agent which file systems the guest has mounted. Refusal if it does not answer."""
    return tuple(
        GuestFilesystem(
            name=_text(each, "name"),
            mount_point=_text(each, "mountpoint"),
            type=_text(each, "type"),
            used=_number(each, "used-bytes", _BYTES) if "used-bytes" in each else 0,
            total=_number(each, "total-bytes", _BYTES) if "total-bytes" in each else 0,
        )
        for each in _mappings(_answer(ask, "guest-get-fsinfo"))
    )


def set_time(ask: AskAgent, nanoseconds: int) -> None:
    """Have the agent set the guest's clock, in nanoseconds since 1970. Refusal if it does not answer, or cannot."""
    _answer(ask, "guest-set-time", {"time": nanoseconds})


def ping(ask: AskAgent) -> None:
    """Raise Refusal if the agent does not answer."""
    _answer(ask, "guest-ping")


def start(ask: AskAgent, path: str, arguments: Sequence[str]) -> int:
    """Have the agent start a program without a shell; return its process ID in the guest. Refusal if it cannot."""
    program = {"path": path, "arg": list(arguments), "capture-output": True}
    return _number(_mapping(_answer(ask, "guest-exec", program)), "pid")


def ended(ask: AskAgent, pid: int) -> Ended | None:
    """Return how the program ended, None while it runs. The agent tells the output once."""
    answer = _mapping(_answer(ask, "guest-exec-status", {"pid": pid}))
    if answer.get("exited") is not True:
        return None
    signal = _number(answer, "signal") if "signal" in answer else 0
    code = _number(answer, "exitcode") if "exitcode" in answer else 0
    return Ended(code, signal, _bytes(answer, "out-data"), _bytes(answer, "err-data"))


def _answer(ask: AskAgent, command: str, arguments: Mapping[str, Any] | None = None) -> Any:
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


def _mappings(values: object) -> list[Mapping[str, Any]]:
    """Return the first _MOST objects of a list; Refusal if the answer is no list."""
    if not isinstance(values, list):
        raise Refusal(_AGENT, "gives an answer that is not of its protocol", _FIX)
    return [_mapping(value) for value in values[:_MOST]]


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
    """Return the beginning of a text, or "" if the answer lacks it; Refusal if it is no text."""
    value = answer.get(name, "")
    if not isinstance(value, str):
        raise Refusal(_AGENT, f"gives no text as {name}", _FIX)
    # JSON may have a lone surrogate, which cannot be encoded.
    return value[:_TEXT].encode(errors="replace").decode()


def _number(answer: Mapping[str, Any], name: str, limit: int = 1 << 32) -> int:
    """Return a number below `limit`: a process ID, a signal, or an exit code (of 32 bits in Windows) by default."""
    value = answer.get(name)
    if not isinstance(value, int) or not 0 <= value < limit:
        raise Refusal(_AGENT, f"gives no number as {name}", _FIX)
    return value


def _time(answer: Mapping[str, Any], name: str) -> float:
    """Return a time before the year 9999, the last that datetime has; Refusal for anything else."""
    value = answer.get(name)
    if not isinstance(value, int | float) or not 0 <= value < _YEAR_9999:
        raise Refusal(_AGENT, f"gives no time as {name}", _FIX)
    return float(value)


def _bytes(answer: Mapping[str, Any], name: str) -> bytes:
    value = answer.get(name, "")
    try:
        return base64.b64decode(value)[:_OUTPUT]
    except (ValueError, TypeError) as error:
        raise Refusal(_AGENT, f"gives no base64 as {name}", _FIX) from error
