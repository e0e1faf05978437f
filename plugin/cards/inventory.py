"""Every device of a node, with its resource or the reason why it is not on offer.

A pure function of a host, the config and pci.ids.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

from pci.address import PCIAddress
from pci.cards import Card, card_of, groups_of
from pci.functions import is_bmc_screen, is_gpu, is_nvswitch, is_on_vfio
from pci.host import Function, Host, MediatedDevice, OtherMember
from pci.resets import deadly_reset, is_listed
from pci.resource import DeviceKind, NodeDevice, variable
from pci.vendors import NVIDIA, PREFIXES
from pci.viability import (
    NO_VGPU_YET,
    Hindrance,
    LeftBehind,
    in_parts,
    left_behind,
    no_answer,
    not_for_guests,
    not_viable,
    shared_with,
)
from plugin.cards.config import Bind, Config, DeadlyResets, Groups, Rule, Serve
from plugin.cards.names import PCIIDs, resource_name, type_resource_name
from plugin.cards.rules import NOTHING, cards_by_rules, fitting, is_left_to_the_node, wanted_settings
from program.errors import Refusal
from program.problem import Problem

#: The reason for a device that a rule withholds: nothing is to be fixed.
BY_CONFIG = Hindrance("is withheld by the config", "")

#: The reasons for a server's BMC screen, seen by remote administrators, and for another console of the node.
BMC_SCREEN = Hindrance("is the screen of the management controller (BMC)", "leave it to the node")
CONSOLE = Hindrance("is the boot VGA, the node's own screen", "leave it to the node")

#: The reason for a card whose vGPUs are made when claimed, and for its virtual functions without a vGPU.
CUT_FOR_CLAIMS = Hindrance("is for vGPUs, which are made when they are claimed", "")

#: A resource, and the kind of its devices; None for a node device.
_Claim: TypeAlias = tuple[str, DeviceKind | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device for the kubelet: a card, a unit of several cards, a virtual function or a mediated device.

    `functions` are ordered as in pci.cards.Card; the first one's address is the device's ID. `lead` is the device's
    main function: the GPU, or the function that the config's rule fits. A mediated device has no functions, a UUID for
    an ID, and its parent for a `lead`. `members` are all functions of the IOMMU groups, `others` their members that are
    not on PCI, each behind its group; a mediated device has neither. `left_behind`: functions of the card, or of its
    slot, that a guest does not get. `resource` is None if neither a rule nor the vendor's prefix gives a name; `serve`
    is the protocol by which pods get the device; `team` is the only team that may have the device, None for everybody.
    `to_bind`: the device is not on vfio, and is bound to it for the claim that gets the device; whether that is
    possible is not known here. `is_of_claim`: a vGPU that gpu-plugin made for a claim, and removes with the claim, so
    nobody else hears of it. `withheld` says why the kubelet never hears of the device, `unhealthy` why it is not handed
    out; at most one of the two is set.
    """

    functions: Card
    lead: Function
    mdev: MediatedDevice | None = None
    members: tuple[Function, ...] = ()
    others: tuple[tuple[int, OtherMember], ...] = ()
    left_behind: tuple[LeftBehind, ...] = ()
    model: str
    resource: str | None
    serve: Serve
    team: str | None = None
    to_bind: bool = False
    is_of_claim: bool = False
    withheld: Hindrance | None
    unhealthy: Hindrance | None = None

    @property
    def id(self) -> str:
        return str(self.functions[0].address if self.mdev is None else self.mdev.uuid)

    @property
    def kind(self) -> DeviceKind:
        return DeviceKind.PCI if self.mdev is None else DeviceKind.MDEV

    @property
    def iommu_group(self) -> int | None:
        """The group of the lead, or of the mediated device."""
        return self.lead.iommu_group if self.mdev is None else self.mdev.iommu_group

    @property
    def iommu_groups(self) -> tuple[int, ...]:
        """All groups, each once: the lead's, and those of functions that have groups of their own."""
        if self.mdev is None:
            return groups_of((self.lead, *self.functions))
        return () if self.mdev.iommu_group is None else (self.mdev.iommu_group,)

    @property
    def numa_node(self) -> int | None:
        return self.lead.numa_node


