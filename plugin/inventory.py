"""What a node has to give: every device on offer, and for everything that could be one and is not, the reason.

A pure function of what sysfs said, the config and pci.ids.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

from pci.address import PCIAddress
from pci.cards import Card, cards_of
from pci.functions import is_gpu, is_nvswitch, is_on_vfio
from pci.host import Function, Host, MediatedDevice, OtherMember
from pci.resource import Kind, NodeDevice, variable
from pci.vendors import PREFIXES
from pci.viability import not_for_guests, not_viable
from plugin.config import Config, Groups, Rule
from plugin.errors import Refusal
from plugin.naming import PCIIDs, resource_name, type_resource_name

#: A resource, and what it is made of; None for a node device.
_Claim: TypeAlias = tuple[str, Kind | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The unit of a request: a card, the cards of one IOMMU group together, a virtual function or a mediated device.

    `functions` are ascending; the first one's address is the device's ID. `lead` is the one it is wanted for: the GPU,
    or what the config's rule fits. A mediated device has no functions and its UUID for an ID; `lead` is its parent.
    `members` are all functions of its IOMMU group and `others` what else is in it; a mediated device has neither.
    `cdevs` are the names of the nodes that it and they have in /dev/vfio/devices, None among them for one that has
    none. `resource` is None for what no rule and no vendor's prefix gives a name. `withheld` says why the kubelet never
    hears of it, `unhealthy` why it hears and may not hand it out; at most one of them is set.
    """

    functions: Card
    lead: Function
    mdev: MediatedDevice | None
    members: tuple[Function, ...]
    others: tuple[OtherMember, ...]
    cdevs: frozenset[str | None]
    model: str
    resource: str | None
    withheld: str | None
    unhealthy: str | None

    @property
    def id(self) -> str:
        return str(self.functions[0].address if self.mdev is None else self.mdev.uuid)

    @property
    def kind(self) -> Kind:
        return Kind.PCI if self.mdev is None else Kind.MDEV

    @property
    def iommu_group(self) -> int | None:
        return self.lead.iommu_group if self.mdev is None else self.mdev.iommu_group

    @property
    def numa_node(self) -> int | None:
        return self.lead.numa_node

    @property
    def reason(self) -> str | None:
        return self.withheld or self.unhealthy


@dataclass(frozen=True)
class Inventory:
    """The devices of a node, cards by address and then mediated devices by UUID; what of sysfs could not be read, one
    line each; Grace's extended GPU memories with the GPUs each belongs to; and the groups of vfio's no-IOMMU mode."""

    devices: tuple[Device, ...]
    faults: tuple[str, ...]
    egms: Mapping[str, tuple[PCIAddress, ...]]
    noiommu: frozenset[int]

    @cached_property
    def listed(self) -> Mapping[str, tuple[Device, ...]]:
        """What the kubelet hears of, healthy or not, by resource, both ascending."""
        found: dict[str, list[Device]] = defaultdict(list)
        for device in self.devices:
            if device.resource is not None and device.withheld is None:
                found[device.resource].append(device)
        return {resource: tuple(found[resource]) for resource in sorted(found)}

    @cached_property
    def by_id(self) -> Mapping[str, Device]:
        return {device.id: device for device in self.devices}


def take_inventory(host: Host, config: Config, pci_ids: PCIIDs, before: Inventory | None = None) -> Inventory:
    """Every GPU and NVSwitch of the host and what the config asks for, each with its resource or the reason why not.

    Refusal where two resources share one environment variable: a pod could not tell them apart. With the inventory
    from `before`, by the same config, the resource that was not in it is withheld instead.
    """
    wanted = [unit for card in cards_of(host) if (unit := _unit(host, card, config, pci_ids)) is not None]
    devices = _told_apart((*_as_offered(host, wanted, config), *_mdevs(host, config, pci_ids)), config, before)
    return Inventory(devices=devices, faults=tuple(map(str, host.faults)), egms=host.egms, noiommu=host.noiommu)


