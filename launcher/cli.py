"""gpu-launcher's command line: each command is a module of launcher.commands."""

from collections.abc import Sequence
from importlib import import_module

import typer

_COMMANDS = ("render", "explain", "pod", "schema", "run", "check", "ctl")


def command_line(arguments: Sequence[str]) -> typer.Typer:
    """The program for these arguments: the command they name, or all of them, for help and for what is no command.

    A command is imported when it is called, since `render` should not wait for what `run` needs.
    """
    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        help="Runs a KubeVirt VM with its GPUs, or prints its libvirt domain.",
    )
    app.callback()(lambda: None)  # a program of one command would take no command's name
    for name in [name for name in _COMMANDS if name in arguments[:1]] or _COMMANDS:
        app.command()(getattr(import_module(f"launcher.commands.{name}"), name))
    return app
