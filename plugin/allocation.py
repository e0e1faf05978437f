"""What a container gets for the devices it was assigned: one environment variable and the VFIO device nodes."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pci.resource import encode, variable
from pci.sysfs import DEVICES, IOMMU_GROUPS, MDEVS
from plugin.errors import Refusal
from plugin.inventory import Device
from plugin.nodes import MissingNode, Node, Nodes, device_nodes, egm_nodes
from plugin.snapshot import Snapshot
from plugin.viability import is_vfio_driver


@dataclass(frozen=True)
class Allocation:
    """Environment variables, and device nodes."""

    env: Mapping[str, str]
    nodes: tuple[Node, ...]


def pick(snapshot: Snapshot, resource: str, device_ids: Iterable[str]) -> tuple[Device, ...]:
    """The devices of these IDs. Refusal, naming the device, where one is unknown, belongs to another resource or
    cannot be handed out: a pod that starts without its device is worse than one that doesn't start."""
    return tuple(_device(snapshot, resource, device_id) for device_id in device_ids)


def allocate(snapshot: Snapshot, present: Nodes, resource: str, devices: Sequence[Device]) -> Allocation:
    """Hand out these devices of a resource, by what is below /dev.

    Nodes are those of the whole group, so a card's companions come with it; each once, whatever shares it.
    """
    nodes: dict[Node, None] = {}
    for device in devices:
        try:
            nodes.update(dict.fromkeys(device_nodes(device, present, snapshot.inventory.noiommu)))
        except MissingNode as missing:
            raise Refusal(f"{device.id} of {resource} cannot be handed out: it {missing}") from missing
    addresses = [function.address for device in devices for function in device.functions]
    egms = egm_nodes(snapshot.inventory.egms, addresses, present)
    mdevs = [device.mdev.uuid for device in devices if device.mdev is not None]
    if mdevs:
        env = {variable(resource, devices[0].kind): encode(mdevs)}
    else:
        env = {variable(resource): encode(device.functions[0].address for device in devices)}
    return Allocation(env=env, nodes=(*nodes, *egms))


def is_as_seen(sys: Path, dev: Path, devices: Iterable[Device], nodes: Iterable[Node]) -> bool:
    """Whether what the devices' verdicts rest on still holds: the members of their groups, the drivers those are on,
    their place in VFIO, the nodes. Reads nothing else, since it stands between the kubelet and every pod."""
    try:
        for node in nodes:
            os.stat(f"{dev}{node.host.removeprefix('/dev')}")
        return all(_group_is_as_seen(sys, device) and _origin_is_as_seen(sys, device) for device in devices)
    except OSError:
        return False


def _group_is_as_seen(sys: Path, device: Device) -> bool:
    """Every path leads through the group, so that a function that changed its group is noticed too."""
    if device.mdev is not None:
        return os.readlink(f"{sys}/{MDEVS}/{device.id}/iommu_group").endswith(f"/{device.iommu_group}")
    group = f"{sys}/{IOMMU_GROUPS}/{device.iommu_group}/devices"
    if len(os.listdir(group)) != len(device.members):
        return False
    for member in device.members:
        if member.is_bridge:
            continue
        entry = f"{group}/{member.address}"
        if member.driver is None:
            if os.path.lexists(f"{entry}/driver"):
                return False
        elif not os.readlink(f"{entry}/driver").endswith(f"/{member.driver}"):
            return False
        if member.vfio_device is not None:
            os.stat(f"{entry}/vfio-dev/{member.vfio_device}")
    return True


def _origin_is_as_seen(sys: Path, device: Device) -> bool:
    """What a virtual function depends on besides: the driver of its physical one."""
    lead = device.lead
    if device.mdev is not None or lead.physical_function is None:
        return True
    if lead.vgpu_type is not None:
        current = Path(f"{sys}/{DEVICES}/{lead.address}/nvidia/current_vgpu_type").read_text()
        return current.strip() == str(lead.vgpu_type)
    return not is_vfio_driver(os.path.basename(os.readlink(f"{sys}/{DEVICES}/{lead.physical_function}/driver")))


def _device(snapshot: Snapshot, resource: str, device_id: str) -> Device:
    device = snapshot.inventory.by_id.get(device_id)
    if device is None or device.resource != resource:
        raise Refusal(f"{device_id!r} is not a device of {resource} on this node")
    reason = snapshot.reason(device)
    if reason is not None:
        raise Refusal(f"{device_id} of {resource} cannot be handed out: it {reason}")
    return device
