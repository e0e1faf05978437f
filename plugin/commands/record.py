"""`gpu-plugin record`: what is read of sysfs, as files."""

from pathlib import Path
from typing import Annotated

import typer

from pci.sysfs.functions import NotSysfs, require_sysfs
from plugin.commands.options import Sysfs
from plugin.errors import Refusal, UserError
from program.output import print_text


def record(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to record; new or empty.")],
    sysfs: Sysfs = Path("/sys"),
) -> None:
    """Record what the plugin reads of this node's sysfs, for a bug report or a test."""
    from pci.sysfs import recording

    try:
        require_sysfs(sysfs)
    except NotSysfs as error:
        raise Refusal(str(error)) from error
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise UserError(f"{directory}: expected a new or empty directory to record into, found files in it")
    except OSError as error:
        raise UserError(
            f"{directory}: cannot record into it: {error.strerror}; expected a new or empty directory"
        ) from error
    functions = recording.record(sysfs, directory)
    print_text(f"recorded {functions} PCI functions in {directory}; try: gpu-plugin inventory --sysfs {directory}\n")
