"""What `run` and `check` have in common: the flags that say which VM, and where it is to run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from launcher.commands.options import Emulation, VMFlags
from launcher.pipeline.pod import SYS
from launcher.runtime.embedded import DEFAULT_URI


@dataclass(frozen=True, kw_only=True)
class Local(VMFlags):
    """A VM, and what of this machine it is to run on."""

    connect: Annotated[str, typer.Option(metavar="URI", help="The libvirt to run it on.")] = DEFAULT_URI
    sysfs: Annotated[Path, typer.Option(help="The directory that stands for /sys.")] = SYS
    emulation: Emulation = False
