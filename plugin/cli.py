"""gpu-plugin's command line: each command is a module of plugin.commands."""

from collections.abc import Sequence
from importlib import import_module

import typer

#: Where each command is.
_COMMANDS = {
    "inventory": "plugin.commands.inventory",
    "doctor": "plugin.commands.doctor",
    "bind": "plugin.commands.bind",
    "unbind": "plugin.commands.bind",
    "serve": "plugin.commands.serve",
    "config": "plugin.commands.config",
    "record": "plugin.commands.record",
}


def command_line(arguments: Sequence[str]) -> typer.Typer:
    """The program for these arguments: the command they name, or all of them, for help and for what is no command.

    A command is imported when it is called, since the daemon's start should not wait for the doctor's.
    """
    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        help="Offers a node's passthrough GPUs to the kubelet.",
    )
    app.callback()(lambda: None)  # a program of one command would take no command's name
    for name in [name for name in _COMMANDS if name in arguments[:1]] or _COMMANDS:
        command = getattr(import_module(_COMMANDS[name]), name)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command()(command)
    return app
