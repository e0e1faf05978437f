"""A node's devices as ResourceSlices, from which the scheduler chooses.

Each device of the inventory is one device in the slices, also while a pod has it. An unhealthy device stays, with a
taint, so that no claim refers to an unknown device. A team's device has a taint that the team's claims tolerate.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from pci import slices as words
from pci.cordons import Cordon
from pci.memory import memory_of
from pci.nvml_names import nvml_name
from pci.slices import Attributes
from pci.vendors import AMD, INTEL, NVIDIA
from pci.viability import Hindrance
from plugin.cards.claimable import ClaimableCard
from plugin.cards.inventory import Device
from plugin.cards.vgpu_types import COUNTERS_IN_A_SET, plain, sharing, size_of
from plugin.dra.claims import FAILED, READY
from plugin.node.snapshot import Snapshot
from plugin.nvml import UNKNOWN, Identity

#: A device or a slice, as Kubernetes' JSON.
SliceObject: TypeAlias = dict[str, Any]

#: The API takes 128 devices in a slice, and half as many where one of them has a taint or consumes counters
#: (ResourceSliceMaxDevicesWithAdvancedFeatures). A device that is tainted must not move to another slice.
_DEVICES_IN_A_SLICE = 64
_SETS_IN_A_SLICE = 8  # of counters (ResourceSliceMaxCounterSets)

_CONDITIONS = {"bindingConditions": [READY], "bindingFailureConditions": [FAILED]}
_LONGEST_NAME = 253  # of an object
_LONGEST_TAINT = 63  # the value of a label

_SELLERS = {NVIDIA: "NVIDIA", AMD: "AMD", INTEL: "Intel"}


@dataclass(frozen=True, slots=True)
class OwningNode:
    """The node that owns the slices: they are deleted with it."""

    name: str
    uid: str


def slices(snapshot: Snapshot, node: OwningNode, *, generation: int = 1, counters: bool = True) -> list[SliceObject]:
    """Return the slices of the node's devices, and after them the slices of counters by which vGPUs of one card exclude
    each other; one slice without devices if the node has none. Without `counters` the vGPUs that are made when claimed
    are left out.

    The `generation` of a pool tells the scheduler whether it has seen all slices. The scheduler takes the first devices
    that fit, so their order decides.
    """
    devices = [device_of(snapshot, device, node.name) for device in in_order(snapshot)]
    sets: list[SliceObject] = []
    for card in snapshot.claimable if counters else ():
        its, card_sets = claimable(snapshot, card, node.name)
        devices += its
        sets += card_sets
    parts = [("devices", part) for part in _parts(devices, _DEVICES_IN_A_SLICE)] or [("devices", [])]
    parts += [("sharedCounters", part) for part in _parts(sets, _SETS_IN_A_SLICE)]
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
                kind: part,
            },
        }
        for number, (kind, part) in enumerate(parts)
    ]


def _parts(items: list[SliceObject], most: int) -> list[list[SliceObject]]:
    return [items[at : at + most] for at in range(0, len(items), most)]


def claimable(snapshot: Snapshot, card: ClaimableCard, node: str) -> tuple[list[SliceObject], list[SliceObject]]:
    """Return the vGPUs that claims can have of a card as devices, small ones first, and the card's sets of counters."""
    names = {vgpu.name for vgpu in card.vgpus}
    others = [
        plain(snapshot.host.vgpu_types.get(function.vgpu_type, ""))
        for function in card.functions
        # A vGPU that a claim has consumes through the device that is allocated to the claim.
        if function.vgpu_type is not None and snapshot.claimable_names.get(str(function.address)) not in names
    ]
    parents = {card.function.address, *(function.address for function in card.functions)}
    others += [
        plain(mdev.type_name)
        for mdev in snapshot.host.mdevs
        if mdev.parent in parents and snapshot.claimable_names.get(str(mdev.uuid)) not in names
    ]
    types = {vgpu.type: vgpu.number + 1 for vgpu in card.vgpus}
    share = sharing(types, mixed_sizes=card.mixed_sizes, memory=card.memory, functions=card.places, others=others)
    counters = sorted(share.left)
    sets = {
        f"{words.device_name_of(card.function.address)}-{number}": counters[at : at + COUNTERS_IN_A_SET]
        for number, at in enumerate(range(0, len(counters), COUNTERS_IN_A_SET))
    }
    cordon = snapshot.cordons.get(card.function.address)
    devices: list[SliceObject] = []
    for vgpu in card.vgpus:
        consumed = share.consumed[vgpu.type, vgpu.number]
        its = {name: {one: consumed[one] for one in counters if one in consumed} for name, counters in sets.items()}
        known = attributes(vgpu.example, node, {}, snapshot.identity(vgpu.example))
        for name in (words.PCI_BUS_ID, words.UUID, words.MDEV_UUID, words.IOMMU_GROUP):
            known.pop(name, None)  # known when it is made
        devices.append(
            {
                "name": vgpu.name,
                "attributes": known,
                "capacity": {words.MEMORY: {"value": f"{size_of(vgpu.type)}Gi"}},
                "consumesCounters": [
                    {"counterSet": name, "counters": _counters(values)} for name, values in its.items() if values
                ],
                **_CONDITIONS,  # it is made for its claim
                **_taints(cordon, snapshot.unclaimable(vgpu), vgpu.example.team),
            }
        )
    return devices, [
        {"name": name, "counters": _counters({one: share.left[one] for one in its})} for name, its in sets.items()
    ]


