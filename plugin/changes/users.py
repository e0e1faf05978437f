"""The pods and ResourceClaims that were given the node's devices: pods by the kubelet's list, also through other
plugins; claims by the DRA driver's checkpoint."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias
from uuid import UUID

from pci.address import PCIAddress, address_or_none
from pci.functions import is_on_vfio
from pci.host import Host
from plugin.cards.inventory import Device
from program.errors import Refusal

_NUMBER = re.compile("0|[1-9][0-9]{0,8}")

#: A function, or a mediated device.
Name: TypeAlias = PCIAddress | UUID


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
class KubeletList:
    """The kubelet's list: all pods (`namespace/name`), and the devices that they have. `ids` has all IDs of each
    resource of which a pod has an ID that is a number (see `numbers_groups`); empty if the kubelet does not tell
    them."""

    pods: frozenset[str] = frozenset()
    assignments: frozenset[Assignment] = frozenset()
    ids: Mapping[str, frozenset[str]] = field(default_factory=dict)


class CannotAsk(Refusal):
    """The kubelet does not say which pods have which devices."""

    def __init__(self, socket: Path, wrong: str) -> None:
        super().__init__(socket, wrong, "name the kubelet's pod resources socket with --pod-resources")
        self.args = (socket, wrong)  # so that it can be pickled


@dataclass(frozen=True, slots=True)
class DeviceHolder:
    """A pod that has a device, by a line of the kubelet's list. `is_certain` is False if the line's ID is a number that
    may not be the device's IOMMU group."""

    assignment: Assignment
    is_certain: bool

    def __str__(self) -> str:
        return f"pod {self.assignment.pod}{'' if self.is_certain else ', perhaps'}"


@dataclass(frozen=True, slots=True)
class Users:
    """The pods and ResourceClaims (`namespace/name`) that were given each function and mediated device, the more
    certain pods first. Whoever has any function of an IOMMU group has all of them."""

    pods: Mapping[Name, tuple[DeviceHolder, ...]] = field(default_factory=dict)
    claims: Mapping[Name, tuple[str, ...]] = field(default_factory=dict)

    def holders(self, names: Iterable[Name]) -> tuple[DeviceHolder, ...]:
        """Return the pods that have any of these devices, the more certain ones first."""
        holders = dict.fromkeys(holder for name in names for holder in self.pods.get(name, ()))
        return tuple(sorted(holders, key=_certain_first))

    def of(self, names: Iterable[Name]) -> Mapping[str, bool]:
        """Return all users of these devices in words, `pod vms/a`, `ResourceClaim vms/gpu`, and whether each is
        certain; empty if there are none."""
        names = tuple(names)
        pods = {str(holder): holder.is_certain for holder in self.holders(names)}
        return pods | {f"ResourceClaim {claim}": True for name in names for claim in self.claims.get(name, ())}


#: Says who was given the host's devices; Refusal if that is not known.
AskUsers: TypeAlias = Callable[[Host], Users]


def users(host: Host, listed: KubeletList, claimed: Mapping[str, str]) -> Users:
    """Return the users of the host's devices. `claimed` has the claim for which a device is prepared, by its ID.

    Other plugins, and this one under another config, use other IDs: NVIDIA's and Harvester's are addresses, also of a
    companion; KubeVirt's are numbers of IOMMU groups; a mediated device's is its UUID.
    """
    groups = _Groups.of(host)
    numbers = {
        resource: numbers_groups(host, listed.ids.get(resource), ids)
        for resource, ids in _numbers(listed.assignments).items()
    }
    pods: dict[Name, list[DeviceHolder]] = defaultdict(list)
    for assignment in sorted(listed.assignments, key=lambda each: (each.pod, each.resource, each.device_id)):
        is_group = numbers[assignment.resource] if is_number(assignment.device_id) else True
        if is_group is not False:
            for name in groups.names(assignment.device_id):
                pods[name].append(DeviceHolder(assignment, is_certain=is_group is True))
    claims: dict[Name, list[str]] = defaultdict(list)
    for device_id, claim in sorted(claimed.items()):
        for name in groups.names(device_id):
            claims[name].append(claim)
    return Users(
        {name: tuple(sorted(holders, key=_certain_first)) for name, holders in pods.items()},
        {name: tuple(dict.fromkeys(each)) for name, each in claims.items()},
    )


def numbers_groups(host: Host, all_ids: frozenset[str] | None, ids: frozenset[str]) -> bool | None:
    """Return whether the IDs of a resource are numbers of IOMMU groups, as KubeVirt's and NVIDIA's older plugins have
    them for devices on vfio; None if that is unclear.

    `all_ids` are all IDs of the resource, None if the kubelet does not tell them; pods have `ids` of it. Addresses and
    UUIDs among them say nothing about the numbers. Any other ID that is no group of the node shows that the resource
    numbers something else. So do IDs from 0 to n - 1 without a gap, as k8s-rdma-shared-dev-plugin has them, if vfio has
    no function of one of these groups. The group of a device that left vfio, or IDs without a gap that are all groups
    on vfio, may be either.
    """
    known = {each for each in all_ids or ids if address_or_none(each) is None and _uuid_or_none(each) is None}
    on_vfio = {f"{function.iommu_group}" for function in host.functions.values() if is_on_vfio(function)}
    on_vfio |= {f"{mdev.iommu_group}" for mdev in host.mdevs}
    if not known <= {f"{group}" for group in host.groups} | on_vfio:
        return False
    if all_ids is None:
        return None
    has_gap = known != {f"{number}" for number in range(len(known))}
    is_all_on_vfio = known <= on_vfio
    return is_all_on_vfio if has_gap == is_all_on_vfio else None


def is_number(device_id: str) -> bool:
    """Return whether an ID may be the number of an IOMMU group."""
    return _NUMBER.fullmatch(device_id) is not None


def _numbers(assignments: Iterable[Assignment]) -> Mapping[str, frozenset[str]]:
    """Return the IDs that pods have, by resource, for resources of which a pod has an ID that is a number."""
    ids: dict[str, set[str]] = defaultdict(set)
    for assignment in assignments:
        ids[assignment.resource].add(assignment.device_id)
    return {resource: frozenset(each) for resource, each in ids.items() if any(map(is_number, each))}


def _certain_first(holder: DeviceHolder) -> bool:
    return not holder.is_certain


@dataclass(frozen=True, slots=True)
class _Groups:
    """The functions and mediated devices of each IOMMU group, and the group of each."""

    members: Mapping[int, tuple[Name, ...]]
    group_of: Mapping[Name, int]

    @classmethod
    def of(cls, host: Host) -> "_Groups":
        members: dict[int, list[Name]] = defaultdict(list, {group: [*each] for group, each in host.groups.items()})
        for mdev in host.mdevs:
            if mdev.iommu_group is not None:
                members[mdev.iommu_group].append(mdev.uuid)
        group_of = {name: group for group, names in members.items() for name in names}
        return cls({group: tuple(names) for group, names in members.items()}, group_of)

    def names(self, device_id: str) -> tuple[Name, ...]:
        """Return the functions and mediated devices of an ID; none for an ID that only its plugin knows."""
        if is_number(device_id):
            return self.members.get(int(device_id), ())
        name = address_or_none(device_id) or _uuid_or_none(device_id)
        if name is None:
            return ()
        return tuple(dict.fromkeys((name, *self.members.get(self.group_of.get(name, -1), ()))))


def _uuid_or_none(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
