"""The flags that several commands have, and what is read by them."""

from pathlib import Path
from typing import Annotated

import typer

from pci.host import Host
from pci.sysfs.functions import NotSysfs, read_host
from plugin.cards.config import Config
from plugin.cards.inventory import Inventory, take_inventory
from plugin.cards.naming import PCIIDs
from program.errors import Refusal

#: Where the kubelet has its plugins' sockets, whatever its --root-dir (pluginapi.DevicePluginPath).
KUBELET_DIR = Path("/var/lib/kubelet/device-plugins")
#: Where the kubelet says which pod has what, whatever its --root-dir.
POD_RESOURCES = Path("/var/lib/kubelet/pod-resources/kubelet.sock")

Sysfs = Annotated[Path, typer.Option(help="The directory that stands for /sys.")]
Dev = Annotated[Path, typer.Option(help="The directory that stands for /dev.")]
ConfigFile = Annotated[
    Path | None, typer.Option(help="What to offer beyond NVIDIA, AMD and Intel GPUs, and under which names (YAML).")
]
PCIIDsFile = Annotated[Path, typer.Option("--pci-ids", help="The pci.ids file that resource names are made from.")]
AsJSON = Annotated[bool, typer.Option("--json", help="For programs.")]


def config_of(path: Path | None) -> Config:
    """Return the config of a file, or the one without a file."""
    if path is None:
        return Config()
    # PyYAML is for a file, which most nodes have none of.
    from plugin.config_file import read_config

    return read_config(path)


def host_of(sysfs: Path) -> Host:
    """Read the node of that /sys; Refusal if it is none."""
    try:
        return read_host(sysfs)
    except NotSysfs as error:
        raise Refusal(sysfs, error.wrong, error.fix) from error


def inventory_of(sysfs: Path, config: Config, pci_ids: PCIIDs, before: Inventory | None) -> Inventory:
    return take_inventory(host_of(sysfs), config, pci_ids, before)