def fitting(host: Host, card: Card, config: Config) -> tuple[Rule, Function] | None:
    """The first rule of the config that fits a function of the card, and that function; None where no rule fits."""
    return next(
        ((rule, function) for rule in config.offer for function in card if rule.fits(function, host.vgpu_types)), None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unit:
    """A card that is a GPU or that a rule is about, before it is asked what the kernel makes of it."""

    card: Card
    lead: Function
    model: str
    resource: str | None
    withheld: str | None  # by the config or for want of a name


def _unit(host: Host, card: Card, config: Config, pci_ids: PCIIDs) -> _Unit | None:
    """The card as the config has it; None where nobody asks for it."""
    rule, fits = fitting(host, card, config) or (None, None)
    lead = next(filter(is_gpu, card), None) or fits or next(filter(is_nvswitch, card), None)
    if lead is None:
        return None
    model = pci_ids.device(lead.vendor_id, lead.device_id) or lead.pci_id
    resource: str | None = None
    withheld: str | None = None
    if rule is not None and rule.withhold:
        withheld = "is withheld by the config"
    elif rule is not None and rule.resource is not None:
        resource = rule.resource
    else:
        resource, withheld = _automatic(host, lead, rule, pci_ids)
    if lead.vgpu_type is not None:
        model = host.vgpu_types.get(lead.vgpu_type, f"vGPU type {lead.vgpu_type}")
    return _Unit(card=card, lead=lead, model=model, resource=resource, withheld=withheld)


def _automatic(host: Host, lead: Function, rule: Rule | None, pci_ids: PCIIDs) -> tuple[str | None, str | None]:
    """A name from pci.ids or of the vGPU's type; or None, and why there is none."""
    prefix = rule.prefix if rule is not None else PREFIXES.get(lead.vendor_id) if is_gpu(lead) else None
    if prefix is None:
        what = "is an NVSwitch" if is_nvswitch(lead) else f"has vendor {lead.vendor_id:04x}"
        return None, f"{what}, offered only by a config: add a rule with device: {lead.pci_id!r}"
    if lead.vgpu_type is None:
        return resource_name(pci_ids, prefix, lead.vendor_id, lead.device_id), None
    # The kernel names only the types that something could still become.
    name = type_resource_name(prefix, host.vgpu_types.get(lead.vgpu_type, ""))
    if name is None:
        return None, (
            f"is a vGPU of type {lead.vgpu_type}, which no creatable_vgpu_types names now; "
            f"give it a name in the config: add a rule with vgpu_type: '{lead.vgpu_type}'"
        )
    return name, None


def _as_offered(host: Host, wanted: list[_Unit], config: Config) -> Iterator[Device]:
    """The units as devices: one each, or one for all that share a group."""
    sharing: dict[int, list[_Unit]] = defaultdict(list)
    for unit in wanted:
        if unit.withheld is None and unit.lead.iommu_group is not None and not unit.lead.is_bridge:
            sharing[unit.lead.iommu_group].append(unit)
    for unit in wanted:
        group = sharing.get(unit.lead.iommu_group, []) if unit.lead.iommu_group is not None else []
        functions, leads = unit.card, [unit.lead]
        shares = None
        if unit in group and len(group) > 1:
            if config.groups is Groups.WITHHOLD:
                shares = _shares(unit, group, "a slot whose root port or switch has ACS gives each a group of its own")
            elif len({other.resource for other in group}) > 1:
                shares = _shares(unit, group, "a rule that gives them one resource makes them one unit")
            elif unit is not group[0]:
                continue  # part of the unit that the first one stands for
            else:
                functions = tuple(function for other in group for function in other.card)
                leads = [other.lead for other in group]
        members = _members(host, unit.lead.iommu_group)
        unfit = next(filter(None, (not_for_guests(host, lead, noiommu=config.noiommu) for lead in leads)), None)
        withheld = unit.withheld or (None if unfit is None else str(unfit)) or shares
        broken = None if withheld else not_viable(host, functions)
        yield Device(
            functions=functions,
            lead=unit.lead,
            mdev=None,
            members=members,
            others=() if unit.lead.iommu_group is None else host.others.get(unit.lead.iommu_group, ()),
            cdevs=frozenset(member.vfio_device for member in members if is_on_vfio(member)),
            model=unit.model if len(functions) == len(unit.card) else f"{len(group)} x {unit.model}",
            resource=unit.resource,
            withheld=withheld,
            unhealthy=None if broken is None else str(broken),
        )


def _members(host: Host, group: int | None) -> tuple[Function, ...]:
    """The functions of a group that can be read."""
    addresses = () if group is None else host.groups[group]
    return tuple(host.functions[address] for address in addresses if address in host.functions)


def _shares(unit: _Unit, group: list[_Unit], cure: str) -> str:
    others = ", ".join(str(other.card[0].address) for other in group if other is not unit)
    return f"shares group {unit.lead.iommu_group} with {others}, and a guest gets a group whole or not at all; {cure}"


def _mdevs(host: Host, config: Config, pci_ids: PCIIDs) -> Iterator[Device]:
    """The mediated devices: those of the vendors' GPUs by the name of their type, others by config."""
    for mdev in host.mdevs:
        parent = host.functions.get(mdev.parent)
        if parent is None:
            continue  # it cannot be read, and the fault says so
        rule = next((rule for rule in config.offer if rule.fits_mdev(mdev, parent)), None)
        if rule is None and not is_gpu(parent):
            continue
        resource: str | None = None
        withheld: str | None = None
        if rule is not None and rule.withhold:
            withheld = "is withheld by the config"
        elif rule is not None and rule.resource is not None:
            resource = rule.resource
        else:
            prefix = rule.prefix if rule is not None else PREFIXES.get(parent.vendor_id)
            resource = None if prefix is None else type_resource_name(prefix, mdev.type_name)
            if resource is None:
                withheld = f"has no name to be offered under; add a rule with mdev_type: {mdev.type_name!r}"
        if withheld is None and mdev.iommu_group is None:
            withheld = "is in no IOMMU group; its driver has not given it to vfio_mdev"
        yield Device(
            functions=(),
            lead=parent,
            mdev=mdev,
            members=(),
            others=(),
            cdevs=frozenset([mdev.vfio_device]),
            model=f"{mdev.type_name} on {pci_ids.device(parent.vendor_id, parent.device_id) or parent.pci_id}",
            resource=resource,
            withheld=withheld,
            unhealthy=None,
        )


def _told_apart(devices: tuple[Device, ...], config: Config, before: Inventory | None) -> tuple[Device, ...]:
    """The devices, where each resource has a variable of its own. Refusal where not; but beside what was offered
    `before` only the later resource's devices are withheld: a card that is plugged in must not take the others along.
    """
    # What is withheld counts at first: it may be given to vfio at any time.
    counting = [device for device in devices if before is None or device.withheld is None]
    claims = {(device.resource, device.kind) for device in counting if device.resource is not None}
    earlier = {(resource, found[0].kind) for resource, found in before.listed.items()} if before is not None else set()
    by_variable: dict[str, _Claim] = {}
    for resource in (device.resource() for device in config.node_devices):
        by_variable[variable(resource)] = (resource, None)
    clashes: dict[_Claim, str] = {}
    for claim in (*sorted(claims & earlier), *sorted(claims - earlier)):
        other = by_variable.setdefault(variable(claim[0]), claim)
        if other != claim:
            clashes[claim] = _clash(claim[0], *other)
    if not clashes:
        return devices
    if before is None:
        raise Refusal(next(iter(clashes.values())))
    return tuple(
        replace(device, withheld=f"cannot be told apart: {clash}", unhealthy=None)
        if device.withheld is None
        and device.resource is not None
        and (clash := clashes.get((device.resource, device.kind))) is not None
        else device
        for device in devices
    )


def _clash(resource: str, other: str, kind: Kind | None) -> str:
    """What is wrong with a resource whose variable another has already."""
    if resource == other and kind is None:
        node = NodeDevice(resource.rpartition("/")[2]).node
        return f"{resource} is the name of the node's /dev/{node}; give the card another one"
    if resource == other:
        return (
            f"{resource} would be both PCI and mediated devices, and a pod could not tell them apart; "
            "give one of them another name in the config"
        )
    return (
        f"resources {other} and {resource} would share the variable {variable(resource)}; "
        "give one of them another name in the config"
    )
