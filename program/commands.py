"""A command line of which each command is a module, imported only when it is called."""

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Annotated, Any

import typer

from program.first import command_named
from program.problem import one_line

#: The flag of every command that prints for people, and can print the same for programs.
AsJSON = Annotated[bool, typer.Option("--json", help="For programs.")]


def _say_version(context: typer.Context, wanted: bool) -> None:
    if wanted:
        # Nobody else waits for it.
        from importlib.metadata import version

        print(f"{context.info_name} {version('gpu-launcher')}")
        raise typer.Exit


def _program(
    _: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Say which version this is.")
    ] = False,
) -> None:
    """Take what goes before a command. A program of one command would take no command's name."""


def command_line(arguments: Sequence[str], modules: Mapping[str, str], description: str) -> typer.Typer:
    """Return the program for these arguments: the command they name, or all, for help and for what is no command.

    `modules` has the module of each command, which has a function, or commands of its own, of the command's name. A
    command is imported when it is called, since one should not wait for what another needs.
    """
    app = typer.Typer(
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(help=description)(_program)
    named = command_named(arguments)
    for name in [named] if named in modules else modules:
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
        # What may be chosen stands in lines of its own, and a wrong choice is introduced by pydantic's words.
        message = one_line(" ".join(error.format_message().replace("Value error, ", "").split())).rstrip(".")
        end = "" if message.endswith("?") else "."
        print(f"{program}: {message}{end} Try: {program} --help", file=sys.stderr)
        return error.exit_code
