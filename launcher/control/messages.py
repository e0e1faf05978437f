"""What `gpu-launcher ctl` and the launcher tell each other over the control socket: JSON, an object a line.

The caller connects, sends one line, and keeps its end open until the last answer:

    {"version": 1, "method": "guest ping", "request": {"seconds": 5}}

Each answer is {"answer": {...}}, and after the last comes {"end": true}. If the launcher refuses, the last line is
{"problems": [{"subject": ..., "wrong": ..., "fix": ...}]}. Every version has that line, so that callers of another
version can print it. Within a version methods and fields are only added, and each end leaves out fields that it does
not know.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from types import UnionType
from typing import Any, Generic, TypeVar, get_args, get_origin

from launcher.runtime.agent import GuestFilesystem, GuestInfo, GuestUser
from program.errors import Nonsense, Refusal
from program.problem import Problem

VERSION = 1
#: Bytes of a request, with its newline.
LONGEST_REQUEST = 1 << 16
#: Bytes of a line with an answer: a domain has less than a hundredth of that, and a part of a screenshot 90 KB.
LONGEST_ANSWER = 1 << 24

A = TypeVar("A")


class Declined(Refusal):
    """The launcher has answered, and refuses."""


@dataclass(frozen=True)
class Nothing:
    """A request or an answer without fields."""


@dataclass(frozen=True)
class State:
    """A VM's identity and phase, and libvirt's `state` with its `reason` in words, like paused and ioerror
    (virDomainState): both empty unless the phase is running or stopping, "unknown" if libvirt does not answer. `uid` is
    empty if the manifest has none."""

    namespace: str
    name: str
    uid: str
    phase: str
    state: str = ""
    reason: str = ""


@dataclass(frozen=True)
class XML:
    """The domain as libvirt has it now, without secrets."""

    xml: str


@dataclass(frozen=True)
class SocketPath:
    """The path of the socket on which QEMU serves the guest's serial port, to one caller at a time, or its screen by
    VNC (RFC 6143)."""

    path: str


@dataclass(frozen=True)
class ScreenshotPart:
    """A part of a picture, `data` in base64. The first part has the type, as libvirt names it: image/png or
    image/x-portable-pixmap."""

    mime_type: str
    data: str


@dataclass(frozen=True)
class VMEvent:
    """A change of the VM at `time`, seconds since 1970 (UTC): of its phase, or libvirt's lifecycle `event` and its
    `reason` in words, like suspended and paused. `lost` counts the changes just before it that the reader was too slow
    for."""

    time: float
    phase: str
    event: str
    reason: str
    lost: int


@dataclass(frozen=True)
class SuspendProgress:
    """A sign of life while the guest's memory is written or sent; the last one has `saved` true."""

    saved: bool


@dataclass(frozen=True)
class ReceiveRequest:
    """The port for the sender of a guest, 0 for any free one."""

    port: int


@dataclass(frozen=True)
class ReceiverInvitation:
    """What the sender of a guest has to know of its receiver, as in launcher.runtime.transfer. The token is secret."""

    port: int
    fingerprint: str
    token: str


@dataclass(frozen=True)
class SendRequest:
    """The receiver's IP address and its invitation."""

    address: str
    port: int
    fingerprint: str
    token: str


@dataclass(frozen=True)
class AgentRequest:
    """The seconds that the guest's agent, or nvidia-smi in the guest, has for its answer."""

    seconds: int


@dataclass(frozen=True)
class GuestUsers:
    users: tuple[GuestUser, ...]


@dataclass(frozen=True)
class GuestFilesystems:
    filesystems: tuple[GuestFilesystem, ...]


@dataclass(frozen=True)
class GuestGPU:
    """A card of the guest: the name of its entry in the manifest, its PCI address on the `host` (a mediated device's
    UUID) and in the `guest`. The rest is from nvidia-smi, None if it reports none: percent of the time, bytes, degrees
    Celsius."""

    name: str
    host: str
    guest: str
    driver_version: str | None = None
    utilization: int | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    temperature: int | None = None


@dataclass(frozen=True)
class GuestGPUs:
    """`silence`: why the guest reports nothing. `mismatch`: how the guest's driver does not fit the Fabric Manager.
    Both are "" if there is nothing to say."""

    gpus: tuple[GuestGPU, ...]
    silence: str = ""
    mismatch: str = ""


@dataclass(frozen=True)
class GuestProgram:
    """A program for the guest's agent to run without a shell, and the seconds that it has until its end."""

    path: str
    arguments: tuple[str, ...]
    seconds: int


@dataclass(frozen=True)
class ProgramEnd:
    """A program's exit code, or the signal that ended it, the other one 0; and the first 64 KiB of its output and of
    its errors, in base64."""

    code: int
    signal: int
    out: str
    err: str


@dataclass(frozen=True)
class Method(Generic[A]):
    """A method, by its name on the socket: the dataclasses of its request and of each answer."""

    name: str
    answer: type[A]
    request: type = Nothing


