"""A command line of which each command is a module, imported only when it is called."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from importlib import import_module
from inspect import Parameter, Signature, signature
from typing import Annotated, Any

import typer

from program.bootstrap import command_named
from program.flags import Flag
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

    `modules` has the module of each command, which has a function, as `taken_by_typer` describes it, or commands of its
    own, of the command's name. A command is imported when it is called, since one should not wait for what another
    needs.
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
            app.command()(taken_by_typer(command))
    return app


def taken_by_typer(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return the command with a signature that typer takes.

    A parameter that is a dataclass is a set of flags: typer gets its fields as parameters, and the command gets the
    dataclass. A Flag in an annotation becomes a typer.Option.
    """
    sets: dict[str, Any] = {}
    parameters: list[Parameter] = []
    for parameter in signature(command).parameters.values():
        if is_dataclass(parameter.annotation):
            sets[parameter.name] = parameter.annotation
            for field in fields(parameter.annotation):
                default = Parameter.empty if field.default is MISSING else field.default
                parameters.append(_parameter(field.name, default, field.type))
        else:
            parameters.append(_parameter(parameter.name, parameter.default, parameter.annotation))

    @wraps(command)
    def called(**values: Any) -> Any:
        for name, flags in sets.items():
            values[name] = flags(**{field.name: values.pop(field.name) for field in fields(flags)})
        return command(**values)

    called.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return called


def _parameter(name: str, default: object, annotation: Any) -> Parameter:
    for flag in getattr(annotation, "__metadata__", ()):
        if isinstance(flag, Flag):
            options = flag._asdict() | {"parser": None if flag.parser is None else _refusing(flag.parser)}
            annotation = Annotated[annotation.__origin__, typer.Option(**options)]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _refusing(parser: Callable[[str], object]) -> Callable[[str], object]:
    def parsed(word: str) -> object:
        try:
            return parser(word)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error

    return parsed


def called(program: str, app: typer.Typer) -> Any:
    """Call the command of this process's arguments; return what it returns.

    A wrong command line is one line on standard error, with the command whose help says more; its exit code is
    returned.
    """
    try:
        return app(standalone_mode=False)
    except typer.TyperException as error:
        # What may be chosen stands in lines of its own, and a wrong choice is introduced by pydantic's words.
        message = one_line(" ".join(error.format_message().replace("Value error, ", "").split())).rstrip(".")
        end = "" if message.endswith("?") else "."
        context = getattr(error, "ctx", None)
        command = program if context is None else context.command_path
        print(f"{program}: {message}{end} Try: {command} --help", file=sys.stderr)
        return error.exit_code
