"""Which device each `gpus` and `hostDevices` entry gets: the entries against the pod's variables.

A claim is an entry with its device. (Kubernetes' ResourceClaim is something else; what it gave is read in
launcher.dra.) The variables and their two dialects are described in pci.resource; here they become one pool, from which
all gpus draw in order, then all hostDevices, and which gives every device once.
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from pci.address import PCIAddress
from pci.cards import listed_with, travels_alone
from pci.host import Host
from pci.resource import DeviceKind, InvalidValue, USBAddress, cards, decode, decode_mdevs, decode_usb, variable
from program.errors import UserError
from program.problem import Problem

#: What a device is known by: a function's address, a mediated device's UUID, a USB device's numbers.
DeviceID = PCIAddress | UUID | USBAddress

_DECODE: Mapping[DeviceKind, Callable[[str, str], tuple[DeviceID, ...]]] = {
    DeviceKind.PCI: decode,
    DeviceKind.MDEV: decode_mdevs,
    DeviceKind.USB: decode_usb,
}


class EntryKind(StrEnum):
    """The list an entry stands in; the value is its part of the alias, as KubeVirt writes it."""

    GPU = "gpu"
    HOST_DEVICE = "hostdevice"
    SRIOV = "sriov"


class Request(NamedTuple):
    """One device that is requested of a ResourceClaim; `claim` is its name in spec.resourceClaims."""

    claim: str
    name: str

    def __str__(self) -> str:
        return f"request {self.name!r} of claim {self.claim!r}"


class VirtualFunctionOf(NamedTuple):
    """The virtual function that Multus has attached to the pod for a network; `network` is its name in
    spec.networks."""

    network: str

    def __str__(self) -> str:
        return f"the virtual function of network {self.network!r}"


#: What something else than a device plugin has chosen a device for.
Allocated = Request | VirtualFunctionOf


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry of gpus, hostDevices or, with sriov, interfaces: it wants a device of a resource, that of a request, or
    the virtual function of its network."""

    kind: EntryKind
    name: str
    wants: str | Allocated

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """An entry and its host device: a PCI function's address, a mediated device's UUID, a USB device's number.

    `variable` is the one it came from; None for what DRA or Multus gave.
    """

    entry: Entry
    device: DeviceID
    variable: str | None

    @property
    def alias(self) -> str:
        """KubeVirt's: ua-gpu-NAME, ua-hostdevice-NAME, ua-sriov-NAME, ua-dra-gpu-NAME, ua-dra-hostdevice-NAME,
        ua-usb-host-NAME."""
        if isinstance(self.device, USBAddress):
            return f"ua-usb-host-{self.entry.name}"
        dra = "dra-" if isinstance(self.entry.wants, Request) else ""
        return f"ua-{dra}{self.entry.kind}-{self.entry.name}"


@dataclass(frozen=True, slots=True)
class LeftOver:
    """Devices that the pod holds and no entry of the manifest asks for."""

    variable: str
    devices: tuple[DeviceID, ...]

    @property
    def problem(self) -> Problem:
        names = ", ".join(map(str, self.devices))
        fix = "list an entry for each, or let the pod request fewer of its resource"
        if isinstance(self.devices[0], USBAddress):
            # KubeVirt's plugin gives all devices of a resource with several selectors for one request.
            fix = "an entry gets one USB device, so give each a resource of its own"
        return Problem(
            self.variable, f"has {names} left over: no entry of gpus or hostDevices asks for what the pod holds", fix
        )


#: Of difflib's ratio. Two cards of one vendor, of different series, have 0.83.
_ALIKE = 0.85

_NOTHING: Mapping[Allocated, DeviceID] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Claimed:
    """The claims, in the order of the entries; what is left of the variables; and why an entry has none,
    with all further entries that want the same."""

    claims: tuple[Claim, ...]
    left_over: tuple[LeftOver, ...]
    unmet: Mapping[Entry, UserError]


def claim(
    wanted: tuple[Entry, ...],
    environ: Mapping[str, str],
    host: Host | None,
    allocated: Mapping[Allocated, DeviceID] = _NOTHING,
) -> Claimed:
    """A claim for each entry that can have one; what is left of the variables; and why the other entries have none.

    `host`, where known, says which functions make a card (for the older dialect). `allocated` is what DRA gave for each
    request in the manifest, and Multus for each network; one that it lacks is left out. An error names entry, resource
    and variable: one that is unset, empty, exhausted or holds what is no device, or two entries that would have one
    device.
    """
    claims: dict[Entry, Claim] = {}
    unmet: dict[Entry, UserError] = {}
    owners: dict[DeviceID, Entry] = {}
    for entry in wanted:
        if not isinstance(entry.wants, str) and entry.wants in allocated:
            device = allocated[entry.wants]
            if (first := owners.setdefault(device, entry)) is not entry:
                unmet[entry] = _given_twice(entry, device, first)
            else:
                claims[entry] = Claim(entry=entry, device=device, variable=None)
    given = set(owners)
    pools: dict[str, _Pool | None] = {}
    for entry in wanted:
        if not isinstance(entry.wants, str):
            continue
        try:
            if entry.wants not in pools:
                pools[entry.wants] = None  # what is wrong with a pool is said once
                pools[entry.wants] = _Pool.of(entry, entry.wants, wanted, environ, host)
            pool = pools[entry.wants]
            if pool is not None:
                claims[entry] = Claim(entry=entry, device=pool.next(entry, given), variable=pool.variable)
                given.add(claims[entry].device)
        except UserError as error:
            unmet[entry] = error
    by_variable = {pool.variable: pool for pool in pools.values() if pool is not None}
    left_over = tuple(
        LeftOver(pool.variable, left)
        for pool in by_variable.values()
        if (left := tuple(device for device in pool.devices if device not in given))
    )
    requested = {variable(resource, kind) for resource in pools for kind in DeviceKind}
    return Claimed(
        claims=tuple(claims[entry] for entry in wanted if entry in claims),
        left_over=(*left_over, *_unasked(environ, requested)),
        unmet=unmet,
    )


