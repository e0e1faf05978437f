"""`gpu-plugin record`: what is read of sysfs, as files."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from pci.sysfs.attribute import Silent
from pci.sysfs.functions import require_sysfs
from plugin.flags import Sysfs
from plugin.sysfs_child import ask
from program.errors import UserError
from program.output import print_text
from program.problem import one_line

_EXPECTED = "expected a new or empty directory to record into"


def record(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to record; new or empty.")],
    sysfs: Sysfs = Path("/sys"),
) -> None:
    """Record what the plugin reads of this node's sysfs, for a bug report or a test."""
    from pci.sysfs import record

    ask(require_sysfs, sysfs)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise UserError(directory, "has files in it", _EXPECTED)
    except OSError as error:
        raise UserError(directory, f"cannot record into it: {error.strerror}", _EXPECTED) from error
    functions, silent = ask(record.record, sysfs, directory)
    for path in silent:
        print(f"gpu-plugin: left out {one_line(path)}: {Silent.WRONG}", file=sys.stderr)
    print_text(f"recorded {functions} PCI functions in {directory}; try: gpu-plugin inventory --sysfs {directory}\n")
