"""What a container gets for the devices it was assigned: one environment variable and the VFIO device nodes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pci.functions import is_vfio_driver
from pci.resource import DeviceKind, encode, variable
from pci.sysfs.attribute import Unreadable, link_name, text
from pci.sysfs.entries import Entries, unchanged
from pci.sysfs.functions import DEVICES, IOMMU_GROUPS, MDEVS, OTHER_DRIVER, VFIO_DEV, VGPU_TYPE
from plugin.cards.inventory import Device
from plugin.cards.nodes import DeviceNode, egm_nodes
from plugin.node.snapshot import Snapshot
from program.errors import Refusal


@dataclass(frozen=True)
class Allocation:
    """What a container gets: environment variables, and device nodes."""

    env: Mapping[str, str]
    nodes: tuple[DeviceNode, ...]


def pick(snapshot: Snapshot, device_ids: Iterable[str], resource: str | None = None) -> tuple[Device, ...]:
    """Return the devices of these IDs, ascending: the kubelet's order is a Go map's.

    Without a `resource` they may be of any: the device plugin is asked for one resource's devices, a DRA driver is not.
    Refusal, naming the device, if one is unknown, of another resource or cannot be handed out: a pod that starts
    without its device is worse than one that doesn't start.
    """
    return tuple(_device(snapshot, device_id, resource) for device_id in sorted(set(device_ids)))


def require_whole(snapshot: Snapshot, resource: str, devices: Sequence[Device]) -> None:
    """Refuse a part of a resource that is for one container alone: a board's GPUs and its switches, which work for a
    guest that has them all."""
    every = snapshot.inventory.listed[resource]
    if len(devices) != len(every):
        wrong = f"are {len(devices)} of {len(every)}, and a container gets all of {resource} or none (whole)"
        raise Refusal(", ".join(device.id for device in devices), wrong, f"request {len(every)}")


def allocate(
    snapshot: Snapshot, resource: str, devices: Sequence[Device], nodes: Iterable[tuple[DeviceNode, ...]]
) -> Allocation:
    """Hand out these devices of a resource, with the `nodes` of each.

    The nodes of a device are those of its whole group, so a card's companions come with it; each node once, whatever
    shares it.
    """
    its = dict.fromkeys(node for each in nodes for node in each)
    egms: tuple[DeviceNode, ...] = ()
    if snapshot.inventory.egms and snapshot.nodes is not None:
        addresses = [function.address for device in devices for function in device.functions]
        egms = egm_nodes(snapshot.inventory.egms, addresses, snapshot.nodes)
    mdevs = [device.mdev.uuid for device in devices if device.mdev is not None]
    if mdevs:
        env = {variable(resource, DeviceKind.MDEV): encode(mdevs)}
    else:
        env = {variable(resource): encode(device.functions[0].address for device in devices)}
    return Allocation(env=env, nodes=(*its, *egms))


@dataclass(frozen=True, slots=True)
class Grounds:
    """What the verdict on a device rests on: entries of sysfs and /dev, and what its virtual function comes from."""

    entries: Entries
    device: Device

    @property
    def ask_a_driver(self) -> bool:
        """Whether a driver has to answer for them, which it may not do."""
        return self.device.mdev is None and self.device.lead.vgpu_type is not None


def grounds(sys: Path, dev: Path, device: Device, nodes: Iterable[DeviceNode]) -> Grounds:
    """Return what the verdict on a device rests on: the members of its group, their drivers, their place in VFIO, and
    the device's nodes.

    Every path leads through the group, so that a function that changed its group is noticed too.
    """
    present = [f"{dev}{node.host.removeprefix('/dev')}" for node in nodes]
    if device.mdev is not None:
        link = f"{sys}/{MDEVS}/{device.id}/iommu_group"
        return Grounds(Entries(None, ((link, f"/{device.iommu_group}"),), tuple(present), ()), device)
    group = f"{sys}/{IOMMU_GROUPS}/{device.iommu_group}/devices"
    endpoints = [(member, f"{group}/{member.address}") for member in device.members if not member.is_bridge]
    present += [f"{path}/{VFIO_DEV}/{member.vfio_device}" for member, path in endpoints if member.vfio_device]
    # What has its place in VFIO is on the driver it was on; what has none (before Linux 6.1 all) is asked for it.
    drivers = [(member.driver, f"{path}/driver") for member, path in endpoints if not member.vfio_device]
    drivers += [(other.driver, f"{group}/{other.name}/{OTHER_DRIVER}") for other in device.others]
    entries = Entries(
        count=(group, len(device.members) + len(device.others)),
        links=tuple((path, f"/{driver}") for driver, path in drivers if driver),
        present=tuple(present),
        absent=tuple(path for driver, path in drivers if not driver),
    )
    return Grounds(entries, device)


def hold(sys: Path, all_grounds: Sequence[Grounds]) -> bool:
    """Whether all grounds are still as they were."""
    return unchanged([grounds.entries for grounds in all_grounds]) and all(
        _origin_is_as_seen(sys, grounds.device) for grounds in all_grounds
    )


def _origin_is_as_seen(sys: Path, device: Device) -> bool:
    """Whether a virtual function is still the vGPU that it was; or whether its physical function is still on its own
    driver."""
    lead = device.lead
    if device.mdev is not None or lead.physical_function is None:
        return True
    try:
        if lead.vgpu_type is not None:
            return text(sys, f"{DEVICES}/{lead.address}/{VGPU_TYPE}") == str(lead.vgpu_type)
        driver = link_name(sys, f"{DEVICES}/{lead.physical_function}/driver")
    except Unreadable:
        return False
    return driver is None or not is_vfio_driver(driver)  # a driver that goes may leave its virtual functions


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
