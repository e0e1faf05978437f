"""gpu-launcher's command line: each command is a module of launcher.commands."""

from collections.abc import Sequence

import typer

from program import commands

_COMMANDS = ("render", "explain", "pod", "fit", "map:map_cluster", "schema", "run", "check", "ctl", "hook")


def command_line(arguments: Sequence[str]) -> typer.Typer:
    """Return the program for these arguments."""
    modules = {place.partition(":")[0]: f"launcher.commands.{place}" for place in _COMMANDS}
    return commands.command_line(arguments, modules, "Runs a KubeVirt VM with its GPUs, or prints its libvirt domain.")
