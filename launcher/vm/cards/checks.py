"""Compares the guest's cards with the host, as sysfs and the container's nodes show them now, and their seats with the
guest's topology.

What a pod was allocated can be stale. The kubelet keeps its answers over a reboot of the node, and repeats them for a
pod that is still bound to it (pkg/kubelet/cm/devicemanager, podDevices), whatever is at those addresses by then.
"""

import errno
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from launcher.vm.cards.annotations import Word
from launcher.vm.cards.claims import EntryKind
from launcher.vm.cards.guest import NONE_LOOKED_UP, GuestCard, function_of, mediated
from launcher.vm.checks import POD, Outcome, Wording, because, error, is_missing, opened, warning
from launcher.vm.guest import TOPOLOGY
from launcher.vm.guest import VFIO as BY
from launcher.vm.guest_pci.addresses import Layout
from pci.cards import groups_of
from pci.functions import is_gpu, is_on_vfio, word
from pci.host import Function, Host
from pci.resource import FABRIC_MANAGER, USBAddress
from pci.vendors import VENDORS_BELOW
from pci.viability import Hindrance, not_for_guests, not_viable
from program.finding import Finding
from program.problem import Problem, Severity

_VFIO = "vfio/vfio"
_IOMMU, _FUNCTIONS = "iommu", "vfio/devices"
_WITH_IOMMUFD = f"expected a kernel with CONFIG_IOMMUFD and CONFIG_VFIO_DEVICE_CDEV, or leave {BY} out"


@dataclass(frozen=True, slots=True)
class OpenedNodes:
    """The outcome of opening each node that the guest needs, by its name below /dev; the IOMMU groups whose nodes the
    container has; whether it has nodes by function (/dev/vfio/devices), and whether the guest has its PCI functions by
    those."""

    opened: Mapping[str, Outcome]
    groups: tuple[str, ...]
    has_functions: bool
    by_iommufd: bool = False


def read_nodes(dev: Path, cards: Iterable[GuestCard], host: Host, *, by_iommufd: bool = False) -> OpenedNodes:
    """Open each node that the guest needs, below the directory that stands for /dev; `by_iommufd`: the guest has PCI
    functions that way."""
    wanted = [name for card in cards for name in _nodes_of(card, host, by_iommufd=by_iommufd)]
    if any(name.startswith(_FUNCTIONS) for name in wanted):
        wanted.insert(0, _IOMMU)
    if any(name.startswith("vfio/") and not name.startswith(_FUNCTIONS) for name in wanted):
        wanted.insert(0, _VFIO)
    return OpenedNodes(
        opened={name: opened(dev / name) for name in wanted},
        groups=tuple(sorted((path.name for path in (dev / "vfio").glob("[0-9]*")), key=lambda name: (len(name), name))),
        has_functions=(dev / _FUNCTIONS).is_dir(),
        by_iommufd=by_iommufd,
    )


def in_sysfs(cards: Iterable[GuestCard], host: Host, sys: Path, wording: Wording = POD) -> Iterator[Finding]:
    """Yield the cards that are missing, that are not bound to VFIO as a whole, with their whole IOMMU group, or that
    are not what their entries ask for."""
    for card in cards:
        finding = _in_sysfs(card, host, sys, wording)
        if finding is not None:
            yield finding
        elif card.claim.device in (*card.functions, card.device):
            yield from _strange(card, host, wording)


def not_whole(cards: Iterable[GuestCard], host: Host | None) -> Iterator[Finding]:
    """Yield the cards that may lack functions, for a domain that is printed and not started: one finding for all if
    nothing is known of the node."""
    cards = [card for card in cards if card.missing is not None]
    fix = "expected the sysfs of the pod's node: name a copy of it with --sysfs, as gpu-plugin record makes it"
    if host is None and len(cards) > 1:
        entries = ", ".join(str(card.claim.entry) for card in cards)
        devices = ", ".join(str(card.claim.device) for card in cards)
        yield warning(entries, f"{devices} {NONE_LOOKED_UP}, and so they go without companions", fix)
        return
    for card in cards:
        yield warning(card.claim.entry, f"{card.missing}, and so it goes without companions", fix)


