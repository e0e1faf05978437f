"""gpu-plugin's command line: each command is a module of plugin.commands."""

from collections.abc import Sequence

import typer

from program import commands

_MODULES = {
    "inventory": "plugin.commands.inventory",
    "doctor": "plugin.commands.doctor",
    "bind": "plugin.commands.bind",
    "unbind": "plugin.commands.bind",
    "serve": "plugin.commands.serve",
    "vgpus": "plugin.commands.vgpus",
    "config": "plugin.commands.config",
    "record": "plugin.commands.record",
}


def command_line(arguments: Sequence[str]) -> typer.Typer:
    """Return the program for these arguments."""
    return commands.command_line(arguments, _MODULES, "Offers a node's passthrough GPUs to the kubelet.")
