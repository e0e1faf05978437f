"""`gpu-plugin inventory`: every device of the node, what it is offered as or why it is not."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from pci.host import Fault
from pci.slices import value_of
from pci.viability import Hindrance
from plugin.cards.inventory import Device, deadly_reset_of
from plugin.cards.names import PCIIDs, read_pci_ids
from plugin.commands.node import NodeFlags, function_as_json, hindrance_as_json, node_now
from plugin.dra.slices import attributes, capacity
from plugin.fabric import status as fabric
from plugin.node.snapshot import DeviceState, Snapshot
from program.commands import AsJSON
from program.errors import UserError
from program.output import aligned, picture_file, print_text, write_picture
from program.problem import Problem
from program.terminal import columns


def inventory(
    flags: NodeFlags,
    as_json: AsJSON = False,
    permitted: Annotated[
        bool, typer.Option("--permitted", help="Print what KubeVirt has to permit: its CR's permittedHostDevices.")
    ] = False,
    device_classes: Annotated[
        bool,
        typer.Option("--device-classes", help="Print the DeviceClasses by which DRA serves pods that name a resource."),
    ] = False,
    svg: Annotated[
        Path | None,
        typer.Option(metavar="FILE.svg", help="Also draw the node, for a bug report; with - print that and no table."),
    ] = None,
) -> None:
    """Show every GPU of the node: what it is offered as, or why it is not."""
    is_picture = picture_file(svg) is not None and str(svg) == "-"
    flags_set = {"--json": as_json, "--permitted": permitted, "--device-classes": device_classes, "--svg -": is_picture}
    if len(printed := [flag for flag, is_set in flags_set.items() if is_set]) > 1:
        raise UserError(" and ".join(printed[:2]), "both say what to print", "give one of them")
    names = read_pci_ids(flags.pci_ids)
    snapshot = node_now(flags, names)
    if svg is not None:
        # It imports lxml, which no table needs.
        from plugin.pages.picture import picture

        write_picture(picture(snapshot), svg)
        if is_picture:
            return
    if device_classes:
        from plugin.device_classes import device_classes_yaml

        print_text(device_classes_yaml(snapshot.inventory, snapshot.host.faults, snapshot.claimable))
    elif permitted:
        from plugin.permitted_host_devices import permitted_yaml

        print_text(permitted_yaml(snapshot.inventory, snapshot.host.faults, snapshot.claimable))
    else:
        text = json.dumps(_as_json(snapshot, names), indent=2) if as_json else _as_table(snapshot, names)
        print_text(f"{text}\n")


def _as_table(snapshot: Snapshot, names: PCIIDs) -> str:
    rows = [("ADDRESS", "MODEL", "DRIVER", "GROUP", "NUMA", "OFFERED AS")]
    rows += [_row(snapshot, device) for device in snapshot.inventory.devices]
    lines = aligned(rows, columns())
    if not snapshot.inventory.devices:
        lines = ["This node has no GPU, and no device that the config offers."]
    lines += [
        f"{device.id} may die of its next reset: it {deadly.wrong}"
        for device in snapshot.inventory.offered
        if (deadly := _deadly_reset(snapshot, device)) is not None
    ]
    lines += [f"{device.id} {left}" for device in snapshot.inventory.offered for left in device.left_behind]
    lines += [f"{address} is out of service, and no device of this node" for address in snapshot.stray_cordons]
    lines += [f"not read: {fault}" for fault in snapshot.not_read]
    if (sight := snapshot.partitions) is not None:
        lines += ["", *aligned([*fabric.rows(sight)]), *fabric.notes(sight, snapshot.inventory), ""]
    return "\n".join([*lines, f"Names from {names.path} of {names.date}."])


def _deadly_reset(snapshot: Snapshot, device: Device) -> Hindrance | None:
    return deadly_reset_of(snapshot.host, device.functions, snapshot.config)


def _row(snapshot: Snapshot, device: Device) -> tuple[str, str, str, str, str, str]:
    state, reason = snapshot.state(device), snapshot.reason(device)
    if state is DeviceState.WITHHELD:
        offered = f"no: {reason}"
    elif state is DeviceState.UNHEALTHY:
        offered = f"{device.resource}, unhealthy: {reason}"
    else:
        user = snapshot.user(device)
        offered = str(device.resource) if user is None else f"{device.resource}, in use by {user}"
        offered += "" if reason is None else f", {state}: {reason}"
    return (
        device.id,
        device.model,
        device.lead.driver or "-",
        ", ".join(map(str, device.iommu_groups)) or "-",
        _or_dash(device.numa_node),
        offered,
    )


def _or_dash(number: int | None) -> str:
    return "-" if number is None else str(number)


def _as_json(snapshot: Snapshot, names: PCIIDs) -> dict[str, Any]:
    sight = snapshot.partitions
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
                "reason": hindrance_as_json(device, snapshot.reason(device)),
                "deadlyReset": hindrance_as_json(device, _deadly_reset(snapshot, device)),
                "inUseBy": holder.assignment.pod
                if (holder := snapshot.holders.get(device.id)) is not None and holder.is_certain
                else None,
                "claim": snapshot.claim(device),
                "cordon": None if (cordon := snapshot.cordon(device)) is None else cordon.as_json(),
                "iommuGroup": device.iommu_group,
                "iommuGroups": list(device.iommu_groups),
                "numaNode": device.numa_node,
                # As in the node's ResourceSlices, but for what depends on the node's name.
                "attributes": {
                    name: value_of(value)
                    for name, value in attributes(
                        device, None, snapshot.place(device), snapshot.identity(device)
                    ).items()
                },
                "capacity": capacity(device),
                "functions": list(map(function_as_json, device.functions)),
                "leftBehind": [
                    Problem(device.id, left.wrong, left.reason.fix).as_json() for left in device.left_behind
                ],
            }
            for device in snapshot.inventory.devices
        ],
        "fabric": None if sight is None else fabric.as_json(sight, snapshot.inventory),
        "notRead": [_not_read_as_json(fault) for fault in snapshot.not_read],
        "unknown": list(snapshot.unknown),
    }


def _not_read_as_json(fault: Fault | Problem) -> dict[str, str]:
    if isinstance(fault, Problem):
        return fault.as_json()
    return Problem(fault.path, fault.wrong, "the kernel's log (dmesg) may say why").as_json()