def seated(cards: Iterable[GuestCard], layout: Layout | None, of_bars: Iterable[Problem]) -> Iterator[Finding]:
    """Yield what is amiss with the places of cards in the guest. `layout`: None if they have none yet. `of_bars`: why
    the guest may not get all BARs (launcher.vm.guest_pci.bars)."""
    yield from left_behind(cards)
    if layout is not None:
        yield from misplaced(layout)
    yield from (Finding(Severity.WARNING, problem) for problem in of_bars)


def left_behind(cards: Iterable[GuestCard]) -> Iterator[Finding]:
    """Yield the functions of cards that the guest does not get with them; not those that only share a card's slot."""
    for card in cards:
        for left in card.left_behind:
            if left.is_of_card:
                yield warning(card.claim.entry, left.wrong, left.reason.fix)


def misplaced(layout: Layout) -> Iterator[Finding]:
    """Yield the cards that have another place in the guest than the topology would give them."""
    for seat in layout.seats:
        if seat.misplaced is not None:
            yield warning(
                seat.claim.entry,
                seat.misplaced,
                f"let the kubelet's topology manager give CPUs of the card's node, or leave {TOPOLOGY} out",
            )


def in_the_container(
    cards: Iterable[GuestCard], host: Host, nodes: OpenedNodes, *, guest_runs: bool, wording: Wording = POD
) -> Iterator[Finding]:
    """Yield the nodes that are missing or cannot be opened; if the `guest_runs`, it has its own groups open."""
    if _VFIO in nodes.opened and (outcome := nodes.opened[_VFIO]) is not None:
        yield _without_vfio(outcome, nodes, wording)
    if (outcome := nodes.opened.get(_IOMMU)) is not None:
        yield _without_iommu(outcome, wording)
    for card in cards:
        for name in _nodes_of(card, host, by_iommufd=nodes.by_iommufd):
            outcome = nodes.opened[name]
            if outcome is None or (outcome == errno.EBUSY and guest_runs):
                continue
            yield _without_node(card, name, outcome, nodes, wording)


def _in_sysfs(card: GuestCard, host: Host, sys: Path, wording: Wording) -> Finding | None:
    entry, device = card.claim.entry, card.device
    if isinstance(device, USBAddress):
        return None
    if isinstance(device, UUID):
        mdev = mediated(device, host)
        if mdev is None:
            return error(
                entry, f"the mediated device {device} is not in {sys}", f"make it on the node again{wording.or_anew}"
            )
        if mdev.iommu_group is None:
            return error(entry, f"the mediated device {device} is in no IOMMU group", "load vfio_mdev on the node")
        return None
    if card.missing is not None:
        return error(
            entry,
            str(card.missing),
            f"expected all functions of its card in {sys}: the device is gone, or the variable is another node's"
            f"{wording.or_anew}",
        )
    functions = tuple(host.functions[address] for address in card.functions)
    lead = host.functions[device]
    if (hindrance := not_for_guests(host, lead)) is not None:
        return error(entry, f"{_what(lead)} {hindrance.wrong}", f"{_fix(hindrance, wording)}{wording.or_anew}")
    if (hindrance := not_viable(host, functions)) is not None:
        return error(entry, f"{_what(lead)} {hindrance.wrong}", _fix(hindrance, wording))
    return None


def _strange(card: GuestCard, host: Host, wording: Wording) -> Iterator[Finding]:
    """Yield a finding if the device is not what its entry says: of another vendor, or no GPU."""
    claim, function = card.claim, function_of(card.claim.device, host)
    if claim.entry.kind is not EntryKind.GPU or not isinstance(claim.entry.wants, str) or function is None:
        return
    prefix = claim.entry.wants.partition("/")[0]
    vendors = VENDORS_BELOW.get(prefix)
    if vendors is not None and function.vendor_id not in vendors:
        yield error(
            claim.entry,
            f"asks for {claim.entry.wants}, and {_what(function)} is not of {prefix}",
            f"expected a device of vendor {' or '.join(f'{vendor:04x}' for vendor in sorted(vendors))}"
            f"{wording.or_anew}",
        )
    elif not any(is_gpu(host.functions[address]) for address in (*card.functions, function.address)):
        yield warning(
            claim.entry,
            f"{_what(function)} is no GPU",
            f"list it under hostDevices, if it is what is meant{wording.or_anew}",
        )


