"""The flags that several commands of gpu-plugin have, without typer, which `serve` does not import."""

import os
import shlex
from pathlib import Path
from typing import Annotated

from pci.slices import DRIVER
from program.errors import UserError
from program.flags import Flag

#: State that has to outlive the plugin: former drivers, module IDs, the owners of partitions.
STATE = Path("/var/lib/gpu-plugin")
#: The kubelet's list of which pods have which devices, for every --root-dir.
POD_RESOURCES = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
#: The claims that the DRA driver has prepared, in a directory of its own below the kubelet's.
DRA_STATE = Path("/var/lib/kubelet/plugins") / DRIVER

Sysfs = Annotated[Path, Flag("The directory that stands for /sys.")]
ConfigFile = Annotated[
    Path | None, Flag("What to offer beyond NVIDIA, AMD and Intel GPUs, and under which names (YAML).")
]
StateDirectory = Annotated[Path, Flag("Where former drivers, module IDs and the owners of partitions are kept.")]
PCIIDsFile = Annotated[Path, Flag("The pci.ids file that resource names are made from.")]


def require_directory(flag: str, path: Path | None) -> None:
    """Raise UserError if a flag names a directory that does not exist."""
    if path is not None and not os.path.isdir(path):  # noqa: PTH112 (it may raise)
        raise UserError(f"{flag} {path}", "is no directory", "name one that is there, or leave it out")


def require_node(cordons: Path | None, node: str | None) -> None:
    """Raise UserError for cards out of service (--cordons) without the name of the node whose cards count."""
    if cordons is not None and node is None:
        raise UserError("--cordons", "is of all nodes, and this one's name is not known", "name it with --own-node")


def words(flag: str, command: str) -> list[str]:
    """Return the words of the command that a flag names; UserError if a quote stays open."""
    try:
        return shlex.split(command)
    except ValueError as error:
        raise UserError(f"{flag} {command}", f"is no command: {error}", "close the quote") from error
