"""What every command line of both programs can do."""

import json
import os
import pty
import re
import subprocess
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import pytest
import typer

from program.commands import taken_by_typer
from program.flags import Flag
from tests.conftest import Command
from tests.processes import BIN, FIXTURES, ROOT

PROGRAMS = ("gpu-plugin", "gpu-launcher")
#: The commands that print a page for people, and the same for programs.
FOR_PROGRAMS = (
    ("gpu-plugin", "inventory"),
    ("gpu-plugin", "doctor"),
    ("gpu-plugin", "config check"),
    ("gpu-launcher", "explain"),
    ("gpu-launcher", "check"),
    ("gpu-launcher", "ctl"),
)


@pytest.fixture
def call(gpu_plugin: Command, gpu_launcher: Command) -> Command:
    return lambda program, *arguments, **named: {"gpu-plugin": gpu_plugin, "gpu-launcher": gpu_launcher}[program](
        *arguments, **named
    )


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_says_its_version(call: Command, program: str) -> None:
    result = call(program, "--version")
    assert (result.stdout, result.stderr, result.returncode) == (f"{program} {version('gpu-launcher')}\n", "", 0)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("command", [[], ["inventory"], ["explain"], ["config", "check"]])
def test_h_is_help(call: Command, program: str, command: list[str]) -> None:
    if command and (command[0] == "explain") != (program == "gpu-launcher"):
        return
    short, long = call(program, *command, "-h"), call(program, *command, "--help")
    assert (short.stdout, short.returncode) == (long.stdout, 0)
    assert short.stdout.startswith(f"Usage: {' '.join([program, *command])}")


@pytest.mark.parametrize(
    ("program", "arguments", "tries"),
    [
        ("gpu-launcher", ("render", "--frobnicate"), "gpu-launcher render --help"),
        ("gpu-launcher", ("render",), "gpu-launcher render --help"),
        ("gpu-launcher", ("check", "--env", "X=1"), "gpu-launcher check --help"),
        ("gpu-launcher", ("run", "--metrics", "eighty"), "gpu-launcher run --help"),
        ("gpu-launcher", ("ctl", "dance"), "gpu-launcher ctl --help"),
        ("gpu-launcher", ("hook", "domain.xml", "other.xml"), "gpu-launcher hook --help"),
        ("gpu-launcher", ("frobnicate",), "gpu-launcher --help"),
        ("gpu-plugin", ("serve", "--health", "eighty"), "gpu-plugin serve --help"),
        ("gpu-plugin", ("config", "check"), "gpu-plugin config check --help"),
        ("gpu-plugin", (), "gpu-plugin --help"),
    ],
)
def test_a_wrong_command_line_names_the_help_of_its_own_command(
    call: Command, program: str, arguments: tuple[str, ...], tries: str
) -> None:
    result = call(program, *arguments)
    assert result.stderr.endswith(f" Try: {tries}\n")
    assert (result.stderr.count("\n"), result.stdout, result.returncode) == (1, "", 2)


