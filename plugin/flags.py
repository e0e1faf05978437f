"""The flags that several commands of gpu-plugin have, `serve` among them, whose process has no typer."""

from pathlib import Path
from typing import Annotated

from pci.slices import DRIVER
from program.flags import Flag

#: What has to outlive the plugin: former drivers, module IDs, who has which partition.
STATE = Path("/var/lib/gpu-plugin")
#: Where the kubelet says which pod has what, whatever its --root-dir.
POD_RESOURCES = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
#: What the DRA driver has prepared: a directory of its own below the kubelet's.
DRA_STATE = Path("/var/lib/kubelet/plugins") / DRIVER

Sysfs = Annotated[Path, Flag("The directory that stands for /sys.")]
ConfigFile = Annotated[
    Path | None, Flag("What to offer beyond NVIDIA, AMD and Intel GPUs, and under which names (YAML).")
]
StateDirectory = Annotated[Path, Flag("Where former drivers, module IDs and the owners of partitions are kept.")]
PCIIDsFile = Annotated[Path, Flag("The pci.ids file that resource names are made from.")]
