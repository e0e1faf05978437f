"""gpu-launcher ctl."""

import base64
import json
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.runtime.user import switch_to_owner_of
from launcher.vm.paths import CONTROL_SOCKET, RUN_OF_USERS, SOCKET_IN_ROOT, runtime_directory
from program.commands import AsJSON
from program.errors import Refusal, UserError
from program.output import aligned, print_bytes, print_text
from program.problem import one_line

if TYPE_CHECKING:
    from launcher.control.messages import GuestFilesystems, GuestUsers, SendRequest, State, VMEvent
    from launcher.runtime.agent import GuestFilesystem, GuestInfo, GuestUser

#: Seconds for the launcher, besides those for the guest's agent.
_BESIDE_THE_AGENT = 10
_INVITATION = 4096  # bytes
_MOVES_TO = 49152  # the port for a guest that is moved here, libvirt's first one for migration


class Action(Enum):
    """What ctl can ask of a running VM."""

    STATE = "state"
    XML = "xml"
    PAUSE = "pause"
    RESUME = "resume"
    RESET = "reset"
    SUSPEND = "suspend"
    SEND = "send"
    RECEIVE = "receive"
    TAKE = "take"
    SHUTDOWN = "shutdown"
    KILL = "kill"
    CONSOLE = "console"
    SCREENSHOT = "screenshot"
    VNC = "vnc"
    EVENTS = "events"
    GUEST = "guest"


def ctl(
    action: Annotated[Action, typer.Argument(metavar="ACTION", help="What to ask of it.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WORD",
            help="After screenshot, FILE.png. After send, the receiver's IP address, with its invitation on standard "
            "input; after receive, its port [49152]. After guest: gpus; or for its agent ping; info; users; "
            "filesystems; or exec, and after -- a program and its arguments.",
        ),
    ] = None,
    socket: Annotated[
        # Root in a container may read it only after it has become its owner.
        Path | None,
        typer.Option(
            readable=False,
            help="The control socket of its `gpu-launcher run`.  "
            f"[default: {CONTROL_SOCKET}; without a pod that of your one VM]",
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS:PORT",
            help="For vnc: serve the screen there, like 127.0.0.1:5900.  [default: standard input and output]",
        ),
    ] = None,
    as_json: AsJSON = False,
    sysfs: Annotated[Path, typer.Option(help="For guest gpus: the directory that stands for /sys.")] = Path("/sys"),
    timeout: Annotated[
        int, typer.Option(min=1, metavar="SECONDS", help="How long the guest's agent, or its program, may take.")
    ] = 10,
) -> int | None:
    """Ask something of the VM that runs in this pod, or on this machine."""
    if words and action not in (Action.GUEST, Action.SCREENSHOT, Action.SEND, Action.RECEIVE):
        raise UserError(f"ctl {action.value}", f"found {words[0]!r} after it", "leave that out")
    if listen is not None and action is not Action.VNC:
        raise UserError("--listen", f"is not for {action.value}", "leave it out, or call ctl vnc")
    if as_json and action not in (Action.STATE, Action.EVENTS, Action.GUEST):
        raise UserError("--json", f"is not for {action.value}", "leave it out: state, events and guest have it")
    # --help needs none of the imports below.
    from launcher.control import messages
    from launcher.control.client import ask, ask_for_all

    named = socket

    def at() -> Path:
        """Return the socket, once the words are known to be right."""
        place = named or _socket_here()
        switch_to_owner_of(place)
        return place

    match action:
        case Action.STATE:
            state = ask(at(), messages.STATE)
            print(json.dumps(asdict(state)) if as_json else one_line(_state_line(state)))
        case Action.XML:
            print(ask(at(), messages.GET_XML).xml)
        case Action.EVENTS:
            for change in ask_for_all(at(), messages.EVENTS):
                print(json.dumps(asdict(change)) if as_json else one_line(_change_line(change)), flush=True)
        case Action.SUSPEND:
            if not [*ask_for_all(at(), messages.SUSPEND)][-1].saved:
                raise Refusal("ctl suspend", "the launcher has ended before it answered", "its log says why")
        case Action.SEND:
            request = _invitation(words or [], sys.stdin.buffer.read(_INVITATION + 1))
            try:
                if not [*ask_for_all(at(), messages.SEND, request)][-1].saved:
                    raise Refusal("ctl send", "the launcher has ended before it answered", "its log says why")
            except messages.Declined:
                print("not sent", flush=True)  # for kubectl gpuvm: without an answer it may be sent, or yet be
                raise
        case Action.RECEIVE:
            print(json.dumps(asdict(ask(at(), messages.RECEIVE, messages.ReceiveRequest(_port(words or []))))))
        case Action.CONSOLE:
            from launcher.control.console import attach

            console = ask(at(), messages.CONSOLE)
            attach(Path(console.path), *_standard(action))
        case Action.SCREENSHOT:
            _screenshot(at, words or [])
        case Action.VNC:
            _vnc(at, listen)
        case Action.GUEST:
            return _guest(at, words or [], timeout, sysfs, as_json=as_json)
        case _:  # pause, resume, reset, take, shutdown, kill
            ask(at(), messages.METHODS[action.value])
    return None


