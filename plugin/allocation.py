"""What a container gets for the devices it was assigned: one environment variable and the VFIO device nodes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pci.functions import is_vfio_driver
from pci.resource import Kind, encode, variable
from pci.sysfs.attribute import Unreadable, link_name, text
from pci.sysfs.entries import Entries, unchanged
from pci.sysfs.functions import DEVICES, IOMMU_GROUPS, MDEVS, OTHER_DRIVER, VFIO_DEV, VGPU_TYPE
from plugin.errors import Refusal
from plugin.inventory import Device
from plugin.nodes import Node, egm_nodes
from plugin.snapshot import Snapshot


@dataclass(frozen=True)
class Allocation:
    """Environment variables, and device nodes."""

    env: Mapping[str, str]
    nodes: tuple[Node, ...]


def pick(snapshot: Snapshot, resource: str, device_ids: Iterable[str]) -> tuple[Device, ...]:
    """The devices of these IDs, ascending: the kubelet's order is a Go map's.

    Refusal, naming the device, where one is unknown, belongs to another resource or cannot be handed out: a pod that
    starts without its device is worse than one that doesn't start.
    """
    return tuple(_device(snapshot, resource, device_id) for device_id in sorted(set(device_ids)))


def allocate(snapshot: Snapshot, resource: str, devices: Sequence[Device]) -> Allocation:
    """Hand out these devices of a resource.

    Nodes are those of the whole group, so a card's companions come with it; each once, whatever shares it.
    """
    nodes = dict.fromkeys(node for device in devices for node in snapshot.nodes_of(device))
    egms: tuple[Node, ...] = ()
    if snapshot.inventory.egms and snapshot.nodes is not None:
        addresses = [function.address for device in devices for function in device.functions]
        egms = egm_nodes(snapshot.inventory.egms, addresses, snapshot.nodes)
    mdevs = [device.mdev.uuid for device in devices if device.mdev is not None]
    if mdevs:
        env = {variable(resource, Kind.MDEV): encode(mdevs)}
    else:
        env = {variable(resource): encode(device.functions[0].address for device in devices)}
    return Allocation(env=env, nodes=(*nodes, *egms))


@dataclass(frozen=True, slots=True)
class Grounds:
    """What the verdict on a device rests on: entries of sysfs and /dev, and what its virtual function comes from."""

    entries: Entries
    device: Device


def grounds(sys: Path, dev: Path, device: Device, nodes: Iterable[Node]) -> Grounds:
    """The members of its group, the drivers those are on, their place in VFIO, and the nodes. Every path leads through
    the group, so that a function that changed its group is noticed too."""
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
    """Whether all of it is still so."""
    return unchanged([one.entries for one in all_grounds]) and all(
        _origin_is_as_seen(sys, one.device) for one in all_grounds
    )


def _origin_is_as_seen(sys: Path, device: Device) -> bool:
    """Whether a virtual function's physical one is still on its own driver; or whether it is still the vGPU it was."""
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


def _device(snapshot: Snapshot, resource: str, device_id: str) -> Device:
    device = snapshot.inventory.by_id.get(device_id)
    if device is None or device.resource != resource:
        raise Refusal(f"{device_id!r} is not a device of {resource} on this node")
    reason = snapshot.reason(device)
    if reason is not None:
        raise Refusal(f"{device_id} of {resource} cannot be handed out: it {reason}")
    return device
