"""Which pods have which of the node's devices, as the kubelet tells: also those that another plugin gave out."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from pci.address import address_or_none
from plugin.inventory import Device, Inventory

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
    """The pod that has a device, and what it has it as: the resource, and the ID there."""

    pod: str
    resource: str
    device_id: str

    def has_as_offered(self, device: Device) -> bool:
        """Whether the kubelet gave the pod this very device; if not, it knows nothing of the device being in use."""
        return (self.resource, self.device_id) == (device.resource, device.id)


def holders(inventory: Inventory, uses: Iterable[Use]) -> Mapping[str, Holder]:
    """Who has each device of ours, by its ID; a device that nobody has is absent.

    Other plugins name what they give out otherwise. NVIDIA's and Harvester's IDs are addresses, also of a companion;
    KubeVirt's are numbers of IOMMU groups; a mediated device's is its UUID. So did this plugin under another config.
    Whoever has any function of a group has every device in it.
    """
    by_name: dict[PCIAddress | UUID | str, list[str]] = defaultdict(list)
    for device in inventory.devices:
        for function in {*device.functions, *device.members}:
            by_name[function.address].append(device.id)
        if device.mdev is not None:
            by_name[device.mdev.uuid].append(device.id)
        if device.iommu_group is not None:
            by_name[str(device.iommu_group)].append(device.id)
    found: dict[str, Holder] = {}
    for use in sorted(uses, key=lambda use: (use.pod, use.resource, use.device_id)):
        name = address_or_none(use.device_id) or _uuid_or_none(use.device_id) or use.device_id
        holder = Holder(use.pod, use.resource, use.device_id)
        for device_id in by_name.get(name, ()):
            # Of two, the one that the kubelet does not count for this device is the news.
            if device_id not in found or found[device_id].has_as_offered(inventory.by_id[device_id]):
                found[device_id] = holder
    return dict(sorted(found.items()))


def _uuid_or_none(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
