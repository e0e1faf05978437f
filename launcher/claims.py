"""Which device each `gpus` and `hostDevices` entry gets: the manifest against the pod's variables.

A claim is an entry with its device. (Kubernetes' ResourceClaim is something else.) The variables and their two
dialects are described in pci.resource; here they become one pool, from which all gpus draw in order, then all
hostDevices, and which gives every device once.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from launcher.errors import UserError
from launcher.manifest.devices import Devices
from pci.address import PCIAddress
from pci.resource import InvalidValue, Kind, cards, decode, decode_mdevs, variable
from pci.sysfs import Host


class EntryKind(StrEnum):
    """The list an entry stands in; the value is its part of the alias, as KubeVirt writes it."""

    GPU = "gpu"
    HOST_DEVICE = "hostdevice"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry of the manifest that wants a device of `resource`."""

    kind: EntryKind
    name: str
    resource: str

    @property
    def alias(self) -> str:
        return f"ua-{self.kind}-{self.name}"

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """An entry and its host device: a PCI function's address, or a mediated device's UUID."""

    entry: Entry
    device: PCIAddress | UUID


@dataclass(frozen=True, slots=True)
class LeftOver:
    """Devices that the pod holds and no entry of the manifest asks for."""

    variable: str
    devices: tuple[PCIAddress | UUID, ...]

    def __str__(self) -> str:
        names = ", ".join(map(str, self.devices))
        return f"{self.variable} has {names} left over: no entry of gpus or hostDevices asks for what the pod holds"


def claim(
    devices: Devices, environ: Mapping[str, str], host: Host | None
) -> tuple[tuple[Claim, ...], tuple[LeftOver, ...]]:
    """A claim for each entry, in the order of the manifest, gpus first; and what is left of the variables.

    `host`, where known, says which functions make a card (for the older dialect). UserError, naming entry, resource
    and variable, where a variable is unset, empty, exhausted or holds what is no device.
    """
    wanted = _entries(devices)
    pools = {entry.resource: _Pool.of(entry, wanted, environ, host) for entry in wanted}
    given: set[PCIAddress | UUID] = set()
    claims = []
    for entry in wanted:
        device = pools[entry.resource].next(entry, given)
        given.add(device)
        claims.append(Claim(entry=entry, device=device))
    left_over = tuple(
        LeftOver(pool.variable, left)
        for pool in {pool.variable: pool for pool in pools.values()}.values()
        if (left := tuple(device for device in pool.devices if device not in given))
    )
    return tuple(claims), (*left_over, *_unasked(environ, {pool.variable for pool in pools.values()}))


def _entries(devices: Devices) -> tuple[Entry, ...]:
    listed = ((EntryKind.GPU, devices.gpus), (EntryKind.HOST_DEVICE, devices.hostDevices))
    return tuple(
        Entry(kind=kind, name=device.name, resource=device.deviceName or "")
        for kind, entries in listed
        for device in entries
    )


@dataclass(frozen=True, slots=True)
class _Pool:
    """The devices of one variable, one per device whatever the dialect, and how many entries draw on it."""

    variable: str
    devices: tuple[PCIAddress | UUID, ...]
    wanted: int

    @classmethod
    def of(cls, entry: Entry, wanted: tuple[Entry, ...], environ: Mapping[str, str], host: Host | None) -> "_Pool":
        pci, mdev = variable(entry.resource, Kind.PCI), variable(entry.resource, Kind.MDEV)
        if pci in environ and mdev in environ:
            raise UserError(
                f"{entry} asks for {entry.resource}, which has both {pci} and {mdev}; "
                "expected one device plugin to serve a resource, so that one of them is set"
            )
        usb = variable(entry.resource, Kind.USB)
        if usb in environ:
            raise UserError(f"{entry} asks for {entry.resource}, but {usb} is set: USB devices are not converted yet")
        name = mdev if mdev in environ else pci
        if name not in environ:
            raise UserError(
                f"{entry} asks for {entry.resource}, but {name} is not set; "
                f"expected the pod to request {entry.resource} and its device plugin to set the variable "
                f"(offline: --env {name}=0000:41:00.0)"
            )
        # Two resources can share a variable; what counts is who draws on it.
        drawing = sum(1 for other in wanted if variable(other.resource) == pci)
        try:
            if name == mdev:
                return cls(name, decode_mdevs(name, environ[name]), drawing)
            addresses = cards(decode(name, environ[name]), wanted=drawing, same_card=_same_card(host))
        except InvalidValue as error:
            raise UserError(f"{entry} asks for {entry.resource}, but {error}") from error
        return cls(name, addresses, drawing)

    def next(self, entry: Entry, given: set[PCIAddress | UUID]) -> PCIAddress | UUID:
        if not self.devices:
            raise UserError(
                f"{entry} asks for {entry.resource}, but {self.variable} is empty; "
                "expected at least one address: the device plugin allocated nothing, its log says why"
            )
        for device in self.devices:
            if device not in given:
                return device
        if len(self.devices) >= self.wanted:
            raise UserError(
                f"{entry} asks for {entry.resource}, but all that {self.variable} has "
                f"({', '.join(map(str, self.devices))}) was given to entries of other resources; "
                "expected each device under one resource"
            )
        raise UserError(
            f"{entry} asks for {entry.resource}, but {self.variable} is exhausted: {self.wanted} entries draw on its "
            f"{len(self.devices)} ({', '.join(map(str, self.devices))}); "
            f"expected the pod to request {self.wanted} of {entry.resource}"
        )


def _same_card(host: Host | None) -> Callable[[PCIAddress, PCIAddress], bool]:
    if host is None:
        return PCIAddress.shares_slot

    def same_card(one: PCIAddress, other: PCIAddress) -> bool:
        if one not in host.functions or other not in host.functions:
            return one.shares_slot(other)
        return any(function.address == other for function in host.card(one))

    return same_card


def _unasked(environ: Mapping[str, str], asked: set[str]) -> tuple[LeftOver, ...]:
    """Variables of the contract that no entry draws on at all, and that hold devices."""
    found = []
    for name in sorted(environ.keys() - asked):
        kind = next((kind for kind in (Kind.PCI, Kind.MDEV) if name.startswith(f"{kind}_")), None)
        try:
            devices: tuple[PCIAddress | UUID, ...] = ()
            if kind is Kind.PCI:
                devices = decode(name, environ[name])
            elif kind is Kind.MDEV:
                devices = decode_mdevs(name, environ[name])
        except InvalidValue:
            continue  # nobody asked for it, so it need not be ours
        if devices:
            found.append(LeftOver(name, devices))
    return tuple(found)
