"""What a container gets for the devices it was assigned: one environment variable and the VFIO device nodes."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pci.functions import is_vfio_driver
from pci.resource import Kind, encode, variable
from pci.sysfs import DEVICES, IOMMU_GROUPS, MDEVS, OTHER_DRIVER, VFIO_DEV
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
    """What the verdict on a device rests on, as paths: what a directory's number of entries was, where links led (the
    end of their targets), what was there and what was not."""

    entries: tuple[str, int] | None
    links: tuple[tuple[str, str], ...]
    present: tuple[str, ...]
    absent: tuple[str, ...]
    device: Device


def grounds(sys: Path, dev: Path, device: Device, nodes: Iterable[Node]) -> Grounds:
    """The members of its group, the drivers those are on, their place in VFIO, and the nodes. Every path leads through
    the group, so that a function that changed its group is noticed too."""
    present = [f"{dev}{node.host.removeprefix('/dev')}" for node in nodes]
    if device.mdev is not None:
        link = f"{sys}/{MDEVS}/{device.id}/iommu_group"
        return Grounds(None, ((link, f"/{device.iommu_group}"),), tuple(present), (), device)
    group = f"{sys}/{IOMMU_GROUPS}/{device.iommu_group}/devices"
    endpoints = [(member, f"{group}/{member.address}") for member in device.members if not member.is_bridge]
    present += [f"{path}/{VFIO_DEV}/{member.vfio_device}" for member, path in endpoints if member.vfio_device]
    # What has its place in VFIO is on the driver it was on; what has none (before Linux 6.1 all) is asked for it.
    drivers = [(member.driver, f"{path}/driver") for member, path in endpoints if not member.vfio_device]
    drivers += [(other.driver, f"{group}/{other.name}/{OTHER_DRIVER}") for other in device.others]
    return Grounds(
        entries=(group, len(device.members) + len(device.others)),
        links=tuple((path, f"/{driver}") for driver, path in drivers if driver),
        present=tuple(present),
        absent=tuple(path for driver, path in drivers if not driver),
        device=device,
    )


def hold(sys: Path, all_grounds: Sequence[Grounds]) -> bool:
    """Whether all of it is still so. Reads nothing else, since it stands between the kubelet and every pod."""
    try:
        for one in all_grounds:
            if one.entries is not None and len(os.listdir(one.entries[0])) != one.entries[1]:
                return False
            for path, end in one.links:
                if not os.readlink(path).endswith(end):
                    return False
    except OSError:
        return False
    # Devices share some nodes. access() asks less than stat(), and eight cards are fifty questions.
    present = dict.fromkeys(path for one in all_grounds for path in one.present)
    return (
        all(os.access(path, os.F_OK) for path in present)
        and not any(os.path.lexists(path) for one in all_grounds for path in one.absent)
        and all(_origin_is_as_seen(sys, one.device) for one in all_grounds)
    )


def _origin_is_as_seen(sys: Path, device: Device) -> bool:
    """What a virtual function depends on besides: the driver of its physical one, or still being a vGPU."""
    lead = device.lead
    if device.mdev is not None or lead.physical_function is None:
        return True
    try:
        if lead.vgpu_type is not None:
            current = Path(f"{sys}/{DEVICES}/{lead.address}/nvidia/current_vgpu_type").read_text()
            return current.strip() == str(lead.vgpu_type)
        driver = os.readlink(f"{sys}/{DEVICES}/{lead.physical_function}/driver")
    except FileNotFoundError:
        return lead.vgpu_type is None  # a driver that goes may leave its virtual functions
    except OSError:
        return False
    return not is_vfio_driver(os.path.basename(driver))


def _device(snapshot: Snapshot, resource: str, device_id: str) -> Device:
    device = snapshot.inventory.by_id.get(device_id)
    if device is None or device.resource != resource:
        raise Refusal(f"{device_id!r} is not a device of {resource} on this node")
    reason = snapshot.reason(device)
    if reason is not None:
        raise Refusal(f"{device_id} of {resource} cannot be handed out: it {reason}")
    return device
