"""A directory of the pod's that the guest mounts. It knows nothing of manifests, as it outlives what reads them."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Share:
    """A volume of that `name`, whose `directory` is served to QEMU on the `socket`."""

    name: str
    directory: Path
    socket: Path
    read_only: bool