STATE = Method("state", State)
GET_XML = Method("xml", XML)
CONSOLE = Method("console", SocketPath)
SCREEN = Method("screen", SocketPath)
SCREENSHOT = Method("screenshot", ScreenshotPart)
EVENTS = Method("events", VMEvent)
PAUSE = Method("pause", Nothing)
RESUME = Method("resume", Nothing)
RESET = Method("reset", Nothing)
SUSPEND = Method("suspend", SuspendProgress)
SEND = Method("send", SuspendProgress, SendRequest)
RECEIVE = Method("receive", ReceiverInvitation, ReceiveRequest)
TAKE = Method("take", Nothing)
SHUTDOWN = Method("shutdown", Nothing)
KILL = Method("kill", Nothing)
GUEST_PING = Method("guest ping", Nothing, AgentRequest)
GUEST_INFO = Method("guest info", GuestInfo, AgentRequest)
GUEST_USERS = Method("guest users", GuestUsers, AgentRequest)
GUEST_FILESYSTEMS = Method("guest filesystems", GuestFilesystems, AgentRequest)
GUEST_GPUS = Method("guest gpus", GuestGPUs, AgentRequest)
GUEST_EXEC = Method("guest exec", ProgramEnd, GuestProgram)

METHODS: Mapping[str, Method[Any]] = {
    each.name: each
    for each in (
        *(STATE, GET_XML, CONSOLE, SCREEN, SCREENSHOT, EVENTS, PAUSE, RESUME, RESET, SUSPEND, SHUTDOWN, KILL),
        *(SEND, RECEIVE, TAKE),
        *(GUEST_PING, GUEST_INFO, GUEST_USERS, GUEST_FILESYSTEMS, GUEST_GPUS, GUEST_EXEC),
    )
}

END = b'{"end": true}\n'


def request_line(method: Method[Any], request: object) -> bytes:
    return _line({"version": VERSION, "method": method.name, "request": asdict(request)})  # type: ignore[call-overload]


def read_request(line: bytes) -> tuple[Method[Any], Any]:
    """Return the method and its request; Refusal for a line without one, and for another version of the protocol."""
    subject = "the control socket"
    try:
        fields = _object(line)
        version, name = fields.get("version"), fields.get("method")
        if isinstance(version, int) and version != VERSION:
            fix = "ask with the gpu-launcher that runs the VM: that of its image or package"
            raise Refusal(subject, f"is asked in version {version} of its protocol, and has version {VERSION}", fix)
        if version != VERSION or not isinstance(name, str):
            raise Nonsense("has no version and method", "expected both")
        method = METHODS.get(name)
        if method is None:
            raise Nonsense(f"names the method {name[:40]!r}", f"expected one of {', '.join(METHODS)}")
        return method, _read(method.request, fields.get("request"), "request")
    except Nonsense as nonsense:
        raise Refusal(subject, f"is asked with a line that {nonsense.wrong}", nonsense.fix) from nonsense


def answer_line(answer: object) -> bytes:
    return _line({"answer": asdict(answer)})  # type: ignore[call-overload]


def problems_line(problems: Sequence[Problem]) -> bytes:
    return _line({"problems": [problem.as_json() for problem in problems]})


def read_answer(line: bytes, method: Method[A]) -> A | None:
    """Return the answer, None after the last. Refusal if the launcher refuses; Nonsense for any other line."""
    match _object(line):
        case {"problems": [_, *_] as problems}:
            sent = [_read(_SentProblem, each, "problem") for each in problems]
            raise Declined.of([Problem(each.subject, each.wrong, each.fix) for each in sent])
        case {"answer": answer}:
            return _read(method.answer, answer, "answer")  # type: ignore[no-any-return]
        case {"end": True}:
            return None
    raise Nonsense("has no answer, problems or end", "expected one of them")


@dataclass(frozen=True)
class _SentProblem:
    subject: str
    wrong: str
    fix: str


def _line(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _object(line: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Nonsense("is no JSON", "expected an object of JSON on one line") from error
    if not isinstance(value, dict):
        raise Nonsense("is no object", "expected an object of JSON on one line")
    return value


def _read(kind: Any, value: Any, name: str) -> Any:
    """Return a value of JSON as this dataclass, tuple of items or plain type. Raise Nonsense, with the field's name, if
    it has another type."""
    if is_dataclass(kind) and isinstance(value, dict):
        its = {each.name: _read(each.type, value.get(each.name, each.default), each.name) for each in fields(kind)}
        return kind(**its)  # type: ignore[operator]
    if get_origin(kind) is tuple and isinstance(value, list):
        return tuple(_read(get_args(kind)[0], item, name) for item in value)
    if isinstance(kind, type | UnionType) and isinstance(value, kind):
        return value
    what = "has no" if value is MISSING else "has another type as"
    expected = "an object" if is_dataclass(kind) else getattr(kind, "__name__", kind)
    raise Nonsense(f"{what} {name}", f"expected {expected}")
