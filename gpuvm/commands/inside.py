"""The verbs that `gpu-launcher ctl` does in the VM's pod, as a table."""

import os
from collections.abc import Callable
from enum import Enum
from typing import Annotated, NamedTuple

import typer

from gpuvm.commands.options import ClusterFlags, OneVM, VMName
from program.commands import AsJSON
from program.output import print_foreign


class Verb(NamedTuple):
    """`words` are those of `gpu-launcher ctl`, and `done` is said when a verb without output is done.

    A verb that `lasts` goes on until its user or the guest ends it; one that is `typed` has what its user types.
    """

    words: tuple[str, ...]
    help: str
    done: str = ""
    has_json: bool = False
    lasts: bool = False
    typed: bool = False


_VERBS = {
    "pause": Verb(("pause",), "Stop the guest's virtual CPUs; its cards do not stop.", done="paused"),
    "unpause": Verb(("resume",), "Let the guest's virtual CPUs run again.", done="unpaused"),
    "reset": Verb(("reset",), "Press the guest's reset button: it gets no warning.", done="reset"),
    "state": Verb(("state",), "Say what the VM does now, as its launcher and libvirt have it.", has_json=True),
    "events": Verb(("events",), "Say what happens to the VM, a line each, until it ends.", has_json=True, lasts=True),
    "console": Verb(
        ("console",), "Join the guest's serial port, until Ctrl-] or the VM's end.", lasts=True, typed=True
    ),
}


class About(Enum):
    """What is told of the guest."""

    INFO = "info"
    USERS = "users"
    FILESYSTEMS = "filesystems"
    GPUS = "gpus"


def guest(
    about: Annotated[About, typer.Argument(metavar="ABOUT", help="What to ask for.")],
    vm: OneVM,
    cluster: ClusterFlags,
    as_json: AsJSON = False,
) -> None:
    """Say what qemu-guest-agent tells of the guest: its system and addresses, its users, or its file systems; or where
    its cards are, and what they do."""
    _run(Verb(("guest", about.value), ""), [vm], cluster, as_json=as_json)


def __getattr__(name: str) -> Callable[..., None]:
    """Return the verb of that name as a command."""
    if name not in _VERBS:
        raise AttributeError(name)
    verb = _VERBS[name]

    def command(vm: VMName, cluster: ClusterFlags) -> None:
        _run(verb, vm, cluster)

    def command_with_json(vm: VMName, cluster: ClusterFlags, as_json: AsJSON = False) -> None:
        _run(verb, vm, cluster, as_json=as_json)

    chosen = command_with_json if verb.has_json else command
    chosen.__doc__ = verb.help
    return chosen


def _run(verb: Verb, vm: list[str], cluster: ClusterFlags, *, as_json: bool = False) -> None:
    kubectl, pod = cluster.running_pod(vm)
    words = (*verb.words, *["--json"] * as_json)
    if verb.typed:
        kubectl.join_ctl(pod, *words, tty="-it" if os.isatty(0) else "-i")
    elif verb.lasts:
        kubectl.follow_ctl(pod, *words)
    else:
        print_foreign(kubectl.ctl(pod, *words))
    if verb.done:
        print(f"{pod.name}: {verb.done}")
