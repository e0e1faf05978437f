"""The verbs that `gpu-launcher ctl` does in the VM's pod, as a table."""

import os
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any, NamedTuple

import typer

from gpuvm.commands.options import VM, Cluster, OneVM, Output, ctl_in
from program.output import print_text
from program.problem import one_line


class Verb(NamedTuple):
    """`words` are those of `gpu-launcher ctl`. `done` is said when a verb without output is done. A verb that `lasts`
    goes on until its user or the guest ends it; one on a terminal has its keys."""

    words: tuple[str, ...]
    help: str
    done: str = ""
    lasts: bool = False
    typed: bool = False


#: Verbs without output.
_DONE = {
    "pause": Verb(("pause",), "Stop the guest's virtual CPUs; its cards do not stop.", "paused"),
    "unpause": Verb(("resume",), "Let the guest's virtual CPUs run again.", "unpaused"),
    "reset": Verb(("reset",), "Press the guest's reset button: it gets no warning.", "reset"),
}
#: Verbs with output, as JSON too.
_TOLD = {
    "state": Verb(("state",), "Say what the VM does now, as its launcher and libvirt have it."),
    "events": Verb(("events",), "Say what happens to the VM, a line each, until it ends.", lasts=True),
}
_CONSOLE = Verb(("console",), "Join the guest's serial port, until Ctrl-] or the VM's end.", lasts=True, typed=True)


class About(Enum):
    """What the guest's agent tells."""

    INFO = "info"
    USERS = "users"
    FILESYSTEMS = "filesystems"


def guest(
    about: Annotated[About, typer.Argument(help="What to ask its agent for.")],
    vm: OneVM,
    cluster: Cluster,
    output: Output = None,
) -> None:
    """Say what qemu-guest-agent tells of the guest: its system and addresses, its users, or its file systems."""
    _run(Verb(("guest", about.value), ""), [vm], cluster, as_json=output is not None)


def __getattr__(name: str) -> Callable[..., None]:
    """Return the verb of that name as a command."""
    if name in _DONE:
        return _command(_DONE[name])
    if name in _TOLD:
        return _command_with_output(_TOLD[name])
    if name == "console":
        return _command(_CONSOLE)
    raise AttributeError(name)


def _command(verb: Verb) -> Callable[..., None]:
    def command(vm: VM, cluster: Cluster) -> None:
        _run(verb, vm, cluster)

    command.__doc__ = verb.help
    return command


def _command_with_output(verb: Verb) -> Callable[..., None]:
    def command(vm: VM, cluster: Cluster, output: Output = None) -> None:
        _run(verb, vm, cluster, as_json=output is not None)

    command.__doc__ = verb.help
    return command


def _run(verb: Verb, vm: list[str], cluster: Cluster, *, as_json: bool = False) -> None:
    kubectl, pod = cluster.pod(vm)
    words: tuple[Any, ...] = (*verb.words, *(["--json"] if as_json else []))
    if verb.lasts:
        tty = ("-it" if os.isatty(0) else "-i") if verb.typed else ""
        kubectl.be(*ctl_in(pod, *words, tty=tty))
    # A pod may be somebody else's, and say anything to a terminal.
    told = kubectl.output(*ctl_in(pod, *words)).decode(errors="backslashreplace")
    print_text("".join(f"{one_line(line)}\n" for line in told.splitlines()))
    if verb.done:
        print(f"{pod['metadata']['name']}: {verb.done}")
