"""A command line with a module for each command, imported only when the command is called."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import wraps
from importlib import import_module
from inspect import Parameter, Signature, signature
from typing import Annotated, Any

import typer

from program.bootstrap import command_named
from program.flags import Flag
from program.problem import one_line


class _OutputFormat(Enum):
    JSON = "json"


#: True if a command that prints for people is to print the same for programs: by -o json, as kubectl has it, or --json.
AsJSON = Annotated[bool, _OutputFormat]

_JSON_FLAGS = {
    "output": Annotated[_OutputFormat | None, typer.Option("--output", "-o", help="For programs.")],
    "json": Annotated[bool, typer.Option("--json", help="As -o json.")],
}


def _say_version(context: typer.Context, wanted: bool) -> None:
    if wanted:
        # Other commands need not wait for this import.
        from importlib.metadata import version

        print(f"{context.info_name} {version('gpu-launcher')}")
        raise typer.Exit


def _program(
    _: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Say which version this is.")
    ] = False,
) -> None:
    """Take the flags before a command. Without this callback, typer expects no command's name if there is only one."""


def command_line(arguments: Sequence[str], modules: Mapping[str, str], description: str) -> typer.Typer:
    """Return the program with the command that these arguments name; with all commands if they name none.

    `modules` has the module of each command. There the command's name, or the name behind a colon, is a function, as
    `taken_by_typer` describes it, or a typer.Typer with commands of its own. Only the called command is imported, so no
    command waits for another's imports. A command that takes a typer.Context gets unknown words in `context.args`.
    """
    app = typer.Typer(
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(help=description)(_program)
    named = command_named(arguments)
    for name in [named] if named in modules else modules:
        module, _, function = modules[name].partition(":")
        command = getattr(import_module(module), function or name)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            more = any(each.annotation is typer.Context for each in signature(command).parameters.values())
            settings = {"allow_extra_args": more, "ignore_unknown_options": more}
            app.command(name, context_settings=settings)(taken_by_typer(command))
    return app


def taken_by_typer(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return the command with a signature that typer takes.

    A parameter that is a dataclass is a set of flags: typer gets its fields as parameters, and the command gets the
    dataclass. A Flag in an annotation becomes a typer.Option, and AsJSON two flags.
    """
    sets: dict[str, Any] = {}
    as_json = None
    parameters: list[Parameter] = []
    for parameter in signature(command).parameters.values():
        if is_dataclass(parameter.annotation):
            sets[parameter.name] = parameter.annotation
            for field in fields(parameter.annotation):
                default = Parameter.empty if field.default is MISSING else field.default
                parameters.append(_parameter(field.name, default, field.type))
        elif parameter.annotation == AsJSON:
            as_json = parameter.name
            parameters.append(_parameter("output", None, _JSON_FLAGS["output"]))
            parameters.append(_parameter("json", False, _JSON_FLAGS["json"]))
        else:
            parameters.append(_parameter(parameter.name, parameter.default, parameter.annotation))

    @wraps(command)
    def call(**values: Any) -> Any:
        for name, flags in sets.items():
            values[name] = flags(**{field.name: values.pop(field.name) for field in fields(flags)})
        if as_json is not None:
            values[as_json] = any([values.pop("output"), values.pop("json")])
        return command(**values)

    call.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return call


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


def run_command(program: str, app: typer.Typer) -> Any:
    """Call the command of this process's arguments, and return what it returns.

    For a wrong command line print one line on standard error, which names the command whose help says more, and return
    the exit code.
    """
    try:
        return app(standalone_mode=False)
    except typer.TyperException as error:
        # The possible choices stand in lines of their own, and pydantic introduces a wrong choice.
        message = one_line(" ".join(error.format_message().replace("Value error, ", "").split())).rstrip(".")
        end = "" if message.endswith("?") else "."
        context = getattr(error, "ctx", None)
        command = program if context is None else context.command_path
        from program.log import log_or_print  # a right command line need not wait for logging

        log_or_print(program, f"{message}{end} Try: {command} --help")
        return error.exit_code
