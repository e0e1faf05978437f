"""gpu-plugin's commands: flags and files to the stages of the plugin, and its errors to one line."""

import asyncio
import json
import logging
import os
import signal
from pathlib import Path
from typing import Annotated, Any

import typer

from pci.sysfs import NotSysfs, read_host
from plugin.commands.bind import bind, unbind
from plugin.config import Config, read_config
from plugin.errors import Refusal
from plugin.inventory import Device, Inventory, take_inventory
from plugin.naming import PCI_IDS, PCIIDs, read_pci_ids

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Offers a node's passthrough GPUs to the kubelet.",
)

Sysfs = Annotated[Path, typer.Option(help="The directory that stands for /sys.")]
ConfigFile = Annotated[
    Path | None, typer.Option(help="What to offer beyond NVIDIA, AMD and Intel GPUs, and under which names (YAML).")
]
PCIIDsFile = Annotated[Path, typer.Option("--pci-ids", help="The pci.ids file that resource names are made from.")]

app.command()(bind)
app.command()(unbind)


@app.command()
def inventory(
    sysfs: Sysfs = Path("/sys"),
    config: ConfigFile = None,
    pci_ids: PCIIDsFile = PCI_IDS,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Show every GPU of the node: what it is offered as, or why it is not."""
    names = read_pci_ids(pci_ids)
    found = _take(sysfs, _config(config), names)
    print(json.dumps(_as_json(found, names), indent=2) if as_json else _as_table(found, names))


@app.command()
def serve(
    sysfs: Sysfs = Path("/sys"),
    config: ConfigFile = None,
    pci_ids: PCIIDsFile = PCI_IDS,
    kubelet_dir: Annotated[
        Path | None, typer.Option(help="The kubelet's device plugin directory.  [default: where the kubelet has it]")
    ] = None,
) -> None:
    """Offer the node's devices to the kubelet until SIGTERM."""
    # grpc takes as long to import as everything else together, and only this command needs it.
    from plugin.kubelet import KUBELET_DIR, kubelet_directory
    from plugin.kubelet import serve as serve_kubelet
    from plugin.watch import Watch

    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.INFO)
    os.umask(0o177)  # the sockets are for root's kubelet alone
    names, rules = read_pci_ids(pci_ids), _config(config)

    directory = kubelet_directory(kubelet_dir or KUBELET_DIR)

    async def until_told() -> None:
        watch = Watch(lambda: _take(sysfs, rules, names))
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, watch.stop)
        await serve_kubelet(watch, directory)

    asyncio.run(until_told())


@app.command()
def record(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to record; new or empty.")],
    sysfs: Sysfs = Path("/sys"),
) -> None:
    """Record what the plugin reads of this node's sysfs, for a bug report or a test."""
    from plugin.record import record as record_sysfs

    functions = record_sysfs(sysfs, directory)
    print(f"recorded {functions} PCI functions in {directory}; try: gpu-plugin inventory --sysfs {directory}")


def _config(path: Path | None) -> Config:
    return Config() if path is None else read_config(path)


def _take(sysfs: Path, config: Config, names: PCIIDs) -> Inventory:
    try:
        host = read_host(sysfs)
    except NotSysfs as error:
        raise Refusal(str(error)) from error
    return take_inventory(host, config, names)


def _as_table(inventory: Inventory, names: PCIIDs) -> str:
    rows = [("ADDRESS", "MODEL", "DRIVER", "GROUP", "NUMA", "OFFERED AS")]
    rows += [_row(device) for device in inventory.devices]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    # The last column is the longest and needs no padding.
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)) + f"  {row[-1]}"
        for row in rows
    ]
    if not inventory.devices:
        lines = ["This node has no GPU, and no device that the config offers."]
    lines += [f"not read: {fault}" for fault in inventory.faults]
    return "\n".join([*lines, f"Names from {names.path} of {names.date}."])


def _row(device: Device) -> tuple[str, str, str, str, str, str]:
    return (
        str(device.address),
        device.model,
        device.lead.driver or "-",
        _or_dash(device.iommu_group),
        _or_dash(device.numa_node),
        str(device.resource) if device.reason is None else f"no: {device.reason}",
    )


def _or_dash(number: int | None) -> str:
    return "-" if number is None else str(number)


def _as_json(inventory: Inventory, names: PCIIDs) -> dict[str, Any]:
    return {
        "pciIDs": {"path": str(names.path), "date": names.date},
        "devices": [
            {
                "address": str(device.address),
                "model": device.model,
                "resource": device.resource,
                "onOffer": device.reason is None,
                "reason": device.reason,
                "iommuGroup": device.iommu_group,
                "numaNode": device.numa_node,
                "functions": [
                    {
                        "address": str(function.address),
                        "id": function.pci_id,
                        "class": f"{function.pci_class:06x}",
                        "driver": function.driver,
                    }
                    for function in device.functions
                ],
            }
            for device in inventory.devices
        ],
        "notRead": list(inventory.faults),
    }
