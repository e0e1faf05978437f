"""The flags that several commands have, and what is read by them."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Concatenate, ParamSpec, TypeVar

import typer

from pci.slices import DRIVER
from plugin.cards.config import Config
from plugin.question import ask

#: Where the kubelet has its plugins' sockets, whatever its --root-dir (pluginapi.DevicePluginPath).
KUBELET_DIR = Path("/var/lib/kubelet/device-plugins")
#: Where the kubelet says which pod has what, whatever its --root-dir.
POD_RESOURCES = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
#: What has to outlive the plugin: former drivers, module IDs, who has which partition.
STATE = Path("/var/lib/gpu-plugin")
#: What the DRA driver has prepared: a directory of its own below the kubelet's.
DRA_STATE = Path("/var/lib/kubelet/plugins") / DRIVER

Sysfs = Annotated[Path, typer.Option(help="The directory that stands for /sys.")]
Dev = Annotated[Path, typer.Option(help="The directory that stands for /dev.")]
ConfigFile = Annotated[
    Path | None, typer.Option(help="What to offer beyond NVIDIA, AMD and Intel GPUs, and under which names (YAML).")
]
State = Annotated[Path, typer.Option(help="Where former drivers, module IDs and the owners of partitions are kept.")]
PCIIDsFile = Annotated[Path, typer.Option("--pci-ids", help="The pci.ids file that resource names are made from.")]
KeptState = Annotated[
    Path | None,
    typer.Option(
        "--state", help="Where it is kept who has which partition.  [default: /var/lib/gpu-plugin, none with --sysfs]"
    ),
]

LookedAtProc = Annotated[
    Path | None, typer.Option(help="The directory that stands for /proc.  [default: /proc, none with --sysfs]")
]
LookedAtDev = Annotated[
    Path | None, typer.Option(help="The directory that stands for /dev.  [default: /dev, none with --sysfs]")
]
PodResources = Annotated[
    Path | None, typer.Option(help="The kubelet's pod resources socket.  [default: the kubelet's, none with --sysfs]")
]
DRAState = Annotated[
    Path | None,
    typer.Option(help=f"Where the DRA driver keeps what it has prepared.  [default: {DRA_STATE}, none with --sysfs]"),
]

P = ParamSpec("P")
T = TypeVar("T")


def config_of(path: Path | None) -> Config:
    """Return the config of a file, or the one without a file."""
    if path is None:
        return Config()
    # PyYAML is for a file, which most nodes have none of.
    from plugin.config_file import read_config

    return read_config(path)


def asked(sysfs: Path, read: Callable[Concatenate[Path, P], T], *arguments: P.args, **named: P.kwargs) -> T:
    """Read something of that /sys in a process of its own, since the kernel may not answer; Refusal if nothing can be
    read there now."""
    return ask(read, sysfs, *arguments, **named)[0]