def _port(words: list[str]) -> int:
    match words:
        case []:
            return _MOVES_TO
        case [port] if port.isascii() and port.isdecimal() and int(port) < 1 << 16:
            return int(port)
    raise UserError("ctl receive", f"found {' '.join(words)!r} after it", "expected a port, 0 for any free one")


def _invitation(words: list[str], text: bytes) -> "SendRequest":
    from launcher.control.messages import SendRequest

    try:
        (address,) = words
        match json.loads(text) if len(text) <= _INVITATION else None:
            case {"port": int(port), "fingerprint": str(fingerprint), "token": str(token)}:
                return SendRequest(address, port, fingerprint, token)
    except (ValueError, RecursionError):
        pass
    fix = "expected the receiver's IP address after it, and on standard input what ctl receive has printed there"
    raise UserError("ctl send", "has no address or no invitation", fix)


def _socket_here() -> Path:
    """The pod's socket; on an own machine that of the user's one VM, for root also of those that root has started as
    other users. UserError if there are several, Refusal if there is none."""
    in_pod = Path(CONTROL_SOCKET)
    base = runtime_directory(os.environ, os.getuid())
    if base is None or in_pod.exists():
        return in_pod
    bases = [base]
    if os.getuid() == 0:  # whose VMs are other users' (launcher.runtime.own_user)
        callers = Path("/run/user", os.environ.get("SUDO_UID", "0"), base.name)
        bases += [callers, *RUN_OF_USERS.glob(f"*/{base.name}")]
    sockets = sorted({socket for each in bases for socket in each.glob(f"*/{SOCKET_IN_ROOT}")})
    if len(sockets) > 1:
        raise UserError(
            "--socket", f"several VMs of yours are here: {', '.join(map(str, sockets))}", "name one of them"
        )
    if not sockets:
        raise Refusal(
            "ctl",
            f"no VM runs here: there is no {in_pod}, as in a pod, and none of a VM of yours below {base}",
            "start one with gpu-launcher run, or name its control socket with --socket",
        )
    return sockets[0]


def _standard(action: Action) -> tuple[int, int]:
    if sys.stdin is None or sys.stdout is None:
        raise Refusal(action.value, "standard input or output is closed", "it joins the guest with both")
    return sys.stdin.fileno(), sys.stdout.fileno()


def _screenshot(at: Callable[[], Path], words: list[str]) -> None:
    """Write a picture of the guest's screen to a file, or to standard output for `-`."""
    from launcher.control.screen import picture_of

    match words:
        case ["-"]:
            if os.isatty(1):
                raise UserError("ctl screenshot -", "is on a terminal, which shows no pictures", "expected > FILE.png")
            print_bytes(picture_of(at())[1])
        case [name] if name.endswith((".png", ".ppm")):
            suffix, data = picture_of(at())
            if not name.endswith(suffix):
                raise Refusal(name, f"QEMU here makes no picture of that kind, but *{suffix}", f"name it *{suffix}")
            Path(name).write_bytes(data)
        case _:
            wrong = f"found {' '.join(words)!r} after it" if words else "is no file's name after it"
            raise UserError("ctl screenshot", wrong, "expected FILE.png, or - for standard output")


def _vnc(at: Callable[[], Path], listen: str | None) -> None:
    from launcher.control.client import ask
    from launcher.control.messages import SCREEN
    from launcher.control.screen import join_vnc, listening, serve_vnc

    if listen is None:
        source, sink = _standard(Action.VNC)
        if os.isatty(source) or os.isatty(sink):
            raise UserError(
                "ctl vnc", "is on a terminal, which shows no pictures", "expected a VNC client, or --listen"
            )
        join_vnc(Path(ask(at(), SCREEN).path), source, sink)
        return
    with listening(listen) as server:
        path = Path(ask(at(), SCREEN).path)
        print(f"gpu-launcher: the guest's screen is at {listen}, by VNC; Ctrl-C ends it", file=sys.stderr, flush=True)
        serve_vnc(server, path)


