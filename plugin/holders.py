"""Which pods have which of the node's devices, as the kubelet tells: also those that another plugin gave out."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from pci.attribute import address_or_none
from plugin.inventory import Inventory

if TYPE_CHECKING:
    from pci.address import PCIAddress


@dataclass(frozen=True, slots=True)
class Use:
    """One line of the kubelet's list: a pod (`namespace/name`) has this device of this resource."""

    pod: str
    resource: str
    device_id: str


@dataclass(frozen=True, slots=True)
class Holder:
    """The pod that has a device, and the resource it has it as."""

    pod: str
    resource: str


def holders(inventory: Inventory, uses: Iterable[Use]) -> Mapping[str, Holder]:
    """Who has each device of ours, by its ID; a device that nobody has is absent.

    Other plugins name what they give out otherwise. NVIDIA's and Harvester's IDs are addresses, also of a companion;
    KubeVirt's are numbers of IOMMU groups; a mediated device's is its UUID. Whoever has any function of a device's
    group has the device.
    """
    by_address: dict[PCIAddress, str] = {}
    by_group: dict[str, str] = {}
    by_uuid: dict[UUID, str] = {}
    for device in inventory.devices:
        if device.mdev is not None:
            by_uuid[device.mdev.uuid] = device.id
        for function in (*device.functions, *device.members):
            by_address.setdefault(function.address, device.id)
        if device.iommu_group is not None:
            by_group.setdefault(str(device.iommu_group), device.id)
    found: dict[str, Holder] = {}
    for use in sorted(uses, key=lambda use: (use.pod, use.resource, use.device_id)):
        address = address_or_none(use.device_id)
        if address is not None:
            device_id = by_address.get(address)
        elif use.device_id in by_group:
            device_id = by_group[use.device_id]
        else:
            uuid = _uuid_or_none(use.device_id)
            device_id = None if uuid is None else by_uuid.get(uuid)
        if device_id is not None:
            holder = Holder(use.pod, use.resource)
            # Of two, the one that is not ours counts: it is the news.
            if device_id not in found or found[device_id].resource == inventory.by_id[device_id].resource:
                found[device_id] = holder
    return dict(sorted(found.items()))


def _uuid_or_none(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