@pytest.mark.parametrize(
    ("program", "words", "completed"),
    [
        ("gpu-plugin", "gpu-plugin inv", "inventory"),
        ("gpu-launcher", "gpu-launcher exp", "explain"),
        ("gpu-launcher", "gpu-launcher explain --sv", "--svg"),
        ("gpu-launcher", "gpu-launcher ctl sta", "state"),
    ],
)
def test_a_shell_completes_words(call: Command, program: str, words: str, completed: str) -> None:
    variable = f"_{program.upper().replace('-', '_')}_COMPLETE"
    count = len(words.split()) - 1
    env = {variable: "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(count)}
    assert call(program, env=env).stdout.split() == [completed]


@pytest.mark.parametrize(("program", "command"), FOR_PROGRAMS)
def test_what_is_a_page_for_people_is_json_for_programs(call: Command, program: str, command: str) -> None:
    assert "-o, --output <json>" in call(program, *command.split(), "--help").stdout


def on_a_terminal(*arguments: str, **env: str) -> str:
    """What the program writes to a terminal that has 60 columns."""
    terminal, other = pty.openpty()
    os.set_blocking(terminal, False)
    whole = {"PATH": os.environ["PATH"], "COLUMNS": "60", **env}
    subprocess.run([BIN / arguments[0], *arguments[1:]], stdout=other, stderr=other, cwd=ROOT, env=whole, check=False)
    os.close(other)
    try:
        return os.read(terminal, 1 << 16).decode()
    finally:
        os.close(terminal)


DOCTOR = ("gpu-plugin", "doctor", "--sysfs", str(FIXTURES / "sysfs/rtx-2060-without-iommu"))


def test_the_doctors_words_have_colours_on_a_terminal_and_lines_as_long_as_it() -> None:
    page = on_a_terminal(*DOCTOR)
    assert "\x1b[1;31mERROR\x1b[0m    devices that can be handed out: 0 of 2\r\n" in page
    assert all(len(line) <= 60 for line in page.split("\r\n\r\n  FUNCTION")[0].split("\r\n") if "\x1b" not in line)
    assert "\x1b" not in on_a_terminal(*DOCTOR, NO_COLOR="1")


def test_warnings_have_colours_on_a_terminal() -> None:
    gpus = (
        "tests/fixtures/vms/one-gpu.yaml",
        "--env",
        "PCI_RESOURCE_NVIDIA_COM_TU106_GEFORCE_RTX_2060_REV__A=0000:01:00.0",
    )
    assert on_a_terminal("gpu-launcher", "explain", *gpus).count("gpu-launcher: \x1b[1;33mwarning:\x1b[0m ") == 1


@dataclass(frozen=True, kw_only=True)
class Some:
    file: Annotated[Path, typer.Argument()]
    number: Annotated[int, Flag("How many.", metavar="N", envvar="SOME_NUMBER", parser=int)] = 1


@dataclass(frozen=True, kw_only=True)
class More(Some):
    """A set in another, and what that has otherwise."""

    file: Annotated[Path, typer.Argument()] = Path("default")
    several: Annotated[list[str] | None, typer.Option("--one")] = None


def command(flags: More, loud: Annotated[bool, typer.Option("--loud")] = False) -> tuple[More, bool]:
    """Do something."""
    return flags, loud


@pytest.mark.parametrize(
    ("arguments", "flags", "loud"),
    [
        ([], More(), False),
        (["a", "--number=3", "--loud"], More(file=Path("a"), number=3), True),
        (["--one", "b", "a", "--one=c"], More(file=Path("a"), several=["b", "c"]), False),
    ],
)
def test_a_set_of_flags_is_said_once_and_a_command_is_called_with_it(
    arguments: list[str], flags: More, loud: bool
) -> None:
    app = typer.Typer()
    app.command()(taken_by_typer(command))
    assert app(arguments, standalone_mode=False) == (flags, loud)


def test_a_flag_that_no_typer_knows_is_one_of_typers(capsys: pytest.CaptureFixture[str]) -> None:
    app = typer.Typer(rich_markup_mode=None)
    app.command()(taken_by_typer(command))
    app(["--help"], standalone_mode=False)
    said = capsys.readouterr().out
    assert "Do something." in said
    assert re.search(r"--number N +How many.  \[env var: SOME_NUMBER; default: 1\]\n", said)
    with pytest.raises(typer.BadParameter, match="invalid literal for int"):
        app(["--number", "many"], standalone_mode=False)


@pytest.mark.parametrize("flag", [["--json"], ["-o", "json"], ["--output", "json"]])
def test_each_spelling_of_the_flag_for_programs_prints_json(flag: list[str], gpu_plugin: Command) -> None:
    printed = gpu_plugin("inventory", *flag, "--sysfs", FIXTURES / "sysfs/rtx-2060").stdout
    assert len(json.loads(printed)["devices"]) == 2
