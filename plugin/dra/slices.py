"""A node's devices as ResourceSlices, from which the scheduler chooses.

One device of the inventory is one device here, also while a pod has it. An unhealthy device stays, with a taint, so
that a claim that has it does not refer to an unknown device.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from pci import slices as words
from pci.memory import memory_of
from pci.nvml_names import nvml_name
from pci.slices import Attributes
from pci.vendors import AMD, INTEL, NVIDIA
from pci.viability import Hindrance
from plugin.binding.nvml import UNKNOWN, Identity
from plugin.cards.inventory import Device
from plugin.dra.claims import FAILED, READY
from plugin.node.snapshot import Snapshot

#: A device, a slice: as Kubernetes' JSON has it.
SliceObject: TypeAlias = dict[str, Any]

#: The API takes 128 devices in a slice, and half as many where one of them has a taint
#: (ResourceSliceMaxDevicesWithAdvancedFeatures). A device that is tainted must not move to another slice.
_DEVICES_IN_A_SLICE = 64

_LONGEST_NAME = 253  # of an object
_LONGEST_TAINT = 63  # the value of a label

_SELLERS = {NVIDIA: "NVIDIA", AMD: "AMD", INTEL: "Intel"}


@dataclass(frozen=True, slots=True)
class OwningNode:
    """The node that owns the slices: they are deleted with it."""

    name: str
    uid: str


def slices(snapshot: Snapshot, node: OwningNode, *, generation: int = 1) -> list[SliceObject]:
    """Return the slices of the node's devices; one slice without devices if it has none.

    By the `generation` of a pool the scheduler knows whether it has seen all its slices. The scheduler takes the first
    devices that fit, so their order decides.
    """
    devices = [device_of(snapshot, device, node.name) for device in in_order(snapshot)]
    parts = [devices[at : at + _DEVICES_IN_A_SLICE] for at in range(0, len(devices), _DEVICES_IN_A_SLICE)] or [[]]
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
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


def in_order(snapshot: Snapshot) -> list[Device]:
    """Return the devices that DRA serves in the order in which the scheduler is to take them: first the GPUs of a board
    with NVSwitches, so that its partitions stay whole (Board.order), then the others by address."""
    board, published = snapshot.board, snapshot.inventory.published
    if board is None:
        return list(published)
    free = frozenset(
        module
        for device in published
        if snapshot.reason(device) is None and snapshot.user(device) is None
        for module in board.modules(device)
    )
    gpus = sorted(filter(board.gpus, published), key=lambda device: board.order(device, free))
    return [*gpus, *(device for device in published if not board.gpus(device))]


def slice_name(node: str, number: int) -> str:
    """Return the name of the node's slice of that number, which two plugins of one node share."""
    end = f"-{words.DRIVER}-{number}"
    return f"{node[: _LONGEST_NAME - len(end)]}{end}"


def device_name(device: Device) -> str:
    """Return the device's name in its pool, a DNS label: `pci-0000-41-00-0`, `mdev-` and a UUID."""
    kind = "pci" if device.mdev is None else "mdev"
    return f"{kind}-{device.id.replace(':', '-').replace('.', '-')}"


def device_of(snapshot: Snapshot, device: Device, node: str) -> SliceObject:
    """Return the device in a slice: its name, attributes and capacity, and a taint if it cannot be handed out now."""
    published: SliceObject = {
        "name": device_name(device),
        "attributes": attributes(device, node, snapshot.place(device), snapshot.identity(device)),
    }
    if its := capacity(device):
        published["capacity"] = {name: {"value": value} for name, value in its.items()}
    if device.to_bind or snapshot.place(device):
        # It is bound, or its partition activated, for its claim; the slice's nodeName binds the claim to the node.
        published |= {"bindingConditions": [READY], "bindingFailureConditions": [FAILED]}
    if (reason := snapshot.reason(device)) is not None:
        published["taints"] = [{"key": words.UNHEALTHY, "value": taint_value(reason), "effect": "NoSchedule"}]
    return published


def attributes(
    device: Device, node: str | None, place: Mapping[str, int | str], identity: Identity = UNKNOWN
) -> Attributes:
    """Return the known attributes of the device (pci.slices has their names).

    A card has a UUID only with the name of its `node` (pci.slices.place_uuid). `place` is its place on a board with
    NVSwitches, `identity` what NVML calls it.
    """
    lead = device.lead
    model = None if device.mdev is not None else identity.name or nvml_name(lead.pci_id, lead.subsystem_id)
    sold = product(device)
    known: dict[str, str | int | None] = {
        words.VENDOR: f"{lead.vendor_id:04x}",
        words.DEVICE: lead.pci_id,
        words.SUBSYSTEM: None if lead.subsystem_id == "0000:0000" else lead.subsystem_id,
        words.MODEL: words.fitted(device.model),
        # pci.ids has one name for several models of one device ID: "A2 / A16".
        words.PRODUCT: words.fitted(sold if model is None or "/" not in sold else model),
        words.NVML_NAME: None if model is None else words.fitted(model),
        words.RESOURCE: None if device.resource is None else words.fitted(device.resource),
        words.PCIE_ROOT: lead.root,
        words.NUMA_NODE: device.numa_node,
        words.SWITCH: None if lead.switch is None else str(lead.switch),
        words.IOMMU_GROUP: device.iommu_group,
        words.HOST_DRIVER: lead.driver,
        words.NVML_UUID: identity.uuid,
        **place,
    }
    if device.mdev is None:
        known[words.TYPE] = "vf" if lead.is_virtual else "card"
        known[words.PCI_BUS_ID] = device.id
        known[words.UUID] = None if node is None else words.place_uuid(node, device.id, lead.pci_id)
        known[words.FUNCTIONS] = len(device.functions)
    else:
        known[words.TYPE] = "mdev"
        known[words.UUID] = known[words.MDEV_UUID] = device.id
        known[words.PARENT] = str(lead.address)
    return {
        name: {"int": value} if isinstance(value, int) else {"string": value}
        for name, value in sorted(known.items())
        if value is not None
    }


def capacity(device: Device) -> dict[str, str]:
    """Return the known capacity of the device, a quantity by name: its memory (pci.memory)."""
    memory = None if device.mdev is not None else memory_of(device.lead, device.model)
    return {} if memory is None else {words.MEMORY: f"{memory}Gi"}


def product(device: Device) -> str:
    """Return the product's name with the vendor's: the text that pci.ids has in brackets, `GA102 [GeForce RTX 3090]`,
    or all of its text."""
    sold = re.search(r"\[(.+)\]", device.model)
    words_of_it = device.model if sold is None or device.mdev is not None else sold[1]
    seller = _SELLERS.get(device.lead.vendor_id)
    return words_of_it if seller is None or seller.upper() in words_of_it.upper() else f"{seller} {words_of_it}"


def taint_value(reason: Hindrance) -> str:
    """Return why a device cannot be handed out, as a label's value: `is-bound-to-snd_hda_intel`."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", reason.wrong)[:_LONGEST_TAINT].strip("-_.")
