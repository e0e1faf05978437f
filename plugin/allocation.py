"""What a container gets for the devices it was assigned: one environment variable and the VFIO device nodes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pci.address import InvalidPCIAddress, PCIAddress
from pci.resource import encode, variable
from plugin.errors import Refusal
from plugin.inventory import Device, Inventory

#: The container through which VFIO's groups are opened (kernel Documentation/driver-api/vfio.rst).
_CONTAINER_NODE = "/dev/vfio/vfio"


@dataclass(frozen=True)
class Allocation:
    """Environment variables, and paths of device nodes, the same on the host and in the container."""

    env: Mapping[str, str]
    nodes: tuple[str, ...]


def allocate(inventory: Inventory, resource: str, device_ids: Iterable[str]) -> Allocation:
    """Hand out these devices of a resource, as the node is now.

    The group's node opens the whole group, so a card's companions come with it. Refusal, naming the device, where one
    is unknown, belongs to another resource or is no longer on offer: a pod that starts without its device is worse
    than one that doesn't start.
    """
    devices = [_device(inventory, resource, device_id) for device_id in device_ids]
    groups = sorted({device.iommu_group for device in devices if device.iommu_group is not None})
    return Allocation(
        env={variable(resource): encode(device.address for device in devices)},
        nodes=(_CONTAINER_NODE, *(f"/dev/vfio/{group}" for group in groups)),
    )


def _device(inventory: Inventory, resource: str, device_id: str) -> Device:
    try:
        device = inventory.device(PCIAddress.parse(device_id))
    except InvalidPCIAddress as error:
        raise Refusal(f"device of {resource}: {error}") from error
    if device is None or device.resource != resource:
        raise Refusal(f"{device_id} is not a device of {resource} on this node")
    if device.reason is not None:
        raise Refusal(f"{device_id} of {resource} cannot be handed out: it {device.reason}")
    return device
