"""The allocation of a container: one environment variable and the VFIO device nodes for its devices."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pci.functions import is_vfio_driver
from pci.resource import DeviceKind, encode, variable
from pci.sysfs.attribute import Unreadable, link_name, text
from pci.sysfs.entries import Entries, unchanged
from pci.sysfs.functions import DEVICES, IOMMU_GROUPS, MDEVS, OTHER_DRIVER, VFIO_DEV, VGPU_TYPE
from plugin.cards.inventory import Device
from plugin.cards.nodes import egm_nodes
from plugin.node.snapshot import Snapshot
from program.errors import Refusal


@dataclass(frozen=True)
class Allocation:
    """A container's environment variables and device nodes."""

    env: Mapping[str, str]
    nodes: tuple[str, ...]


def pick(snapshot: Snapshot, device_ids: Iterable[str], resource: str | None = None) -> tuple[Device, ...]:
    """Return the devices with these IDs, ascending: the kubelet sends them in the order of a Go map.

    Without `resource` they may be of any resource, as for the DRA driver. Refusal, naming the device, if one is
    unknown, of another resource or cannot be handed out: a pod that starts without its device is worse than one that
    doesn't start. Refusal too for a part of a `whole` resource: a board's GPUs and switches work only together.
    """
    devices = tuple(_device(snapshot, device_id, resource) for device_id in sorted(set(device_ids)))
    if resource is not None and resource in snapshot.config.whole:
        every = snapshot.inventory.by_resource[resource]
        if len(devices) != len(every):
            wrong = f"are {len(devices)} of {len(every)}, and a container gets all of {resource} or none (whole)"
            raise Refusal(", ".join(device.id for device in devices), wrong, f"request {len(every)}")
    return devices


def allocate(
    snapshot: Snapshot, resource: str, devices: Sequence[Device], nodes: Iterable[tuple[str, ...]]
) -> Allocation:
    """Return the allocation of a container for these devices of a resource; `nodes` are the nodes of each device.

    A device's nodes are those of its whole group, so a card's companions come with it. A node that several devices
    share is in it once.
    """
    its = dict.fromkeys(node for each in nodes for node in each)
    addresses = {function.address for device in devices for function in device.functions}
    egms = () if snapshot.nodes is None else egm_nodes(snapshot.host.egms, addresses, snapshot.nodes)
    mdevs = [device.mdev.uuid for device in devices if device.mdev is not None]
    if mdevs:
        env = {variable(resource, DeviceKind.MDEV): encode(mdevs)}
    else:
        env = {variable(resource): encode(device.functions[0].address for device in devices)}
    return Allocation(env=env, nodes=(*its, *egms))


@dataclass(frozen=True, slots=True)
class Grounds:
    """A device, its nodes, and the entries of sysfs and /dev on which the verdict on the device depends."""

    device: Device
    nodes: tuple[str, ...]
    entries: Entries


def grounds(sys: Path, dev: Path, device: Device, nodes: tuple[str, ...]) -> Grounds:
    """Return the grounds of a device: the members of its groups, their drivers, their place in VFIO, and its nodes.

    Every path leads through a group, so that a function that changed its group is noticed too.
    """
    present = [f"{dev}{node.removeprefix('/dev')}" for node in nodes]
    if device.mdev is not None:
        link = f"{sys}/{MDEVS}/{device.id}/iommu_group"
        return Grounds(device, nodes, Entries((), ((link, f"/{device.iommu_group}"),), tuple(present), ()))
    groups = {group: f"{sys}/{IOMMU_GROUPS}/{group}/devices" for group in device.iommu_groups}
    members = [*(each.iommu_group for each in device.members), *(group for group, _ in device.others)]
    endpoints = [
        (member, f"{groups[member.iommu_group]}/{member.address}")
        for member in device.members
        # One that says another group than the one that lists it: the count does not hold.
        if not member.is_bridge and member.iommu_group in groups
    ]
    present += [f"{path}/{VFIO_DEV}/{member.vfio_device}" for member, path in endpoints if member.vfio_device]
    # A member with a node of VFIO's is still on its driver. Others (before Linux 6.1 all) are asked for their driver.
    drivers = [(member.driver, f"{path}/driver") for member, path in endpoints if not member.vfio_device]
    drivers += [(other.driver, f"{groups[group]}/{other.name}/{OTHER_DRIVER}") for group, other in device.others]
    entries = Entries(
        counts=tuple((path, members.count(group)) for group, path in groups.items()),
        links=tuple((path, f"/{driver}") for driver, path in drivers if driver),
        present=tuple(present),
        absent=tuple(path for driver, path in drivers if not driver),
    )
    return Grounds(device, nodes, entries)


def hold(sys: Path, all_grounds: Sequence[Grounds]) -> bool:
    """True if all grounds are still as they were seen."""
    return unchanged([grounds.entries for grounds in all_grounds]) and all(
        _origin_is_as_seen(sys, grounds.device) for grounds in all_grounds
    )


def _origin_is_as_seen(sys: Path, device: Device) -> bool:
    """True unless a virtual function is no longer the vGPU that it was, or its physical function lost its driver."""
    lead = device.lead
    if device.mdev is not None or lead.physical_function is None:
        return True
    try:
        if lead.vgpu_type is not None:
            return text(sys, f"{DEVICES}/{lead.address}/{VGPU_TYPE}") == str(lead.vgpu_type)
        driver = link_name(sys, f"{DEVICES}/{lead.physical_function}/driver")
    except Unreadable:
        return False
    return not is_vfio_driver(driver)  # a driver may leave its virtual functions behind


def unknown_device(device_id: str, resource: str) -> Refusal:
    """Return the error for an ID that the kubelet knows and this node does not."""
    return Refusal(
        device_id, f"is not a device of {resource} on this node", "delete the pod, to have devices allocated anew"
    )


def _device(snapshot: Snapshot, device_id: str, resource: str | None) -> Device:
    device = snapshot.inventory.by_id.get(device_id)
    if device is None or resource not in (None, device.resource):
        raise unknown_device(device_id, resource or "the plugin")
    reason = snapshot.reason(device)
    if reason is not None:
        subject = device_id if device.resource is None else f"{device_id} of {device.resource}"
        raise Refusal(subject, f"cannot be handed out: it {reason.wrong}", reason.fix)
    return device
