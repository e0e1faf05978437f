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
from pci.functions import is_gpu, is_integrated_gpu, is_nvswitch, is_on_vfio
from pci.host import Function, Host, MediatedDevice, OtherMember
from pci.resource import DeviceKind, NodeDevice, variable
from pci.vendors import NVIDIA, PREFIXES
from pci.viability import Hindrance, no_answer, not_for_guests, not_viable
from plugin.cards.config import Bind, Config, Groups, Rule, Serve
from plugin.cards.names import PCIIDs, resource_name, type_resource_name
from program.errors import Refusal
from program.problem import Problem

#: Why the kubelet never hears of a device that a rule withholds: the admin wants it so, and nothing is to be fixed.
BY_CONFIG = Hindrance("is withheld by the config", "")

#: A resource, and what it is made of; None for a node device.
_Claim: TypeAlias = tuple[str, DeviceKind | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What the kubelet hands out as one: a card, a unit of several cards, a virtual function or a mediated device.

    `functions` are ascending; the first one's address is the device's ID. `lead` is the function for which the device
    is wanted: the GPU, or what the config's rule fits. A mediated device has no functions and a UUID for an ID; its
    `lead` is its parent. `members` are all functions of the IOMMU group, `others` its members that are not on PCI; a
    mediated device has neither. `cdevs` are the names of the nodes in /dev/vfio/devices of the device and its members,
    with None for a member that has no such node. `resource` is None if neither a rule nor the vendor's prefix gives a
    name; `serve` is how it is given to pods. `to_bind`: its host's driver has it, or none, and it is bound to vfio when
    a claim gets it; whether it can be is not known here. `withheld` says why nobody ever hears of the device,
    `unhealthy` why it may not be handed out; at most one of the two is set.
    """

    functions: Card
    lead: Function
    mdev: MediatedDevice | None
    members: tuple[Function, ...]
    others: tuple[OtherMember, ...]
    cdevs: frozenset[str | None]
    model: str
    resource: str | None
    serve: Serve
    to_bind: bool
    withheld: Hindrance | None
    unhealthy: Hindrance | None

    @property
    def id(self) -> str:
        return str(self.functions[0].address if self.mdev is None else self.mdev.uuid)

    @property
    def kind(self) -> DeviceKind:
        return DeviceKind.PCI if self.mdev is None else DeviceKind.MDEV

    @property
    def iommu_group(self) -> int | None:
        return self.lead.iommu_group if self.mdev is None else self.mdev.iommu_group

    @property
    def numa_node(self) -> int | None:
        return self.lead.numa_node

    @property
    def reason(self) -> Hindrance | None:
        return self.withheld or self.unhealthy


@dataclass(frozen=True)
class Inventory:
    """What a node has to give.

    `devices` are cards and virtual functions by address, then mediated devices by UUID. `faults` are the entries of
    sysfs that could not be read, one line each. `egms` are Grace's extended GPU memories with the GPUs that each
    belongs to, `noiommu` the groups of vfio's no-IOMMU mode.
    """

    devices: tuple[Device, ...]
    faults: tuple[str, ...]
    egms: Mapping[str, tuple[PCIAddress, ...]]
    noiommu: frozenset[int]

    @cached_property
    def offered(self) -> tuple[Device, ...]:
        """What pods may be given, healthy or not, in either way."""
        return tuple(device for device in self.devices if device.resource is not None and device.withheld is None)

    @cached_property
    def listed(self) -> Mapping[str, tuple[Device, ...]]:
        """What the device plugin tells the kubelet of, by resource, both ascending."""
        listed: dict[str, list[Device]] = defaultdict(list)
        for device in self.offered:
            if device.resource is not None and device.serve is Serve.DEVICE_PLUGIN:
                listed[device.resource].append(device)
        return {resource: tuple(listed[resource]) for resource in sorted(listed)}

    @cached_property
    def published(self) -> tuple[Device, ...]:
        """What the DRA driver tells the scheduler of, ascending."""
        return tuple(device for device in self.offered if device.serve is Serve.DRA)

    @cached_property
    def to_bind(self) -> Mapping[str, tuple[PCIAddress, ...]]:
        """What is published and bound to vfio when a claim gets it: its functions, by its ID."""
        return {
            device.id: tuple(function.address for function in device.functions)
            for device in self.published
            if device.to_bind
        }

    @cached_property
    def by_id(self) -> Mapping[str, Device]:
        return {device.id: device for device in self.devices}


def take_inventory(host: Host, config: Config, pci_ids: PCIIDs, before: Inventory | None = None) -> Inventory:
    """Return every GPU and NVSwitch of the host and what the config asks for, each with its resource or why it has
    none.

    Refusal if two resources share one environment variable: a pod could not tell them apart; or if one resource would
    be served in both ways: the scheduler would count it twice. With the inventory from `before`, by the same config,
    what was not in it is withheld instead.
    """
    units = [unit for card in cards_of(host) if (unit := _unit(host, card, config, pci_ids)) is not None]
    devices = _told_apart((*_as_offered(host, units, config), *_mdevs(host, config, pci_ids)), config, before)
    devices = _served_one_way(devices, before)
    return Inventory(devices=devices, faults=tuple(map(str, host.faults)), egms=host.egms, noiommu=host.noiommu)


def fitting(host: Host, card: Card, config: Config) -> tuple[Rule, Function] | None:
    """Return the first rule of the config that fits a function of the card, and that function; None if no rule fits."""
    return next(
        ((rule, function) for rule in config.offer for function in card if rule.fits(function, host.vgpu_types)), None
    )


def is_left_to_the_node(host: Host, card: Card, lead: Function, config: Config) -> bool:
    """Whether the card of that GPU is the processor's own and no rule of the config fits it: the node's console, which
    nobody has asked for."""
    return is_integrated_gpu(host, lead) and fitting(host, card, config) is None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unit:
    """A card that is a GPU or that a rule is about, before the kernel's side is looked at."""

    card: Card
    lead: Function
    model: str
    resource: str | None
    serve: Serve
    withheld: Hindrance | None  # by the config or for want of a name


def _unit(host: Host, card: Card, config: Config, pci_ids: PCIIDs) -> _Unit | None:
    """Return the card as the config has it; None if nobody asks for it."""
    rule, fits = fitting(host, card, config) or (None, None)
    lead = next(filter(is_gpu, card), None) or fits or next(filter(is_nvswitch, card), None)
    if lead is None:
        return None
    model = pci_ids.device(lead.vendor_id, lead.device_id) or lead.pci_id
    resource, withheld = _by_rule(rule) or _automatic(host, lead, rule, pci_ids)
    if lead.vgpu_type is not None:
        model = host.vgpu_types.get(lead.vgpu_type, f"vGPU type {lead.vgpu_type}")
    serve = _serve(rule, config)
    return _Unit(card=card, lead=lead, model=model, resource=resource, serve=serve, withheld=withheld)


def _serve(rule: Rule | None, config: Config) -> Serve:
    return config.serve if rule is None or rule.serve is None else rule.serve


#: A resource, or why there is none.
_Name: TypeAlias = tuple[str | None, Hindrance | None]


def _by_rule(rule: Rule | None) -> _Name | None:
    """Return what a rule says of the name; None if that is not its business."""
    if rule is not None and rule.withhold:
        return None, BY_CONFIG
    return None if rule is None or rule.resource is None else (rule.resource, None)


def _by_type(mdev: MediatedDevice, parent: Function, rule: Rule | None) -> _Name:
    """Return the name of the mediated device's type, below the rule's prefix or the vendor's."""
    prefix = rule.prefix if rule is not None else PREFIXES.get(parent.vendor_id)
    resource = None if prefix is None else type_resource_name(prefix, mdev.type_name)
    if resource is None:
        return None, Hindrance("has no name to be offered under", f"add a rule with mdev_type: {mdev.type_name!r}")
    return resource, None


def _automatic(host: Host, lead: Function, rule: Rule | None, pci_ids: PCIIDs) -> tuple[str | None, Hindrance | None]:
    """Return a name from pci.ids or of the vGPU's type; or None, and why there is none."""
    prefix = rule.prefix if rule is not None else PREFIXES.get(lead.vendor_id) if is_gpu(lead) else None
    if prefix is None:
        what = "is an NVSwitch" if is_nvswitch(lead) else f"has vendor {lead.vendor_id:04x}"
        return None, Hindrance(f"{what}, offered only by a config", f"add a rule with device: {lead.pci_id!r}")
    if lead.vgpu_type is None:
        return resource_name(pci_ids, prefix, lead.vendor_id, lead.device_id), None
    # The kernel names only the types that something could still become.
    name = type_resource_name(prefix, host.vgpu_types.get(lead.vgpu_type, ""))
    if name is None:
        return None, Hindrance(
            f"is a vGPU of type {lead.vgpu_type}, which no creatable_vgpu_types names now",
            f"give it a name in the config: add a rule with vgpu_type: '{lead.vgpu_type}'",
        )
    return name, None


def _as_offered(host: Host, units: list[_Unit], config: Config) -> Iterator[Device]:
    """Yield the units as devices: one each, or one for all that share a group."""
    sharing: dict[int, list[_Unit]] = defaultdict(list)
    for unit in units:
        if unit.withheld is None and unit.lead.iommu_group is not None and not unit.lead.is_bridge:
            sharing[unit.lead.iommu_group].append(unit)
    for unit in units:
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
        unfit = next(filter(None, (_unfit(host, unit.card, lead, config) for lead in leads)), None)
        to_bind = _is_bound_when_claimed(host, unit, leads, config)
        withheld = unit.withheld or (None if to_bind else unfit) or shares
        yield Device(
            functions=functions,
            lead=unit.lead,
            mdev=None,
            members=members,
            others=() if unit.lead.iommu_group is None else host.others.get(unit.lead.iommu_group, ()),
            cdevs=frozenset(member.vfio_device for member in members if is_on_vfio(member)),
            model=unit.model if len(functions) == len(unit.card) else f"{len(group)} x {unit.model}",
            resource=unit.resource,
            serve=unit.serve,
            to_bind=to_bind,
            withheld=withheld,
            unhealthy=None if withheld or to_bind else not_viable(host, functions),
        )


def _unfit(host: Host, card: Card, lead: Function, config: Config) -> Hindrance | None:
    """Return why the kernel gives the lead of a card to no guest as it stands; None if it does."""
    unfit = not_for_guests(host, lead, noiommu=config.noiommu)
    is_bound_elsewhere = unfit is not None and lead.iommu_group is not None and not is_on_vfio(lead)
    if unfit is None or not is_bound_elsewhere or lead.boot_vga or not is_left_to_the_node(host, card, lead, config):
        return unfit
    whose = "is the processor's own GPU, which no rule of the config asks for"
    return Hindrance(f"{whose}: {unfit.wrong}", f"if a guest is to have it: gpu-plugin bind {card[0].address}")


def _is_bound_when_claimed(host: Host, unit: _Unit, leads: list[Function], config: Config) -> bool:
    """Whether vfio would have all leads of a unit when a claim gets it, and has not now."""
    return (
        config.bind is Bind.WHEN_CLAIMED
        and unit.serve is Serve.DRA
        and not all(map(is_on_vfio, leads))
        and all(is_on_vfio(lead) or _can_be_spared(host, unit.card, lead, config) for lead in leads)
        # The word for a driver of vfio's is all that counts here: which one it will be is for `bind` to choose.
        and all(not_for_guests(host, replace(lead, driver="vfio-pci"), noiommu=False) is None for lead in leads)
    )


def _can_be_spared(host: Host, card: Card, lead: Function, config: Config) -> bool:
    """Whether the node does without the driver of a card. What that gives to guests in parts (virtual functions,
    mediated devices) stays with it, and so does the processor's own GPU where nobody asks for it."""
    is_in_parts = (
        (lead.is_virtual and lead.vendor_id == NVIDIA)
        or any(function.physical_function == lead.address for function in host.functions.values())
        or any(mdev.parent == lead.address for mdev in host.mdevs)
    )
    return not is_in_parts and not is_left_to_the_node(host, card, lead, config)


def _members(host: Host, group: int | None) -> tuple[Function, ...]:
    """Return the functions of a group that can be read."""
    addresses = () if group is None else host.groups[group]
    return tuple(host.functions[address] for address in addresses if address in host.functions)


def _shares(unit: _Unit, group: list[_Unit], fix: str) -> Hindrance:
    others = ", ".join(str(other.card[0].address) for other in group if other is not unit)
    return Hindrance(
        f"shares group {unit.lead.iommu_group} with {others}, and a guest gets a group whole or not at all", fix
    )


def _mdevs(host: Host, config: Config, pci_ids: PCIIDs) -> Iterator[Device]:
    """Yield the mediated devices: those of the vendors' GPUs by the name of their type, others by config."""
    for mdev in host.mdevs:
        parent = host.functions.get(mdev.parent)
        if parent is None:
            continue  # it cannot be read, and the fault says so
        rule = next((rule for rule in config.offer if rule.fits_mdev(mdev, parent)), None)
        if rule is None and not is_gpu(parent):
            continue
        resource, withheld = _by_rule(rule) or _by_type(mdev, parent, rule)
        if withheld is None and mdev.iommu_group is None:
            withheld = Hindrance("is in no IOMMU group: its driver has not given it to vfio_mdev", "load vfio_mdev")
        yield Device(
            functions=(),
            lead=parent,
            mdev=mdev,
            members=(),
            others=(),
            cdevs=frozenset([mdev.vfio_device]),
            model=f"{mdev.type_name} on {pci_ids.device(parent.vendor_id, parent.device_id) or parent.pci_id}",
            resource=resource,
            serve=_serve(rule, config),
            to_bind=False,
            withheld=withheld,
            unhealthy=None if withheld else _no_answer(host, mdev),
        )


def _no_answer(host: Host, mdev: MediatedDevice) -> Hindrance | None:
    silent = [name for name in (str(mdev.uuid), str(mdev.parent)) if name in host.silent]
    return no_answer(silent[0]) if silent else None


def _told_apart(devices: tuple[Device, ...], config: Config, before: Inventory | None) -> tuple[Device, ...]:
    """Return the devices, if each resource has a variable of its own; Refusal if not.

    Beside what was offered `before`, the later resource's devices are withheld instead: a card that is plugged in must
    not take the others off the offer.
    """
    # What is withheld counts at first: it may be given to vfio at any time.
    counting = [device for device in devices if before is None or device.withheld is None]
    claims = {(device.resource, device.kind) for device in counting if device.resource is not None}
    earlier = {(device.resource, device.kind) for device in before.offered if device.resource} if before else set()
    by_variable: dict[str, _Claim] = {}
    for resource in (device.resource() for device in config.node_devices):
        by_variable[variable(resource)] = (resource, None)
    clashes: dict[_Claim, Refusal] = {}
    for claim in (*sorted(claims & earlier), *sorted(claims - earlier)):
        other = by_variable.setdefault(variable(claim[0]), claim)
        if other != claim:
            clashes[claim] = _clash(claim[0], *other)
    if not clashes:
        return devices
    if before is None:
        raise next(iter(clashes.values()))
    return tuple(
        replace(device, withheld=_not_told_apart(clash.problem), unhealthy=None)
        if device.withheld is None
        and device.resource is not None
        and (clash := clashes.get((device.resource, device.kind))) is not None
        else device
        for device in devices
    )


def _served_one_way(devices: tuple[Device, ...], before: Inventory | None) -> tuple[Device, ...]:
    """Return the devices, if no resource would be served by the device plugin and by DRA; Refusal if one would.

    Beside what was offered `before`, the others of that resource are withheld instead.
    """
    ways: dict[str, Serve] = {}
    for device in () if before is None else before.offered:
        ways.setdefault(str(device.resource), device.serve)
    kept = []
    for device in devices:
        counts = device.resource is not None and (before is None or device.withheld is None)
        if counts and ways.setdefault(str(device.resource), device.serve) is not device.serve:
            both = Refusal(
                f"{device.id} of {device.resource}",
                f"would be served by {device.serve}, and other cards of that resource by {ways[str(device.resource)]}",
                "say one `serve` for the whole resource, or give the cards two resources",
            )
            if before is None:
                raise both
            device = replace(device, withheld=Hindrance(both.problem.wrong, both.problem.fix), unhealthy=None)
        kept.append(device)
    return tuple(kept)


def _clash(resource: str, other: str, kind: DeviceKind | None) -> Refusal:
    """Return what is wrong with a resource whose variable another has already."""
    if resource == other and kind is None:
        node = NodeDevice(resource.rpartition("/")[2]).node
        return Refusal(resource, f"is the name of the node's /dev/{node}", "give the card another one in the config")
    if resource == other:
        wrong = "would be both PCI and mediated devices, and a pod could not tell them apart"
        return Refusal(resource, wrong, "give one of them another name in the config")
    return Refusal(
        f"resources {other} and {resource}",
        f"would share the variable {variable(resource)}",
        "give one of them another name in the config",
    )


def _not_told_apart(clash: Problem) -> Hindrance:
    return Hindrance(f"cannot be told apart: {clash.subject} {clash.wrong}", clash.fix)