@dataclass(frozen=True)
class Inventory:
    """A node's devices: cards and virtual functions by address, then mediated devices by UUID."""

    devices: tuple[Device, ...]

    @cached_property
    def offered(self) -> tuple[Device, ...]:
        """The devices that pods may be given, healthy or not, by either protocol."""
        return tuple(device for device in self.devices if device.resource is not None and device.withheld is None)

    @cached_property
    def by_resource(self) -> Mapping[str, tuple[Device, ...]]:
        """The devices that the device plugin lists to the kubelet, by resource, both ascending."""
        listed: dict[str, list[Device]] = defaultdict(list)
        for device in self.offered:
            if device.resource is not None and device.serve is Serve.DEVICE_PLUGIN:
                listed[device.resource].append(device)
        return {resource: tuple(listed[resource]) for resource in sorted(listed)}

    @cached_property
    def published(self) -> tuple[Device, ...]:
        """The devices in the node's ResourceSlices, ascending; without the vGPUs that are made when claimed."""
        return tuple(device for device in self.offered if device.serve is Serve.DRA and not device.is_of_claim)

    @cached_property
    def to_bind(self) -> Mapping[str, tuple[PCIAddress, ...]]:
        """The functions of each device that is bound to vfio for the claim that gets it, by the device's ID."""
        return {
            device.id: tuple(function.address for function in device.functions)
            for device in self.published
            if device.to_bind
        }

    @cached_property
    def by_id(self) -> Mapping[str, Device]:
        return {device.id: device for device in self.devices}


def take_inventory(host: Host, config: Config, pci_ids: PCIIDs, before: Inventory | None = None) -> Inventory:
    """Return every GPU and NVSwitch of the host, and every device that the config asks for.

    Refusal if two resources share one environment variable, so that a pod could not tell them apart, or if one resource
    would be served by both protocols, so that the scheduler would count it twice. With the previous inventory by the
    same config (`before`), devices that it did not offer are withheld instead.
    """
    cards = [
        each for card in cards_by_rules(host, config) if (each := by_config(host, card, config, pci_ids)) is not None
    ]
    devices = _distinct((*_as_offered(host, cards, config), *_mdevs(host, config, pci_ids)), config, before)
    return Inventory(_served_one_way(devices, before))


def by_config(host: Host, card: Card, config: Config, pci_ids: PCIIDs) -> Device | None:
    """Return the card as a device, withheld only by the config or for want of a name; None if it is neither a GPU, an
    NVSwitch nor a card that a rule fits."""
    rule, fits = fitting(host, card, config) or (None, None)
    lead = next(filter(is_gpu, card), None) or fits or next(filter(is_nvswitch, card), None)
    if lead is None:
        return None
    model = pci_ids.device(lead.vendor_id, lead.device_id) or lead.pci_id
    resource, withheld = _by_rule(rule) or _automatic(host, lead, rule, pci_ids)
    if lead.vgpu_type is not None:
        model = host.vgpu_types.get(lead.vgpu_type, f"vGPU type {lead.vgpu_type}")
    is_of_claim = lead.address in host.made_vgpus and config.claimable(host, lead) is not None
    return Device(
        functions=card,
        lead=lead,
        model=model,
        resource=resource,
        serve=Serve.DRA if is_of_claim else (rule and rule.serve) or config.serve,
        team=None if rule is None else rule.team,
        is_of_claim=is_of_claim,
        withheld=withheld,
    )


#: A resource, or why there is none.
_Name: TypeAlias = tuple[str | None, Hindrance | None]


def _by_rule(rule: Rule | None) -> _Name | None:
    """Return the resource or the withholding that a rule states; None if it states neither."""
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


def _automatic(host: Host, lead: Function, rule: Rule | None, pci_ids: PCIIDs) -> _Name:
    """Return a name from pci.ids or from the vGPU's type, or the reason why there is none."""
    prefix = rule.prefix if rule is not None else PREFIXES.get(lead.vendor_id) if is_gpu(lead) else None
    if prefix is None and is_bmc_screen(lead):
        return None, BMC_SCREEN
    if prefix is None and lead.boot_vga and not is_on_vfio(lead):
        return None, CONSOLE
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


