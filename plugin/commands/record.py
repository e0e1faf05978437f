"""`gpu-plugin record`: what is read of sysfs, as files."""

from pathlib import Path
from typing import Annotated

import typer

from plugin.commands.options import Sysfs


def record(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to record; new or empty.")],
    sysfs: Sysfs = Path("/sys"),
) -> None:
    """Record what the plugin reads of this node's sysfs, for a bug report or a test."""
    from plugin.record import record as record_sysfs

    functions = record_sysfs(sysfs, directory)
    print(f"recorded {functions} PCI functions in {directory}; try: gpu-plugin inventory --sysfs {directory}")
