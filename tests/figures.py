"""How large the project is, as `make figures` prints it: source, tests, docs, decisions and flags."""

from collections.abc import Iterable
from pathlib import Path

from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

import gpuvm.cli
import launcher.cli
import plugin.cli
from tests.processes import ROOT

SOURCE = ("launcher", "plugin", "gpuvm", "pci", "program", "drawing")


def lines(files: Iterable[Path]) -> int:
    return sum(len(file.read_text().splitlines()) for file in files)


def words(pages: Iterable[Path]) -> int:
    return sum(len(page.read_text().split()) for page in pages)


def flags(command: object) -> list[str]:
    """Options of a command and of all below it, but for --help and --version."""
    if isinstance(command, TyperGroup):
        return [flag for each in command.commands.values() for flag in flags(each)]
    assert isinstance(command, TyperCommand)
    return [each.opts[0] for each in command.params if isinstance(each, TyperOption)]


def figures(root: Path) -> dict[str, int]:
    """Each figure by its name. Modules that protoc has written do not count."""
    modules = [path for part in SOURCE for path in (root / part).rglob("*.py") if "_pb2" not in path.name]
    docs = [*(root / "docs").rglob("*.md"), *(root / "deploy").rglob("*.md"), *root.glob("*.md")]
    docs = [page for page in docs if page.name != "CHANGELOG.md"]
    decisions = [page for page in docs if page.parent.name == "decisions"]
    programs = (launcher.cli, plugin.cli, gpuvm.cli)
    every = [flag for program in programs for flag in flags(get_command(program.command_line([])))]
    return {
        "lines of source": lines(modules),
        "modules": len(modules),
        "lines of tests": lines((root / "tests").rglob("*.py")),
        "words of docs": words(docs),
        "words of decisions among them": words(decisions),
        "decisions": len(decisions),
        "flags": len(every),
        "different flags among them": len(set(every)),
    }


if __name__ == "__main__":
    for name, number in figures(ROOT).items():
        print(f"{number:8,}  {name}")