def _as_offered(host: Host, cards: list[Device], config: Config) -> Iterator[Device]:
    """Yield the cards with the kernel's verdict on each; the cards of a unit as one device."""
    sharing: dict[int | None, list[Device]] = defaultdict(list)
    for card in cards:
        if card.withheld is None and card.iommu_group is not None and not card.lead.is_bridge:
            sharing[card.iommu_group].append(card)
    for card in cards:
        number = card.iommu_group
        group = sharing.get(number, [])
        unit, shares = [card], None
        if card in group and len(group) > 1:
            if config.groups is Groups.WITHHOLD:
                shares = _shares(card, group, "a slot whose root port or switch has ACS gives each a group of its own")
            elif len({other.resource for other in group}) > 1:
                shares = _shares(card, group, "a rule that gives them one resource makes them one unit")
            elif len({other.team for other in group}) > 1:
                shares = _shares(card, group, "a rule that gives them one team makes them one unit")
            elif card is not group[0]:
                continue  # part of the unit that the first one stands for
            else:
                unit = group
        whole = tuple(function for one in unit for function in one.functions)
        leads = [one.lead for one in unit]
        unfit = next(filter(None, (_unfit(host, card.functions, lead, config, whole) for lead in leads)), None)
        to_bind = _is_bound_when_claimed(host, card, leads, config)
        if unfit is not None and unfit.to_bind is not None and shares is not None:
            unfit = Hindrance(f"{unfit.wrong}, and {shares.wrong}", shares.fix)  # bound to vfio it would share it still
        withheld = card.withheld or (None if to_bind else unfit) or shares
        left = tuple(each for one in unit for each in left_behind(host, one.functions))
        functions = tuple(function for function in whole if not any(function in each.functions for each in left))
        groups = groups_of(functions)
        if withheld is None and config.deadly_resets is DeadlyResets.WITHHOLD:
            withheld = deadly_reset_of(host, functions, config)
        addresses = [address for each in groups for address in host.groups[each]]
        yield replace(
            card,
            functions=functions,
            members=tuple(host.functions[address] for address in addresses if address in host.functions),
            others=tuple((each, other) for each in groups for other in host.others.get(each, ())),
            left_behind=() if withheld else left,
            model=card.model if len(unit) == 1 else f"{len(unit)} x {card.model}",
            to_bind=to_bind,
            withheld=withheld,
            unhealthy=None if withheld or to_bind else not_viable(host, functions),
        )


def deadly_reset_of(host: Host, functions: Iterable[Function], config: Config) -> Hindrance | None:
    """Return why one of these functions would not survive the reset between two guests, by its reset methods, or those
    that its rule sets when it is bound; None if no reason is known."""
    for function in filter(is_listed, functions):
        methods = function.reset_methods
        if not is_on_vfio(function):
            wanted = wanted_settings(host, card_of(host, function.address), config).get(function.address, NOTHING)
            methods = methods if wanted.reset_methods is None else wanted.reset_methods
        if (deadly := deadly_reset(function, methods)) is not None:
            return deadly
    return None


def _unfit(host: Host, card: Card, lead: Function, config: Config, unit: Card) -> Hindrance | None:
    """Return why no guest can have the lead of a card as it is now; None if a guest can. The `unit` is bound as one."""
    unfit = not_for_guests(host, lead)
    if unfit is not None and lead.driver == "nvidia" and config.claimable(host, lead) is not None:
        return CUT_FOR_CLAIMS
    if unfit is not None and (parts := in_parts(host, lead)) is not None:
        return parts
    if unfit is not None and lead.is_virtual and lead.driver == "nvidia":
        return NO_VGPU_YET
    is_bound_elsewhere = unfit is not None and lead.iommu_group is not None and not is_on_vfio(lead)
    if unfit is None or not is_bound_elsewhere or lead.boot_vga:
        return unfit
    if (shared := shared_with(host, unit)) is not None:
        unfit = Hindrance(f"{unfit.wrong}, and {shared.wrong}", shared.fix, shared.to_bind)
    if not is_left_to_the_node(host, card, lead, config):
        return unfit
    fix = f"gpu-plugin bind {card[0].address}" if shared is None else shared.fix
    whose = "is the processor's own GPU, which no rule of the config asks for"
    return Hindrance(f"{whose}: {unfit.wrong}", f"if a guest is to have it: {fix}")


def _is_bound_when_claimed(host: Host, card: Device, leads: list[Function], config: Config) -> bool:
    """True if not all leads are on vfio now, and they can be bound to it when a claim gets the device."""
    return (
        config.bind is Bind.WHEN_CLAIMED
        and card.serve is Serve.DRA
        and not all(map(is_on_vfio, leads))
        and all(is_on_vfio(lead) or _can_be_spared(host, card.functions, lead, config) for lead in leads)
        # Any driver of vfio's will do here; `bind` chooses the one.
        and all(not_for_guests(host, replace(lead, driver="vfio-pci")) is None for lead in leads)
    )


def _can_be_spared(host: Host, card: Card, lead: Function, config: Config) -> bool:
    """True if the node can do without the driver of a card. It cannot if the driver gives parts of the card to guests
    (virtual functions, mediated devices), nor for the processor's own GPU that no rule fits."""
    is_in_parts = (lead.is_virtual and lead.vendor_id == NVIDIA) or in_parts(host, lead) is not None
    return not is_in_parts and not is_left_to_the_node(host, card, lead, config)


