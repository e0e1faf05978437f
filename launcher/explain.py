"""What became of each gpus and hostDevices entry: `gpu-launcher explain`, as a table and as JSON.

The JSON's keys stay; new ones may come. null is for what is not known or is not there.

    entries         in the manifest's order, gpus first
      kind, name    gpu or hostdevice; the entry's name
      resource      deviceName
      claim, request  or claimName and requestName
      variable      the variable that the device is from
      alias         the device's in the domain: for virsh, and for the guest's log
      iommuGroup, numaNode  the device's on the host; a mediated device's node is its parent's
      missing       why the card may not be whole
      passed        what the guest gets for it: the functions of the card, then those of its unit's other cards
        host        a PCI address, a mediated device's UUID, or a USB device's bus:number
        is          GPU, audio, USB, ...; a mediated device's type
        guest       its PCI address in the guest; null for a USB device
    leftOver        what the pod holds and nobody asked for
      variable, devices
"""

import json
from typing import TypedDict
from uuid import UUID

from launcher.addresses import Layout
from launcher.claims import Claim, Device, LeftOver
from launcher.hostdevs import Card
from launcher.manifest.hostdevices import Request
from pci.address import PCIAddress
from pci.functions import is_gpu, word
from pci.resource import USBAddress
from pci.sysfs import Host, MediatedDevice

# A call, since one of the keys is a word of Python's.
Passed = TypedDict("Passed", {"host": str, "is": str | None, "guest": str | None})


class Explained(TypedDict):
    kind: str
    name: str
    resource: str | None
    claim: str | None
    request: str | None
    variable: str | None
    alias: str
    iommuGroup: int | None
    numaNode: int | None
    missing: str | None
    passed: list[Passed]


class Left(TypedDict):
    variable: str
    devices: list[str]


class Explanation(TypedDict):
    entries: list[Explained]
    leftOver: list[Left]


def explanation(
    cards: tuple[Card, ...], layout: Layout, left_over: tuple[LeftOver, ...], host: Host | None
) -> Explanation:
    """The stages' results by entry, with what `host` says of each device where it is known."""
    first = {card.claim: card for card in reversed(cards)}
    return {
        "entries": [_entry(card, layout, host) for card in cards if first[card.claim] is card],
        "leftOver": [{"variable": left.variable, "devices": list(map(str, left.devices))} for left in left_over],
    }


def as_json(found: Explanation) -> str:
    return json.dumps(found, indent=2) + "\n"


def table(found: Explanation) -> str:
    """A row for everything that is passed on, below a row of headings; then a line for each thing that is amiss."""
    rows = [("ENTRY", "HOST", "IS", "GUEST", "GROUP", "NUMA", "ALIAS", "FROM")]
    for entry in found["entries"]:
        place = _or_dash(entry["iommuGroup"]), _or_dash(entry["numaNode"])
        named, alias, origin = f"{entry['kind']} {entry['name']}", entry["alias"], _origin(entry)
        for passed in entry["passed"]:
            rows.append(
                (named, passed["host"], _or_dash(passed["is"]), _or_dash(passed["guest"]), *place, alias, origin)
            )
            named = alias = origin = ""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    if not found["entries"]:
        lines = ["The manifest has no gpus and no hostDevices."]
    lines += [
        f"may not be whole: {entry['kind']} {entry['name']}: {entry['missing']}"
        for entry in found["entries"]
        if entry["missing"]
    ]
    lines += [f"left over: {', '.join(left['devices'])} of {left['variable']}" for left in found["leftOver"]]
    return "\n".join(lines) + "\n"


def _entry(card: Card, layout: Layout, host: Host | None) -> Explained:
    claim, wants = card.claim, card.claim.entry.wants
    group, node = _place(claim.device, host)
    return {
        "kind": str(claim.entry.kind),
        "name": claim.entry.name,
        "resource": wants if isinstance(wants, str) else None,
        "claim": wants.claim if isinstance(wants, Request) else None,
        "request": wants.name if isinstance(wants, Request) else None,
        "variable": claim.variable,
        "alias": claim.alias,
        "iommuGroup": group,
        "numaNode": node,
        "missing": card.missing,
        "passed": _passed(claim, layout, host),
    }


def _passed(claim: Claim, layout: Layout, host: Host | None) -> list[Passed]:
    if isinstance(claim.device, USBAddress):
        return [{"host": str(claim.device), "is": "USB device", "guest": None}]
    seen = layout.seen()
    return [
        {"host": str(device.source), "is": _what(device.source, host), "guest": str(seen[device])}
        for seat in layout.seats
        if seat.claim == claim
        for device in seat.hostdevs
    ]


def _what(device: Device, host: Host | None) -> str | None:
    if isinstance(device, UUID):
        mdev = _mdev(device, host)
        return mdev.type_name if mdev is not None else "mediated device"
    function = host.functions.get(device) if host is not None and isinstance(device, PCIAddress) else None
    if function is None:
        return None
    return "GPU" if is_gpu(function) else word(function)


def _place(device: Device, host: Host | None) -> tuple[int | None, int | None]:
    """IOMMU group and NUMA node."""
    mdev = _mdev(device, host)
    address = mdev.parent if mdev is not None else device
    function = host.functions.get(address) if host is not None and isinstance(address, PCIAddress) else None
    if function is None:
        return None, None
    return mdev.iommu_group if mdev is not None else function.iommu_group, function.numa_node


def _mdev(device: Device, host: Host | None) -> MediatedDevice | None:
    return next((mdev for mdev in host.mdevs if mdev.uuid == device), None) if host is not None else None


def _origin(entry: Explained) -> str:
    if entry["resource"] is None:
        return f"request {entry['request']} of claim {entry['claim']}"
    return f"{entry['resource']}, {entry['variable']}"


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)
