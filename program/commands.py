"""A command line of which each command is a module, imported only when it is called."""

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import typer

from program.problem import one_line


def command_line(arguments: Sequence[str], modules: Mapping[str, str], description: str) -> typer.Typer:
    """Return the program for these arguments: the command they name, or all, for help and for what is no command.

    `modules` has the module of each command, which has a function, or commands of its own, of the command's name. A
    command is imported when it is called, since one should not wait for what another needs.
    """
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None, help=description)
    app.callback()(lambda: None)  # a program of one command would take no command's name
    for name in [name for name in modules if name in arguments[:1]] or modules:
        command = getattr(import_module(modules[name]), name)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command()(command)
    return app


def called(program: str, app: typer.Typer) -> Any:
    """Call the command of this process's arguments; return what it returns.

    A wrong command line is one line on standard error, and its exit code is returned.
    """
    try:
        return app(standalone_mode=False)
    except typer.TyperException as error:
        print(f"{program}: {one_line(error.format_message()).rstrip('.')}. Try: {program} --help", file=sys.stderr)
        return error.exit_code
