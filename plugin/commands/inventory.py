"""`gpu-plugin inventory`: every device of the node, what it is offered as or why it is not."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from pci.slices import value_of
from plugin.binding.rebinding import refusals
from plugin.cards.holders import Assignment, holders
from plugin.cards.inventory import Device, take_inventory
from plugin.cards.naming import PCI_IDS, PCIIDs, read_pci_ids
from plugin.cards.nodes import read_nodes
from plugin.cards.snapshot import Snapshot
from plugin.commands.options import asked, config_of, host_of
from plugin.dra.slices import attributes
from plugin.fabric import sight as fabric
from plugin.flags import POD_RESOURCES, STATE, ConfigFile, KeptState, PCIIDsFile, Sysfs
from program.commands import AsJSON
from program.errors import UserError
from program.output import aligned, picture_file, print_text, write_picture
from program.terminal import columns


def inventory(
    sysfs: Sysfs = Path("/sys"),
    dev: Annotated[
        Path | None, typer.Option(help="The directory that stands for /dev.  [default: /dev, none with --sysfs]")
    ] = None,
    config: ConfigFile = None,
    pci_ids: PCIIDsFile = PCI_IDS,
    pod_resources: Annotated[
        Path | None,
        typer.Option(help="The kubelet's pod resources socket.  [default: the kubelet's, none with --sysfs]"),
    ] = None,
    state: KeptState = None,
    as_json: AsJSON = False,
    permitted: Annotated[
        bool, typer.Option("--permitted", help="Print what KubeVirt has to permit: its CR's permittedHostDevices.")
    ] = False,
    svg: Annotated[
        Path | None,
        typer.Option(metavar="FILE.svg", help="Also draw the node, for a bug report; with - print that and no table."),
    ] = None,
) -> None:
    """Show every GPU of the node: what it is offered as, or why it is not."""
    if as_json and permitted:
        raise UserError("--json and --permitted", "both say what to print", "give one of them")
    if picture_file(svg) is not None and str(svg) == "-" and (as_json or permitted):
        raise UserError("--svg - and --json or --permitted", "both say what to print", "give one of them")
    names = read_pci_ids(pci_ids)
    if sysfs == Path("/sys"):
        dev = dev or Path("/dev")
        state = state or STATE
    host, rules = host_of(sysfs), config_of(config)
    devices = take_inventory(host, rules, names)
    sight = None
    if rules.fabric is not None and state is not None:
        # asyncio, for nobody else.
        from plugin.fabric.looking import look_now

        sight = look_now(rules.fabric, state, devices)
    assignments = _assignments(pod_resources, is_this_node=sysfs == Path("/sys"))
    snapshot = Snapshot(
        devices,
        None if dev is None else read_nodes(dev),
        holders(devices, assignments or ()),
        sees_pods=assignments is not None,
        refusals=asked(sysfs, refusals, devices.to_bind, state=state or STATE) if devices.to_bind else {},
    )
    if svg is not None:
        # lxml, for nobody who asks for a table.
        from plugin.picture import picture

        notes = () if sight is None else fabric.notes(sight, devices)
        write_picture(picture(snapshot, host, fabric.places(sight, devices), notes), svg)
        if str(svg) == "-":
            return
    if permitted:
        from plugin.permitted import permitted_yaml

        print_text(permitted_yaml(snapshot.inventory))
    else:
        text = json.dumps(_as_json(snapshot, names, sight), indent=2) if as_json else _as_table(snapshot, names, sight)
        print_text(f"{text}\n")


def _assignments(named: Path | None, *, is_this_node: bool) -> frozenset[Assignment] | None:
    """Return who has what, by the socket that was named, which has to answer, or by this node's, which may not be
    there."""
    if named is None and not (is_this_node and os.path.exists(POD_RESOURCES)):  # noqa: PTH110 (it may raise)
        return None
    # grpc takes as long to import as everything else together.
    from plugin.watching import podresources

    try:
        return asyncio.run(podresources.assignments(named or POD_RESOURCES, at_most=10.0))
    except podresources.CannotAsk as error:
        if named is None:
            print(f"gpu-plugin: who has what is not known: {error}", file=sys.stderr)
            return None
        raise


def _as_table(snapshot: Snapshot, names: PCIIDs, sight: fabric.Sight | None) -> str:
    rows = [("ADDRESS", "MODEL", "DRIVER", "GROUP", "NUMA", "OFFERED AS")]
    rows += [_row(snapshot, device) for device in snapshot.inventory.devices]
    lines = aligned(rows, columns())
    if not snapshot.inventory.devices:
        lines = ["This node has no GPU, and no device that the config offers."]
    lines += [f"not read: {fault}" for fault in snapshot.inventory.faults]
    if sight is not None:
        lines += ["", *aligned([*fabric.rows(sight)]), *fabric.notes(sight, snapshot.inventory), ""]
    return "\n".join([*lines, f"Names from {names.path} of {names.date}."])


def _row(snapshot: Snapshot, device: Device) -> tuple[str, str, str, str, str, str]:
    reason = snapshot.reason(device)
    holder = snapshot.holders.get(device.id)
    if reason is None:
        offered = str(device.resource) if holder is None else f"{device.resource}, in use by {holder.pod}"
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


def _as_json(snapshot: Snapshot, names: PCIIDs, sight: fabric.Sight | None) -> dict[str, Any]:
    board = None if sight is None else sight.board
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
                "reason": None if (reason := snapshot.reason(device)) is None else str(reason),
                "inUseBy": None if (holder := snapshot.holders.get(device.id)) is None else holder.pod,
                "iommuGroup": device.iommu_group,
                "numaNode": device.numa_node,
                # As in the node's ResourceSlices, but for what depends on the node's name.
                "attributes": {
                    name: value_of(value)
                    for name, value in attributes(
                        device, None, {} if board is None else board.attributes(device)
                    ).items()
                },
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
        "fabric": None if sight is None else fabric.as_json(sight, snapshot.inventory),
        "notRead": list(snapshot.inventory.faults),
    }
