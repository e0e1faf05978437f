"""gpu-launcher ctl."""

import json
import sys
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from launcher.errors import Refusal
from launcher.paths import CONTROL_SOCKET
from launcher.running.user import become_owner_of
from program.problem import one_line


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


_CMD = {
    Action.PAUSE: "PauseVirtualMachine",
    Action.RESUME: "UnpauseVirtualMachine",
    Action.RESET: "ResetVirtualMachine",
    Action.SHUTDOWN: "ShutdownVirtualMachine",
    Action.KILL: "KillVirtualMachine",
}


def ctl(
    action: Annotated[Action, typer.Argument(help="What to ask of it.")],
    socket: Annotated[
        # Root of a container may not read it before it has become its owner.
        Path, typer.Option(readable=False, help="The control socket of its `gpu-launcher run`.")
    ] = Path(CONTROL_SOCKET),
    as_json: Annotated[bool, typer.Option("--json", help="state and events as JSON, one object a line.")] = False,
) -> None:
    """Ask something of the VM that runs in this pod."""
    # Nothing above this line is needed for --help.
    from launcher.control.api import vm_pb2 as api
    from launcher.control.client import ask, ask_for_all

    become_owner_of(socket)
    ours = "/gpu_launcher.v1.VirtualMachine"
    match action:
        case Action.STATE:
            state = ask(socket, f"{ours}/GetState", api.GetStateRequest(), api.State)
            print(json.dumps(_fields(state)) if as_json else one_line(_state_line(state)))
        case Action.XML:
            print(ask(socket, f"{ours}/GetXML", api.GetXMLRequest(), api.XML).xml)
        case Action.EVENTS:
            for change in ask_for_all(socket, f"{ours}/WatchChanges", api.WatchChangesRequest(), api.Change):
                print(json.dumps(_fields(change)) if as_json else one_line(_change_line(change)), flush=True)
        case Action.CONSOLE:
            from launcher.control.console import attach

            console = ask(socket, f"{ours}/GetConsole", api.GetConsoleRequest(), api.Console)
            if sys.stdin is None or sys.stdout is None:
                raise Refusal("console joins the guest with standard input and output; one of them is closed")
            attach(Path(console.path), sys.stdin.fileno(), sys.stdout.fileno())
        case _:
            from launcher.control.api import cmd_pb2

            answer = ask(socket, f"/kubevirt.cmd.v1.Cmd/{_CMD[action]}", cmd_pb2.VMIRequest(), cmd_pb2.Response)
            if not answer.success:
                raise Refusal(answer.message)


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
