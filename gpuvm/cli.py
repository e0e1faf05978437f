"""kubectl-gpuvm's command line: verbs, by the module and function of each."""

from collections.abc import Sequence

import typer

from program import commands

VERBS = {
    "list": "vms:list_vms",
    "why": "why",
    "map": "map:map_cluster",
    "cordon": "cordon",
    "uncordon": "cordon",
    "start": "power",
    "stop": "power",
    "restart": "power",
    "suspend": "power",
    "resume": "power",
    "move": "move",
    "pause": "inside",
    "unpause": "inside",
    "reset": "inside",
    "state": "inside",
    "events": "inside",
    "console": "inside",
    "guest": "inside",
    "vnc": "screen",
    "screenshot": "screen",
    "ssh": "ports",
    "scp": "ports",
    "port-forward": "ports:port_forward",
    "logs": "logs",
    "apply": "changes",
    "edit": "changes",
    "delete": "changes",
}


def command_line(arguments: Sequence[str]) -> typer.Typer:
    """Return the command-line program for these arguments."""
    modules = {verb: f"gpuvm.commands.{place}" for verb, place in VERBS.items()}
    return commands.command_line(
        arguments, modules, "Works with the VMs of gpu-launcher's pods, over your own kubectl."
    )