def _shares(card: Device, group: list[Device], fix: str) -> Hindrance:
    others = ", ".join(other.id for other in group if other is not card)
    return Hindrance(
        f"shares group {card.iommu_group} with {others}, and a guest gets a group whole or not at all", fix
    )


def _mdevs(host: Host, config: Config, pci_ids: PCIIDs) -> Iterator[Device]:
    """Yield the mediated devices: those of the vendors' GPUs by the name of their type, others by config."""
    for mdev in host.mdevs:
        if (device := mediated(host, mdev, config, pci_ids)) is None:
            continue
        withheld = device.withheld
        if withheld is None and mdev.iommu_group is None:
            withheld = Hindrance("is in no IOMMU group: its driver has not given it to vfio_mdev", "load vfio_mdev")
        silent = next((name for name in (str(mdev.uuid), str(mdev.parent)) if name in host.silent), None)
        yield replace(device, withheld=withheld, unhealthy=None if withheld or silent is None else no_answer(silent))


def mediated(host: Host, mdev: MediatedDevice, config: Config, pci_ids: PCIIDs) -> Device | None:
    """Return the mediated device, withheld only by the config or for want of a name; None if its parent cannot be read
    (a fault says so), or is no GPU and no rule fits."""
    parent = host.functions.get(mdev.parent)
    rule = None if parent is None else next((one for one in config.offer if one.fits_mdev(mdev, parent)), None)
    if parent is None or (rule is None and not is_gpu(parent)):
        return None
    resource, withheld = _by_rule(rule) or _by_type(mdev, parent, rule)
    is_of_claim = mdev.uuid in host.made_vgpus and config.claimable(host, parent) is not None
    return Device(
        functions=(),
        lead=parent,
        mdev=mdev,
        model=f"{mdev.type_name} on {pci_ids.device(parent.vendor_id, parent.device_id) or parent.pci_id}",
        resource=resource,
        serve=Serve.DRA if is_of_claim else (rule and rule.serve) or config.serve,
        team=None if rule is None else rule.team,
        is_of_claim=is_of_claim,
        withheld=withheld,
    )


def _distinct(devices: tuple[Device, ...], config: Config, before: Inventory | None) -> tuple[Device, ...]:
    """Return the devices; Refusal if two resources share a variable.

    With the inventory from `before`, the devices of the later resource are withheld instead: a newly plugged card must
    not withdraw others.
    """
    # At first, withheld devices count too: they may be bound to vfio at any time.
    counting = [device for device in devices if before is None or device.withheld is None]
    claims = {(device.resource, device.kind) for device in counting if device.resource is not None}
    earlier = {(device.resource, device.kind) for device in before.offered if device.resource} if before else set()
    node_devices = [device.resource() for device in config.node_devices]
    by_variable: dict[str, _Claim] = {variable(resource): (resource, None) for resource in node_devices}
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
    """Return the devices; Refusal if a resource would be served by both the device plugin and DRA.

    With the inventory from `before`, devices served otherwise than its offered ones are withheld instead.
    """
    ways = {} if before is None else {device.resource: device.serve for device in before.offered}
    kept = []
    for device in devices:
        counts = device.resource is not None and (before is None or device.withheld is None)
        if counts and ways.setdefault(device.resource, device.serve) is not device.serve:
            both = Refusal(
                f"{device.id} of {device.resource}",
                f"would be served by {device.serve}, and other cards of that resource by {ways[device.resource]}",
                "say one `serve` for the whole resource, or give the cards two resources",
            )
            if before is None:
                raise both
            device = replace(device, withheld=Hindrance(both.problem.wrong, both.problem.fix), unhealthy=None)
        kept.append(device)
    return tuple(kept)


def _clash(resource: str, other: str, kind: DeviceKind | None) -> Refusal:
    """Return the error for a resource whose variable another one has already."""
    if resource == other and kind is None:
        node = NodeDevice(resource.rpartition("/")[2]).node
        return Refusal(resource, f"is the name of the node's /dev/{node}", "give the card another one in the config")
    fix = "give one of them another name in the config"
    if resource == other:
        return Refusal(resource, "would be both PCI and mediated devices, and a pod could not tell them apart", fix)
    return Refusal(f"resources {other} and {resource}", f"would share the variable {variable(resource)}", fix)


def _not_told_apart(clash: Problem) -> Hindrance:
    return Hindrance(f"cannot be told apart: {clash.subject} {clash.wrong}", clash.fix)
