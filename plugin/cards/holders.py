"""Which pods have which of the node's devices, as the kubelet tells: also those that another plugin gave out."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from pci.address import address_or_none
from plugin.cards.inventory import Device, Inventory
from program.errors import Refusal

if TYPE_CHECKING:
    from pci.address import PCIAddress


@dataclass(frozen=True, slots=True)
class Assignment:
    """One line of the kubelet's list: a pod (`namespace/name`) has the device with this ID, of this resource."""

    pod: str
    resource: str
    device_id: str

    def is_of(self, device: Device) -> bool:
        """Whether the pod has this very device as it is on offer; if not, the kubelet takes the device for free."""
        return (self.resource, self.device_id) == (device.resource, device.id)


@dataclass(frozen=True, slots=True)
class Listed:
    """What the kubelet lists: all pods (`namespace/name`), and who has which device."""

    pods: frozenset[str]
    assignments: frozenset[Assignment]


class CannotAsk(Refusal):
    """The kubelet does not say who has what."""

    def __init__(self, socket: Path, wrong: str) -> None:
        super().__init__(socket, wrong, "name the kubelet's pod resources socket with --pod-resources")


def holders(inventory: Inventory, assignments: Iterable[Assignment]) -> Mapping[str, Assignment]:
    """Return by which assignment a pod has each device, by the device's ID; a device that no pod has is absent.

    Other plugins have other IDs. NVIDIA's and Harvester's are addresses, also of a companion; KubeVirt's are numbers of
    IOMMU groups; a mediated device's is its UUID. This plugin had others too, under another config. Whoever has any
    function of a group has every device in it.
    """
    by_name: dict[PCIAddress | UUID | str, list[str]] = defaultdict(list)
    for device in inventory.devices:
        for function in {*device.functions, *device.members}:
            by_name[function.address].append(device.id)
        if device.mdev is not None:
            by_name[device.mdev.uuid].append(device.id)
        if device.iommu_group is not None:
            by_name[str(device.iommu_group)].append(device.id)
    by_device: dict[str, Assignment] = {}
    for assignment in sorted(assignments, key=lambda each: (each.pod, each.resource, each.device_id)):
        name = address_or_none(assignment.device_id) or _uuid_or_none(assignment.device_id) or assignment.device_id
        for device_id in by_name.get(name, ()):
            # Of two, the one that the kubelet does not count for this device is the news.
            if device_id not in by_device or by_device[device_id].is_of(inventory.by_id[device_id]):
                by_device[device_id] = assignment
    return dict(sorted(by_device.items()))


def _uuid_or_none(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
