"""The pods that have the node's devices, by the kubelet's list, also devices that another plugin gave out."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from pci.address import PCIAddress, address_or_none
from plugin.cards.inventory import Device, Inventory
from program.errors import Refusal


@dataclass(frozen=True, slots=True)
class Assignment:
    """One line of the kubelet's list: a pod (`namespace/name`) has the device with this ID, of this resource."""

    pod: str
    resource: str
    device_id: str

    def is_of(self, device: Device) -> bool:
        """True if the pod has the device under its ID and resource; if not, the kubelet counts the device as free."""
        return (self.resource, self.device_id) == (device.resource, device.id)


@dataclass(frozen=True, slots=True)
class Listed:
    """The kubelet's list: all pods (`namespace/name`), and the devices that they have."""

    pods: frozenset[str]
    assignments: frozenset[Assignment]


class CannotAsk(Refusal):
    """The kubelet does not say which pods have which devices."""

    def __init__(self, socket: Path, wrong: str) -> None:
        super().__init__(socket, wrong, "name the kubelet's pod resources socket with --pod-resources")
        self.args = (socket, wrong)  # so that it can be pickled


def holders(inventory: Inventory, assignments: Iterable[Assignment]) -> Mapping[str, Assignment]:
    """Return the assignment of each device that a pod has, by the device's ID.

    Other plugins use other IDs: NVIDIA's and Harvester's are addresses, also of a companion; KubeVirt's are numbers of
    IOMMU groups; a mediated device's is its UUID. So did this plugin under another config. A pod that has any function
    of a group has every device in it.
    """
    by_name: dict[object, list[str]] = defaultdict(list)
    for device in inventory.devices:
        for function in {*device.functions, *device.members}:
            by_name[function.address].append(device.id)
        if device.mdev is not None:
            by_name[device.mdev.uuid].append(device.id)
        if device.iommu_group is not None:
            by_name[str(device.iommu_group)].append(device.id)
    by_device: dict[str, Assignment] = {}
    for assignment in sorted(assignments, key=lambda each: (each.pod, each.resource, each.device_id)):
        for device_id in by_name.get(name_of(assignment.device_id), ()):
            # Of two assignments, the one that the kubelet does not count for this device is the trouble.
            if device_id not in by_device or by_device[device_id].is_of(inventory.by_id[device_id]):
                by_device[device_id] = assignment
    return dict(sorted(by_device.items()))


def name_of(device_id: str) -> PCIAddress | UUID | str:
    """Return what an ID in the kubelet's list names: a function, a mediated device, or what only its plugin knows, for
    instance the number of an IOMMU group."""
    return address_or_none(device_id) or _uuid_or_none(device_id) or device_id


def _uuid_or_none(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
