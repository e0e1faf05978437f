"""A node's devices as ResourceSlices: what the scheduler chooses from.

A pure function of the node as it was seen. One device of the inventory is one device here, whatever has it; what is
unhealthy stays, with a taint, so that a claim that has it is not of an unknown device.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from pci import slices as words
from pci.slices import Attributes, Value
from pci.vendors import AMD, INTEL, NVIDIA
from pci.viability import Hindrance
from plugin.cards.inventory import Device
from plugin.node.snapshot import Snapshot

#: A device, a slice: as Kubernetes' JSON has it.
SliceObject: TypeAlias = dict[str, Any]

API_VERSION = "resource.k8s.io/v1"
KIND = "ResourceSlice"

#: The API takes 128 devices in a slice, and half as many where one of them has a taint
#: (ResourceSliceMaxDevicesWithAdvancedFeatures). A device that is tainted must not move to another slice.
_DEVICES_IN_A_SLICE = 64

_LONGEST_NAME = 253  # of an object
_LONGEST_TAINT = 63  # the value of a label

_SELLERS = {NVIDIA: "NVIDIA", AMD: "AMD", INTEL: "Intel"}


@dataclass(frozen=True, slots=True)
class OwningNode:
    """The node, which its slices belong to: they go with it."""

    name: str
    uid: str


def slices(snapshot: Snapshot, node: OwningNode, *, generation: int = 1) -> list[SliceObject]:
    """Return the slices of the node's devices; one without devices if it has none.

    All of a pool have its generation, by which the scheduler knows whether it has seen them all. The devices are
    ascending by address: the scheduler takes the first that fit, so the order decides.
    """
    devices = [device_of(snapshot, device, node.name) for device in snapshot.inventory.published]
    parts = [devices[at : at + _DEVICES_IN_A_SLICE] for at in range(0, len(devices), _DEVICES_IN_A_SLICE)] or [[]]
    return [
        {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {
                "name": slice_name(node.name, number),
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid, "controller": True}
                ],
            },
            "spec": {
                "driver": words.DRIVER,
                "nodeName": node.name,
                "pool": {"name": node.name, "generation": generation, "resourceSliceCount": len(parts)},
                "devices": part,
            },
        }
        for number, part in enumerate(parts)
    ]


def slice_name(node: str, number: int) -> str:
    """Return the name of the node's slice of that number. Two plugins of one node write the same objects, and none
    twice."""
    end = f"-{words.DRIVER}-{number}"
    return f"{node[: _LONGEST_NAME - len(end)]}{end}"


def device_name(device: Device) -> str:
    """Return the device's name in its pool, a DNS label: `pci-0000-41-00-0`, `mdev-` and a UUID."""
    kind = "pci" if device.mdev is None else "mdev"
    return f"{kind}-{device.id.replace(':', '-').replace('.', '-')}"


def device_of(snapshot: Snapshot, device: Device, node: str) -> SliceObject:
    """Return the device as a slice has it: its name, its attributes, and why it cannot be handed out now."""
    published: SliceObject = {
        "name": device_name(device),
        "attributes": attributes(device, node, snapshot.place(device)),
    }
    if (reason := snapshot.reason(device)) is not None:
        published["taints"] = [{"key": words.UNHEALTHY, "value": taint_value(reason), "effect": "NoSchedule"}]
    return published


def attributes(device: Device, node: str | None, place: Mapping[str, int]) -> Attributes:
    """Return what is known of the device, by name (pci.slices has the names).

    The UUID of a card is that of its slot in a `node`: it has none where that is None. `place` is its place on a board
    with NVSwitches.
    """
    lead = device.lead
    known: dict[str, str | int | None] = {
        words.TYPE: _type(device),
        words.VENDOR: f"{lead.vendor_id:04x}",
        words.DEVICE: lead.pci_id,
        words.SUBSYSTEM: None if lead.subsystem_id == "0000:0000" else lead.subsystem_id,
        words.MODEL: words.fitted(device.model),
        words.PRODUCT: words.fitted(product(device)),
        words.RESOURCE: None if device.resource is None else words.fitted(device.resource),
        words.PCIE_ROOT: lead.root,
        words.NUMA_NODE: device.numa_node,
        # A switch is a bridge below a root port with bridges behind it, as in pci.distance.
        words.SWITCH: str(lead.bridges[1]) if len(lead.bridges) > 2 else None,
        words.IOMMU_GROUP: device.iommu_group,
        words.HOST_DRIVER: lead.driver,
        **place,
    }
    if device.mdev is None:
        known[words.PCI_BUS_ID] = device.id
        known[words.UUID] = None if node is None else words.place_uuid(node, device.id, lead.pci_id)
        known[words.FUNCTIONS] = len(device.functions)
    else:
        known[words.UUID] = known[words.MDEV_UUID] = device.id
        known[words.PARENT] = str(lead.address)
    return {name: _value(known[name]) for name in sorted(known) if known[name] is not None}


def product(device: Device) -> str:
    """Return the words by which the device is sold, with the vendor's: what pci.ids has in brackets, `GA102 [GeForce
    RTX 3090]`, or all that it has."""
    sold = re.search(r"\[(.+)\]", device.model)
    words_of_it = device.model if sold is None or device.mdev is not None else sold[1]
    seller = _SELLERS.get(device.lead.vendor_id)
    return words_of_it if seller is None or seller.upper() in words_of_it.upper() else f"{seller} {words_of_it}"


def taint_value(reason: Hindrance) -> str:
    """Return why a device cannot be handed out, in the characters that a label's value may have:
    `is-bound-to-snd_hda_intel`."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", reason.wrong)[:_LONGEST_TAINT].strip("-_.")


def _type(device: Device) -> str:
    if device.mdev is not None:
        return "mdev"
    return "vf" if device.lead.is_virtual else "card"


def _value(value: str | int | None) -> Value:
    assert value is not None
    return {"int": value} if isinstance(value, int) else {"string": value}
