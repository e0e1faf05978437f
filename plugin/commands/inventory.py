"""`gpu-plugin inventory`: every device of the node, what it is offered as or why it is not."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from plugin.commands.options import AsJSON, ConfigFile, PCIIDsFile, Sysfs, config_of, inventory_of
from plugin.inventory import Device
from plugin.naming import PCI_IDS, PCIIDs, read_pci_ids
from plugin.nodes import read_nodes
from plugin.snapshot import Snapshot


def inventory(
    sysfs: Sysfs = Path("/sys"),
    dev: Annotated[
        Path | None, typer.Option(help="The directory that stands for /dev.  [default: /dev, none with --sysfs]")
    ] = None,
    config: ConfigFile = None,
    pci_ids: PCIIDsFile = PCI_IDS,
    as_json: AsJSON = False,
) -> None:
    """Show every GPU of the node: what it is offered as, or why it is not."""
    names = read_pci_ids(pci_ids)
    if dev is None and sysfs == Path("/sys"):
        dev = Path("/dev")
    nodes = None if dev is None else read_nodes(dev)
    snapshot = Snapshot(inventory_of(sysfs, config_of(config), names), nodes)
    print(json.dumps(_as_json(snapshot, names), indent=2) if as_json else _as_table(snapshot, names))


def _as_table(snapshot: Snapshot, names: PCIIDs) -> str:
    rows = [("ADDRESS", "MODEL", "DRIVER", "GROUP", "NUMA", "OFFERED AS")]
    rows += [_row(snapshot, device) for device in snapshot.inventory.devices]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    # The last column is the longest and needs no padding.
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)) + f"  {row[-1]}"
        for row in rows
    ]
    if not snapshot.inventory.devices:
        lines = ["This node has no GPU, and no device that the config offers."]
    lines += [f"not read: {fault}" for fault in snapshot.inventory.faults]
    return "\n".join([*lines, f"Names from {names.path} of {names.date}."])


def _row(snapshot: Snapshot, device: Device) -> tuple[str, str, str, str, str, str]:
    reason = snapshot.reason(device)
    if reason is None:
        offered = str(device.resource)
    elif device.withheld is None:
        offered = f"{device.resource}, unhealthy: {reason}"
    else:
        offered = f"no: {reason}"
    return (
        device.id,
        device.model,
        device.lead.driver or "-",
        _or_dash(device.iommu_group),
        _or_dash(device.numa_node),
        offered,
    )


def _or_dash(number: int | None) -> str:
    return "-" if number is None else str(number)


def _as_json(snapshot: Snapshot, names: PCIIDs) -> dict[str, Any]:
    return {
        "pciIDs": {"path": str(names.path), "date": names.date},
        "devices": [
            {
                "id": device.id,
                "kind": device.kind.name,
                "model": device.model,
                "resource": device.resource,
                "listed": device.resource is not None and device.withheld is None,
                "healthy": snapshot.reason(device) is None,
                "reason": snapshot.reason(device),
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
            for device in snapshot.inventory.devices
        ],
        "notRead": list(snapshot.inventory.faults),
    }