def _given_twice(entry: Entry, device: DeviceID, first: Entry) -> UserError:
    return UserError(
        entry,
        f"is {entry.wants}, which was given {device}, and so was {first.wants}, {first}",
        "expected each device once: the DRA driver's log says why",
    )


@dataclass(frozen=True, slots=True)
class _Pool:
    """The devices of one variable, one per device whatever the dialect, and how many entries draw on it."""

    resource: str
    variable: str
    devices: tuple[DeviceID, ...]
    wanted: int

    @classmethod
    def of(
        cls, entry: Entry, resource: str, wanted: tuple[Entry, ...], environ: Mapping[str, str], host: Host | None
    ) -> "_Pool":
        """The pool of the entry's resource; `entry` is the first that draws on it."""
        kinds = [kind for kind in DeviceKind if variable(resource, kind) in environ]
        if len(kinds) > 1:
            names = " and ".join(variable(resource, kind) for kind in kinds)
            raise UserError(
                entry,
                f"asks for {resource}, which has both {names}",
                "expected one device plugin to serve a resource, so that one of them is set",
            )
        if not kinds:
            name = variable(resource)
            near = difflib.get_close_matches(name, _unasked_names(environ, wanted), n=1, cutoff=_ALIKE)
            if near:
                # The name is derived and never parsed back: the variable is all that is known of the other resource.
                raise UserError(
                    entry,
                    f"asks for {resource}, but {name} is not set",
                    f"did you mean the resource of {near[0]}, which is set?",
                )
            raise UserError(
                entry,
                f"asks for {resource}, but {name} is not set",
                f"expected the pod to request {resource} and its device plugin to set the variable "
                f"(offline: gpu-launcher render --env {name}=0000:41:00.0)",
            )
        (kind,) = kinds
        name = variable(resource, kind)
        if kind is DeviceKind.USB and entry.kind is EntryKind.GPU:
            raise UserError(
                entry, f"asks for {resource}, but {name} is set: it is a USB device", "list it under hostDevices"
            )
        # Two resources can share a variable; what counts is who draws on it.
        drawing = sum(1 for other in wanted if isinstance(other.wants, str) and variable(other.wants, kind) == name)
        try:
            if kind is not DeviceKind.PCI:
                return cls(resource, name, _DECODE[kind](name, environ[name]), drawing)
            addresses = decode(name, environ[name])
            devices = cards(addresses, wanted=drawing, same_card=_same_card(host), travels_alone=_travels_alone(host))
        except InvalidValue as error:
            raise UserError(
                entry,
                f"asks for {resource}, but {error}",
                f"the log of the plugin that serves {resource} may say why",
            ) from error
        return cls(resource, name, devices, drawing)

    def next(self, entry: Entry, given: set[DeviceID]) -> DeviceID:
        if not self.devices:
            raise UserError(
                entry,
                f"asks for {self.resource}, but {self.variable} is empty",
                "expected at least one address: the device plugin allocated nothing, its log says why",
            )
        for device in self.devices:
            if device not in given:
                return device
        if len(self.devices) >= self.wanted:
            raise UserError(
                entry,
                f"asks for {self.resource}, but all that {self.variable} has "
                f"({', '.join(map(str, self.devices))}) was given to other entries",
                "expected each device under one resource, or by one request of DRA's",
            )
        raise UserError(
            entry,
            f"asks for {self.resource}, but {self.variable} is exhausted: {self.wanted} entries draw on its "
            f"{len(self.devices)} ({', '.join(map(str, self.devices))})",
            f"expected the pod to request {self.wanted} of {self.resource}",
        )


def _unasked_names(environ: Mapping[str, str], wanted: tuple[Entry, ...]) -> list[str]:
    """Return the variables of the contract that no entry draws on."""
    asked = {variable(entry.wants, kind) for entry in wanted if isinstance(entry.wants, str) for kind in DeviceKind}
    return sorted(name for name in environ.keys() - asked if any(name.startswith(f"{kind}_") for kind in DeviceKind))


def _same_card(host: Host | None) -> Callable[[PCIAddress, PCIAddress], bool]:
    if host is None:
        return PCIAddress.shares_slot

    def same_card(one: PCIAddress, other: PCIAddress) -> bool:
        if one not in host.functions or other not in host.functions:
            return one.shares_slot(other)
        return any(function.address == other for function in listed_with(host, one))

    return same_card


def _travels_alone(host: Host | None) -> Callable[[PCIAddress], bool]:
    functions = host.functions if host is not None else {}
    return lambda address: address in functions and travels_alone(functions[address])


def _unasked(environ: Mapping[str, str], requested: set[str]) -> tuple[LeftOver, ...]:
    """Return the variables of the contract that no entry draws on at all, and that hold devices."""
    left_over = []
    for name in sorted(environ.keys() - requested):
        kind = next((kind for kind in DeviceKind if name.startswith(f"{kind}_")), None)
        if kind is None:
            continue
        try:
            devices: tuple[DeviceID, ...] = _DECODE[kind](name, environ[name])
        except InvalidValue:
            continue  # nobody asked for it, so it need not be ours
        if devices:
            left_over.append(LeftOver(name, devices))
    return tuple(left_over)