def _counters(values: Mapping[str, int]) -> dict[str, Any]:
    return {name: {"value": str(value)} for name, value in values.items()}


def in_order(snapshot: Snapshot) -> list[Device]:
    """Return the devices that DRA serves in the order in which the scheduler is to take them: first the GPUs of a board
    with NVSwitches, in an order that keeps its partitions whole (Board.order), then the others by address."""
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
    """Return the name of the node's slice `number`; two plugins of one node use the same names."""
    end = f"-{words.DRIVER}-{number}"
    return f"{node[: _LONGEST_NAME - len(end)]}{end}"


def device_name(device: Device) -> str:
    """Return the device's name in its pool, a DNS label: `pci-0000-41-00-0`, `mdev-` and a UUID."""
    return words.device_name_of(device.id) if device.mdev is None else f"mdev-{device.id}"


def device_of(snapshot: Snapshot, device: Device, node: str) -> SliceObject:
    """Return the device in a slice: its name, attributes and capacity, and taints if it cannot be handed out now or is
    a team's."""
    published: SliceObject = {
        "name": device_name(device),
        "attributes": attributes(device, node, snapshot.place(device), snapshot.identity(device)),
    }
    if its := capacity(device):
        published["capacity"] = {name: {"value": value} for name, value in its.items()}
    if device.to_bind or snapshot.place(device):
        # It is bound, or its partition activated, for its claim; the slice's nodeName binds the claim to the node.
        published |= _CONDITIONS
    return published | _taints(snapshot.cordon(device), snapshot.trouble(device), device.team)


def _taints(cordon: Cordon | None, trouble: Hindrance | None, team: str | None) -> SliceObject:
    values = {
        words.CORDONED: None if cordon is None else taint_value(cordon.by_whom),
        words.UNHEALTHY: None if trouble is None else taint_value(trouble.wrong),
        words.TEAM: team,
    }
    taints = [
        {"key": key, "value": value, "effect": "NoSchedule"} for key, value in values.items() if value is not None
    ]
    return {"taints": taints} if taints else {}


def attributes(
    device: Device, node: str | None, place: Mapping[str, int | str], identity: Identity = UNKNOWN
) -> Attributes:
    """Return the known attributes of the device (pci.slices has their names).

    A card has a UUID only with the name of its `node` (pci.slices.place_uuid). `place` is its place on a board with
    NVSwitches, `identity` its UUID and name from NVML.
    """
    lead = device.lead
    is_part = device.mdev is not None or device.is_of_claim
    model = None if is_part else identity.name or nvml_name(lead.pci_id, lead.subsystem_id)
    sold = product(device)
    known: dict[str, str | int | None] = {
        words.VENDOR: f"{lead.vendor_id:04x}",
        words.DEVICE: lead.pci_id,
        words.SUBSYSTEM: None if lead.subsystem_id == "0000:0000" else lead.subsystem_id,
        words.MODEL: words.fitted(device.model),
        # pci.ids has one name for several models of one device ID: "A2 / A16".
        words.PRODUCT: words.fitted(sold if model is None or "/" not in sold else _with_seller(model, lead.vendor_id)),
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
        known[words.TYPE] = "vgpu" if device.is_of_claim else "vf" if lead.is_virtual else "card"
        known[words.PARENT] = str(lead.physical_function) if device.is_of_claim else None
        known[words.PCI_BUS_ID] = device.id
        known[words.UUID] = None if node is None else words.place_uuid(node, device.id, lead.pci_id)
        known[words.FUNCTIONS] = len(device.functions)
    else:
        known[words.TYPE] = "mdev"
        known[words.UUID] = known[words.MDEV_UUID] = device.id
        # The scheduler chose by the card: which virtual function is the parent is decided later.
        known[words.PARENT] = str((device.is_of_claim and lead.physical_function) or lead.address)
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
    name = device.model if sold is None or device.mdev is not None else sold[1]
    return _with_seller(name, device.lead.vendor_id)


def _with_seller(name: str, vendor_id: int) -> str:
    seller = _SELLERS.get(vendor_id)
    return name if seller is None or seller.upper() in name.upper() else f"{seller} {name}"


def taint_value(text: str) -> str:
    """Return the reason why a device cannot be handed out, as a label's value: `is-bound-to-snd_hda_intel`."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", text)[:_LONGEST_TAINT].strip("-_.")