def _guest(at: Callable[[], Path], words: list[str], timeout: int, sysfs: Path, *, as_json: bool) -> int:
    """Ask the guest's agent; return the exit code of the program in the guest, or 128 and the signal that ended it."""
    from launcher.control import messages
    from launcher.control.client import ask

    patience, request = timeout + _BESIDE_THE_AGENT, messages.AgentRequest(timeout)
    match words:
        case ["ping"]:
            ask(at(), messages.GUEST_PING, request, patience=patience)
            return 0
        case ["info"]:
            info = ask(at(), messages.GUEST_INFO, request, patience=patience)
            print(json.dumps(asdict(info)) if as_json else "\n".join(lines_of(info)))
            return 0
        case ["users"]:
            users = ask(at(), messages.GUEST_USERS, request, patience=patience)
            _print_rows(users, map(user_row, users.users), as_json=as_json)
            return 0
        case ["filesystems"]:
            mounted = ask(at(), messages.GUEST_FILESYSTEMS, request, patience=patience)
            _print_rows(mounted, map(filesystem_row, mounted.filesystems), as_json=as_json)
            return 0
        case ["gpus"]:
            from launcher.control import gpus

            cards = ask(at(), messages.GUEST_GPUS, request, patience=patience)
            host = gpus.on_host(sysfs, cards)
            lines = [json.dumps(gpus.as_json(cards, *host))] if as_json else gpus.lines_of(cards, *host)
            print_text("".join(f"{one_line(line)}\n" for line in lines))
            return 0
        case ["exec", path, *arguments]:
            program = messages.GuestProgram(path, tuple(arguments), timeout)
            ended = ask(at(), messages.GUEST_EXEC, program, patience=patience)
            for stream, data in ((sys.stdout, ended.out), (sys.stderr, ended.err)):
                if stream is not None:
                    stream.buffer.write(base64.b64decode(data))
                    stream.flush()
            # An exit code has 8 bits here, and must not become 0.
            code = 128 + ended.signal if ended.signal else ended.code
            return code if code < 256 else 255
    raise UserError(
        "ctl guest",
        f"found {' '.join(words)!r} after it",
        "expected gpus, ping, info, users, filesystems, or exec -- PROGRAM [ARGUMENT]...",
    )


def _print_rows(answer: "GuestUsers | GuestFilesystems", rows: Iterable[tuple[str, ...]], *, as_json: bool) -> None:
    lines = [json.dumps(asdict(answer))] if as_json else aligned([*rows])
    print_text("".join(f"{line}\n" for line in lines))


def lines_of(info: "GuestInfo") -> list[str]:
    """Return a line for each thing that the agent tells."""
    lines = {"agent": f"qemu-guest-agent {info.agent}", "host": info.host_name, "system": info.system}
    lines["kernel"] = info.kernel
    for interface in info.interfaces:
        lines[f"interface {interface.name}"] = ", ".join(
            (*interface.addresses, *([interface.mac] * bool(interface.mac)))
        )
    return [one_line(f"{name}: {text}") for name, text in lines.items() if text]


def user_row(user: "GuestUser") -> tuple[str, ...]:
    name = f"{user.domain}\\{user.name}" if user.domain else user.name
    return one_line(name), f"since {datetime.fromtimestamp(user.login_time, UTC):%Y-%m-%dT%H:%M:%SZ}"


def filesystem_row(each: "GuestFilesystem") -> tuple[str, ...]:
    used = f"{100 * each.used // each.total}% of {each.total / (1 << 30):.1f} GiB used" if each.total else ""
    return tuple(map(one_line, (each.mount_point, each.name, each.type, used)))


def _state_line(state: "State") -> str:
    """`lab/one-gpu: running, paused (ioerror)`: the phase, and libvirt's state if it says more."""
    known = f", {state.state} ({state.reason})" if state.state not in ("", state.phase) else ""
    return f"{state.namespace}/{state.name}: {state.phase}{known}"


def _change_line(change: "VMEvent") -> str:
    """`2026-11-21T18:54:00.123Z running: suspended (paused)`; without an event if the phase has changed."""
    time = datetime.fromtimestamp(change.time, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    event = f": {change.event}" + (f" ({change.reason})" if change.reason else "") if change.event else ""
    lost = f" [{change.lost} before it are lost]" if change.lost else ""
    return f"{time} {change.phase}{event}{lost}"
