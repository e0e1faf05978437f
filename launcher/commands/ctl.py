"""gpu-launcher ctl."""

import json
import sys
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from launcher.paths import CONTROL_SOCKET
from launcher.running.user import become_owner_of
from program.errors import Refusal, UserError
from program.problem import one_line

#: Seconds for the launcher, beside the guest's agent.
_BESIDE_THE_AGENT = 10


class Action(Enum):
    """What may be asked of a VM that runs."""

    STATE = "state"
    XML = "xml"
    PAUSE = "pause"
    RESUME = "resume"
    RESET = "reset"
    SHUTDOWN = "shutdown"
    KILL = "kill"
    CONSOLE = "console"
    EVENTS = "events"
    GUEST = "guest"


def ctl(
    action: Annotated[Action, typer.Argument(help="What to ask of it.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WORD]...",
            help="After guest, for its agent: ping; or exec, and after -- a program and its arguments.",
        ),
    ] = None,
    socket: Annotated[
        # Root of a container may not read it before it has become its owner.
        Path, typer.Option(readable=False, help="The control socket of its `gpu-launcher run`.")
    ] = Path(CONTROL_SOCKET),
    as_json: Annotated[bool, typer.Option("--json", help="state and events as JSON, one object a line.")] = False,
    timeout: Annotated[
        int, typer.Option(min=1, metavar="SECONDS", help="How long the guest's agent, or its program, may take.")
    ] = 10,
) -> int | None:
    """Ask something of the VM that runs in this pod."""
    if words and action is not Action.GUEST:
        raise UserError(f"ctl {action.value}", f"found {words[0]!r} after it", "leave that out")
    # Nothing above this line is needed for --help.
    from launcher.control.client import ask, ask_for_all

    become_owner_of(socket)
    match action:
        case Action.STATE:
            state = ask(socket, "GetState")
            print(json.dumps(_fields(state)) if as_json else one_line(_state_line(state)))
        case Action.XML:
            print(ask(socket, "GetXML").xml)
        case Action.EVENTS:
            for change in ask_for_all(socket, "WatchChanges"):
                print(json.dumps(_fields(change)) if as_json else one_line(_change_line(change)), flush=True)
        case Action.CONSOLE:
            from launcher.control.console import attach

            console = ask(socket, "GetConsole")
            if sys.stdin is None or sys.stdout is None:
                raise Refusal("console", "standard input or output is closed", "it joins the guest with both")
            attach(Path(console.path), sys.stdin.fileno(), sys.stdout.fileno())
        case Action.GUEST:
            return _guest(socket, words or [], timeout)
        case _:  # Pause, Resume, Reset, Shutdown, Kill
            ask(socket, action.value.capitalize())
    return None


def _guest(socket: Path, words: list[str], timeout: int) -> int:
    """Ask the guest's agent; the exit code is the program's in the guest, 128 and its number for a signal."""
    from launcher.control.client import ask

    patience = timeout + _BESIDE_THE_AGENT
    match words:
        case ["ping"]:
            ask(socket, "PingGuest", patience=patience, seconds=timeout)
            return 0
        case ["exec", path, *arguments]:
            ended = ask(socket, "ExecInGuest", patience=patience, path=path, arguments=arguments, seconds=timeout)
            for stream, said in ((sys.stdout, ended.out), (sys.stderr, ended.err)):
                if stream is not None:
                    stream.buffer.write(said)
                    stream.flush()
            # A process has 8 bits for it, and what is not 0 has to stay so.
            code = 128 + ended.signal if ended.signal else ended.code
            return int(code if code < 256 else 255)
    raise UserError(
        "ctl guest", f"found {' '.join(words)!r} after it", "expected ping, or exec -- PROGRAM [ARGUMENT]..."
    )


def _fields(message: Any) -> dict[str, Any]:
    """All fields by name, the empty ones too."""
    return {field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields}


def _state_line(state: Any) -> str:
    """`lab/one-gpu: running, paused (ioerror)`: the phase, and libvirt's state where it says more."""
    known = f", {state.state} ({state.reason})" if state.state not in ("", state.phase) else ""
    return f"{state.namespace}/{state.name}: {state.phase}{known}"


def _change_line(change: Any) -> str:
    """`2026-11-21T18:54:00.123Z running: suspended (paused)`; without an event, the phase has changed."""
    time = datetime.fromtimestamp(change.time, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    event = f": {change.event}" + (f" ({change.reason})" if change.reason else "") if change.event else ""
    lost = f" [{change.lost} before it are lost]" if change.lost else ""
    return f"{time} {change.phase}{event}{lost}"
