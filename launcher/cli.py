"""gpu-launcher's command line: each command is a module of launcher.commands."""

from collections.abc import Sequence

import typer

from program import commands

_COMMANDS = ("render", "explain", "pod", "fit", "schema", "run", "check", "ctl", "hook")


def command_line(arguments: Sequence[str]) -> typer.Typer:
    """Return the program for these arguments."""
    modules = {name: f"launcher.commands.{name}" for name in _COMMANDS}
    return commands.command_line(arguments, modules, "Runs a KubeVirt VM with its GPUs, or prints its libvirt domain.")
