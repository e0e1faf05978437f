"""A directory of the pod that the guest mounts. The process that stays beside the guest has it, so no manifest is
known here."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Share:
    """A volume of that `name`, whose `directory` is served to QEMU on the `socket`."""

    name: str
    directory: Path
    socket: Path
    read_only: bool
