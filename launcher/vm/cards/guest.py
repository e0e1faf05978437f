"""Whole cards: each claimed function with its companions, and with the other cards of its unit.

A companion of a claimed function travels with it (pci.cards), and is not claimed by another entry. All claims are made
before, so that no card takes a function that an entry asks for. If two entries claim functions of one part of a card,
each has its own; the later one's are on the slot of the first.

A GPU also brings the parts of its card that have IOMMU groups of their own: functions of its slot go to its slot in the
guest, those of another slot, as Arc's audio, to a seat behind all entries' cards. What cannot come is left behind: a
guest starts without it, and is told so. A part without a GPU that is claimed by itself brings no other part: another
guest may have the GPU.

A group of several cards may be offered as one unit (`groups: together` in gpu-plugin's config). The variable then has
the unit's first address alone, and the other cards come with the first.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from launcher.vm.cards.claims import Claim, DeviceID, LeftOver
from pci.address import PCIAddress
from pci.cards import Card, card_of, part_of, travels_alone
from pci.functions import is_gpu, is_grace_gpu, is_on_vfio, what
from pci.host import Function, Host, MediatedDevice
from pci.viability import Hindrance, LeftBehind, left_behind
from program.errors import Refusal, together

#: Whether a claimed function brings the rest of its card (the annotation gpu-launcher.dev/companions).
Companions = Literal["card", "none"]


@dataclass(frozen=True, slots=True)
class Missing:
    """Why a card may lack a function: what is `wrong` with that function. `where`: its relation to the claimed
    function; empty if it is that one."""

    function: PCIAddress
    wrong: str
    where: str = ""

    def __str__(self) -> str:
        return f"{self.function}{self.where} {self.wrong}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestCard:
    """Functions of one slot that the guest gets for a claim, ascending: the claimed one and its companions, or
    functions of another slot that come along.

    `functions`: empty for a mediated and for a USB device. `missing`: why the card may not be whole; None if it is.
    `left_behind`: what of it, or of its slot, the guest does not get. `joins`: an earlier claim of a function of the
    same part of a card, the first, which has the slot in the guest; None if there is none.
    """

    claim: Claim
    functions: tuple[PCIAddress, ...]
    missing: Missing | None
    left_behind: tuple[LeftBehind, ...] = ()
    joins: Claim | None = None

    @property
    def device(self) -> DeviceID:
        """Return its first function; the device itself if it is no PCI function."""
        return self.functions[0] if self.functions else self.claim.device


def whole_cards(
    claims: tuple[Claim, ...],
    left_over: tuple[LeftOver, ...],
    host: Host | None,
    companions: Companions = "card",
    nodes: Container[str] | None = None,
) -> tuple[GuestCard, ...]:
    """Return a card for each claim, in order; then the parts that come along from other slots: behind all entries'
    cards, so that they move none.

    A companion that two claims could have goes to the first. A plugin has named `left_over` devices as devices of their
    own, so these belong to no unit. With `companions` none, a card is its claimed function. `nodes`: the names below
    /dev/vfio that the container has; None if unknown, or if it has all of the node's.
    """
    named: set[DeviceID] = {each.device for each in claims}
    taken = set(named)
    first = _first_of_cards(claims, host)
    along = {
        each: _Along() if host is None or companions == "none" or each in first else _along(each.device, host, nodes)
        for each in claims
    }
    cards = [replace(_card(each, host, companions, taken, along[each]), joins=first.get(each)) for each in claims]
    if host is None or companions == "none":
        return tuple(cards)
    named.update(device for unasked in left_over for device in unasked.devices)
    for claim in claims:
        for functions in _rest_of_unit(claim.device, host, named):
            addresses = tuple(function.address for function in functions)
            cards.append(GuestCard(claim=claim, functions=addresses, missing=None))
            named.update(addresses)  # another entry may have a function of the unit's first card
    taken.update(function for card in cards for function in card.functions)
    for claim in claims:
        for part in along[claim].parts:
            addresses = tuple(function.address for function in part if function.address not in taken)
            if addresses:
                cards.append(GuestCard(claim=claim, functions=addresses, missing=None))
                taken.update(addresses)
    return tuple(cards)


def refuse_grace(cards: Iterable[GuestCard], host: Host | None) -> None:
    """Raise a Refusal for each GPU of a Grace superchip: gpu-launcher does not write what its guest needs."""
    gpus = [(card, function) for card in cards for function in grace_gpus(card, host)]
    if gpus:
        errors = [
            Refusal(
                card.claim.entry,
                f"{what(gpu)} is the GPU of a Grace superchip ({gpu.pci_id}): its guest needs an SMMUv3 with ATS and "
                "NUMA nodes for the card's memory, which gpu-launcher does not make",
                "give the VM another card, or run it with KubeVirt and its gate GraceIOVirtualization",
            )
            for card, gpu in gpus
        ]
        raise together(errors)


def grace_gpus(card: GuestCard, host: Host | None) -> tuple[Function, ...]:
    """Return the card's functions that are GPUs of a Grace superchip, as far as sysfs shows them."""
    functions = [host.functions.get(address) for address in card.functions] if host is not None else []
    return tuple(function for function in functions if function is not None and is_grace_gpu(function))


def not_passed_on(left_over: tuple[LeftOver, ...], cards: tuple[GuestCard, ...]) -> tuple[LeftOver, ...]:
    """Return the devices that no entry asks for and no card brings along, as a GPU brings its audio function."""
    passed = {function for card in cards for function in card.functions}
    return tuple(
        replace(unasked, devices=devices)
        for unasked in left_over
        if (devices := tuple(device for device in unasked.devices if device not in passed))
    )