def _nodes_of(card: GuestCard, host: Host, *, by_iommufd: bool) -> tuple[str, ...]:
    """Return the card's nodes, by their names below /dev. libvirt opens VFIO by groups, the older of its two ways,
    unless PCI functions go by IOMMUFD."""
    device = card.device
    if isinstance(device, USBAddress):
        return (f"bus/usb/{device.bus:03}/{device.device:03}",)
    if (mdev := mediated(device, host)) is not None:
        groups: tuple[int, ...] = () if mdev.iommu_group is None else (mdev.iommu_group,)
    else:
        functions = [each for address in card.functions if (each := host.functions.get(address)) and is_on_vfio(each)]
        if by_iommufd:
            return tuple(f"{_FUNCTIONS}/{each.vfio_device or ''}".rstrip("/") for each in functions)
        groups = groups_of(functions)
    return tuple(f"vfio/{group}" for group in groups if group not in host.noiommu)


def _without_vfio(outcome: int, nodes: OpenedNodes, wording: Wording) -> Finding:
    path = f"/dev/{_VFIO}"
    if not is_missing(outcome):
        return error(path, f"cannot be opened: {because(outcome)}", _openable(outcome, path, wording))
    if nodes.has_functions:
        return error(
            path,
            f"{wording.absent}, which has VFIO's nodes by function alone (/dev/vfio/devices), and libvirt opens groups",
            "expected a kernel with CONFIG_VFIO_GROUP and CONFIG_VFIO_CONTAINER, or CONFIG_IOMMUFD_VFIO_CONTAINER",
        )
    return error(path, wording.absent, wording.no_vfio)


def _without_iommu(outcome: int, wording: Wording) -> Finding:
    path = f"/dev/{_IOMMU}"
    if is_missing(outcome):
        return error(path, wording.absent, _WITH_IOMMUFD)
    return error(path, f"cannot be opened: {because(outcome)}", _openable(outcome, path, wording))


def _without_node(card: GuestCard, name: str, outcome: int, nodes: OpenedNodes, wording: Wording) -> Finding:
    entry, path = card.claim.entry, f"/dev/{name}"
    if isinstance(card.device, USBAddress):
        says = wording.absent if is_missing(outcome) else f"cannot be opened: {because(outcome)}"
        fix = f"plug the device in again{wording.or_anew}" if is_missing(outcome) else _openable(outcome, path, wording)
        return error(entry, f"{path}, the USB device {card.device}, {says}", fix)
    if name.startswith(_FUNCTIONS):
        if name != _FUNCTIONS and not is_missing(outcome):
            return error(entry, f"{path} cannot be opened: {because(outcome)}", _openable(outcome, path, wording))
        return error(entry, f"{path}, for {card.device} by IOMMUFD, {wording.absent}", _WITH_IOMMUFD)
    what = f"{path}, the IOMMU group of {card.device}"
    if outcome == errno.EBUSY:
        return error(
            entry,
            f"{what}, is in use: another process has it open",
            wording.in_use.format(path=path),
        )
    if not is_missing(outcome):
        return error(entry, f"{what}, cannot be opened: {because(outcome)}", _openable(outcome, path, wording))
    if nodes.groups and wording.stale:
        groups = ", ".join(nodes.groups)
        return error(
            entry,
            f"{what}, is not in the container, which has those of the groups {groups}: the address was another "
            "device's when it was allocated",
            wording.stale,
        )
    return error(entry, f"{what}, {wording.absent}", wording.no_node)


def _fix(hindrance: Hindrance, wording: Wording) -> str:
    by = "" if hindrance.to_bind is None else wording.bind.format(address=hindrance.to_bind)
    return f"{hindrance.fix}{by}"


def _openable(outcome: int, path: str, wording: Wording) -> str:
    return (wording.no_access if outcome == errno.EACCES else wording.not_allowed).format(path=path)


def _what(function: Function) -> str:
    """Return a function in words: `0000:01:00.1 (audio, 10de:10f9)`."""
    return f"{function.address} ({word(function)}, {function.pci_id})"


def other_driver(declared: str | None, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield an error if the VM declares another version of NVIDIA's driver than the manager's in the pod's
    variables."""
    manager = environ.get(FABRIC_MANAGER)
    if declared is not None and manager is not None and declared != manager:
        yield error(
            Word.DRIVER,
            f"is {declared}, and the Fabric Manager of this node is {manager}: CUDA would fail with error 802",
            "install the manager's version in the guest and name it there, or choose by DRA a node that has yours",
        )