def function_of(device: DeviceID, host: Host | None) -> Function | None:
    """Return the host's function that a device is, or a mediated device's parent; None if sysfs does not show it."""
    mdev = mediated(device, host)
    address = mdev.parent if mdev is not None else device
    return host.functions.get(address) if host is not None and isinstance(address, PCIAddress) else None


def mediated(device: DeviceID, host: Host | None) -> MediatedDevice | None:
    return next((mdev for mdev in host.mdevs if mdev.uuid == device), None) if host is not None else None


def _first_of_cards(claims: tuple[Claim, ...], host: Host | None) -> Mapping[Claim, Claim]:
    """Return, by claim, the first claim with a function of the same part of a card; that first claim itself is left
    out. Parts in other groups keep seats of their own, so that no guest's card moves."""
    if host is None:
        return {}
    first: dict[PCIAddress, Claim] = {}
    joining: dict[Claim, Claim] = {}
    for claim in claims:
        if isinstance(claim.device, PCIAddress) and (part := part_of(host, claim.device)):
            earlier = first.setdefault(part[0].address, claim)
            if earlier is not claim:
                joining[claim] = earlier
    return joining


@dataclass(frozen=True, slots=True)
class _Along:
    """The further parts of a card that come with its claimed GPU, and the parts that are left behind."""

    parts: tuple[Card, ...] = ()
    left_behind: tuple[LeftBehind, ...] = ()


def _along(claimed: DeviceID, host: Host, nodes: Container[str] | None) -> _Along:
    part = part_of(host, claimed) if isinstance(claimed, PCIAddress) else ()
    if not any(map(is_gpu, part)) or travels_alone(part[0]):
        return _Along()
    card = card_of(host, part[0].address)
    if card[0] not in part:
        return _Along()  # a second GPU of the slot, whose companions are the first one's
    left = list(left_behind(host, card))
    parts = []
    for other in dict.fromkeys(part_of(host, function.address) for function in card if function not in part):
        if any(other == each.functions for each in left):
            continue
        if _has_node(nodes, part[0]) and not _has_node(nodes, other[0]):
            wrong = f"the container does not have /dev/vfio/{other[0].iommu_group}, the node of its IOMMU group"
            left.append(LeftBehind(other, Hindrance(wrong, _ALLOCATE_ANEW), is_of_card=True))
        else:
            parts.append(other)
    return _Along(tuple(parts), tuple(left))


_ALLOCATE_ANEW = "expected gpu-plugin, which gives the nodes of the whole card; a pod from before its update: delete it"


def _has_node(nodes: Container[str] | None, function: Function) -> bool:
    """Return whether the container has a node by which QEMU opens the function; True if that is unknown."""
    by_function = None if function.vfio_device is None else f"devices/{function.vfio_device}"
    return nodes is None or str(function.iommu_group) in nodes or by_function in nodes


def _card(
    claim: Claim,
    host: Host | None,
    companions: Companions,
    taken: set[DeviceID],
    along: _Along,
) -> GuestCard:
    device = claim.device
    if not isinstance(device, PCIAddress):
        return GuestCard(claim=claim, functions=(), missing=None)
    if companions == "none":
        return GuestCard(claim=claim, functions=(device,), missing=None)
    if host is None:
        return GuestCard(claim=claim, functions=(device,), missing=_missing(device, host))
    its = (function.address for part in (part_of(host, device), *along.parts) for function in part)
    others = [address for address in its if address.shares_slot(device) and address not in taken]
    taken.update(others)
    return GuestCard(
        claim=claim,
        functions=tuple(sorted([device, *others])),
        missing=_missing(device, host),
        left_behind=along.left_behind,
    )


def _rest_of_unit(claimed: DeviceID, host: Host, named: set[DeviceID]) -> Iterable[tuple[Function, ...]]:
    """Return the other cards of the unit whose first address is `claimed`; none if it is no unit.

    The group is a unit if all its endpoints are on vfio, if no plugin has named a function of another slot, and if
    `claimed` is the first of its kind: the plugin would have written the address of an earlier one.
    """
    function = host.functions.get(claimed) if isinstance(claimed, PCIAddress) else None
    if function is None or function.is_virtual or function.iommu_group is None:
        return ()
    members = [host.functions.get(address) for address in host.groups[function.iommu_group]]
    endpoints = [member for member in members if member is not None and not member.is_bridge]
    others = [member for member in endpoints if not member.address.shares_slot(function.address)]
    if (
        None in members
        or not all(map(is_on_vfio, endpoints))
        or any(other.address in named for other in others)
        # Both are graphics, both audio, ...: the base class of PCI.
        or any(o.address < function.address and o.pci_class >> 16 == function.pci_class >> 16 for o in others)
    ):
        return ()
    parts = {
        part[0].address: part for other in others if not travels_alone(other) and (part := part_of(host, other.address))
    }
    return tuple(parts[first] for first in sorted(parts))


#: Why no card may be whole without a node's sysfs, in words that follow their addresses.
NONE_LOOKED_UP = "were not looked up: there is no --sysfs"


def _missing(claimed: PCIAddress, host: Host | None) -> Missing | None:
    if host is None:
        return Missing(claimed, "was not looked up: there is no --sysfs")
    function = host.functions.get(claimed)
    if function is None:
        return Missing(claimed, "is not in sysfs")
    if function.is_virtual or function.iommu_group is None:
        return None
    for member in host.groups[function.iommu_group]:
        if member not in host.functions:
            where = ", on its slot and in its group," if member.shares_slot(claimed) else ", in its group,"
            return Missing(member, "cannot be read in sysfs", where)
    return None
