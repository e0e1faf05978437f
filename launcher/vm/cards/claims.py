"""Which device each `gpus` and `hostDevices` entry gets: the entries against the pod's variables.

A claim is an entry with its device. (launcher.vm.cards.dra reads what a ResourceClaim of Kubernetes gave.) The
variables and their two dialects are described in pci.resource. Here each is a pool: all gpus draw from it in order,
then all hostDevices, and no device is given twice.
"""

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from pci.address import PCIAddress
from pci.cards import listed_with, travels_alone
from pci.host import Host
from pci.resource import DeviceKind, InvalidValue, USBAddress, cards, decode, decode_mdevs, decode_usb, variable
from pci.vendors import NVIDIA, PREFIXES
from program.errors import UserError
from program.problem import Problem

#: A PCI function's address, a mediated device's UUID, or a USB device's numbers.
DeviceID = PCIAddress | UUID | USBAddress

_DECODE: Mapping[DeviceKind, Callable[[str, str], tuple[DeviceID, ...]]] = {
    DeviceKind.PCI: decode,
    DeviceKind.MDEV: decode_mdevs,
    DeviceKind.USB: decode_usb,
}


_VALUES: Mapping[DeviceKind, str] = {
    DeviceKind.PCI: "0000:41:00.0",
    DeviceKind.MDEV: "UUID",
    DeviceKind.USB: "1:3",
}
#: The types of NVIDIA's vGPUs (GRID_T4-1Q, A100-1-5CME), which are also virtual functions, and of Intel's GVT-g.
_VGPU = re.compile(r"-\d+[ABCQ][A-Z]*$|GVTg")


class EntryKind(StrEnum):
    """The list that an entry stands in; the value is its part of the alias, as KubeVirt writes it."""

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
    """The virtual function that Multus attached to the pod for a network; `network` is its name in spec.networks."""

    network: str

    def __str__(self) -> str:
        return f"the virtual function of network {self.network!r}"


#: What DRA or Multus, and no device plugin, has chosen a device for.
Allocated = Request | VirtualFunctionOf


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An entry of gpus, hostDevices or, with sriov, interfaces: it wants a device of a resource, the one of a request,
    or the virtual function of its network."""

    kind: EntryKind
    name: str
    wants: str | Allocated

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """An entry and its device on the host. `variable`: where the device was read; None if DRA or Multus gave it."""

    entry: Entry
    device: DeviceID
    variable: str | None

    @property
    def alias(self) -> str:
        """Return KubeVirt's alias: ua-gpu-NAME, ua-hostdevice-NAME, ua-sriov-NAME, ua-dra-gpu-NAME,
        ua-dra-hostdevice-NAME, ua-usb-host-NAME."""
        if isinstance(self.device, USBAddress):
            return f"ua-usb-host-{self.entry.name}"
        dra = "dra-" if isinstance(self.entry.wants, Request) else ""
        return f"ua-{dra}{self.entry.kind}-{self.entry.name}"


@dataclass(frozen=True, slots=True)
class LeftOver:
    """Devices that the pod holds and no entry of the manifest asks for; there is at least one."""

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

#: Set in a container to which NVIDIA's device plugin for containers gave a GPU of the host's driver.
_CONTAINERS_GPUS = "NVIDIA_VISIBLE_DEVICES"

_NOTHING: Mapping[Allocated, DeviceID] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Claimed:
    """The claims, in the order of the entries; the devices left over; and for each entry without a claim the reason. An
    entry whose resource's variable was refused for an earlier entry has no reason of its own."""

    claims: tuple[Claim, ...]
    left_over: tuple[LeftOver, ...]
    unmet: Mapping[Entry, UserError]


def claim(
    wanted: tuple[Entry, ...],
    environ: Mapping[str, str],
    host: Host | None,
    allocated: Mapping[Allocated, DeviceID] = _NOTHING,
) -> Claimed:
    """Match the entries with the pod's variables, and with what DRA and Multus have `allocated`.

    `host`, if known, says which functions make a card (for the older dialect). An entry whose request or network
    `allocated` lacks has neither claim nor reason. A reason names entry, resource and variable: the variable is unset,
    empty, exhausted or malformed, or another entry has the device.
    """
    claims: dict[Entry, Claim] = {}
    unmet: dict[Entry, UserError] = {}
    owners: dict[DeviceID, Entry] = {}
    for entry in wanted:
        if not isinstance(entry.wants, str) and entry.wants in allocated:
            device = allocated[entry.wants]
            if (first := owners.setdefault(device, entry)) is not entry:
                unmet[entry] = UserError(
                    entry,
                    f"is {entry.wants}, which was given {device}, and so was {first.wants}, {first}",
                    "expected each device once: the DRA driver's log says why",
                )
            else:
                claims[entry] = Claim(entry=entry, device=device, variable=None)
    taken = set(owners)
    unasked = _unasked(environ, wanted)
    pools: dict[str, _Pool | None] = {}
    for entry in wanted:
        if not isinstance(entry.wants, str):
            continue
        try:
            if entry.wants not in pools:
                pools[entry.wants] = None  # what is wrong with a pool is said once
                pools[entry.wants] = _Pool.of(entry, entry.wants, wanted, environ, unasked, host)
            pool = pools[entry.wants]
            if pool is not None:
                claims[entry] = Claim(entry=entry, device=pool.next(entry, taken), variable=pool.variable)
                taken.add(claims[entry].device)
        except UserError as error:
            unmet[entry] = error
    by_variable = {pool.variable: pool for pool in pools.values() if pool is not None}
    left_over = tuple(
        LeftOver(pool.variable, left)
        for pool in by_variable.values()
        if (left := tuple(device for device in pool.devices if device not in taken))
    )
    return Claimed(
        claims=tuple(claims[entry] for entry in wanted if entry in claims),
        left_over=(*left_over, *_left_unasked(environ, unasked)),
        unmet=unmet,
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
        cls,
        entry: Entry,
        resource: str,
        wanted: tuple[Entry, ...],
        environ: Mapping[str, str],
        unasked: Mapping[str, DeviceKind],
        host: Host | None,
    ) -> "_Pool":
        """Return the pool of the entry's resource; `entry` is the first that draws on it."""
        kinds = [kind for kind in DeviceKind if variable(resource, kind) in environ]
        if len(kinds) > 1:
            names = " and ".join(variable(resource, kind) for kind in kinds)
            raise UserError(
                entry,
                f"asks for {resource}, which has both {names}",
                "expected one device plugin to serve a resource, so that one of them is set",
            )
        if not kinds:
            examples = _examples(entry, resource)
            name = examples[0].partition("=")[0]
            # Whoever leaves the domain out, as in pgpu, means a vendor's.
            full = [f"{domain}/{resource}" for domain in PREFIXES.values() if "/" not in resource]
            meant = next((each for each in full for kind in DeviceKind if variable(each, kind) in unasked), None)
            near = difflib.get_close_matches(name, unasked, n=1, cutoff=_ALIKE)
            # The name is derived and never parsed back: the variable is all that is known of the other resource.
            fix = (
                f"did you mean {meant}?"
                if meant is not None
                else f"did you mean the resource of {near[0]}, which is set?"
                if near
                else f"expected the pod to request {resource} and its device plugin to set the variable "
                f"(offline: gpu-launcher render --env {' or --env '.join(examples)})"
            )
            wrong = f"asks for {resource}, but {name} is not set"
            if _CONTAINERS_GPUS in environ and resource.startswith(f"{PREFIXES[NVIDIA]}/"):
                wrong += (
                    f", and {_CONTAINERS_GPUS} is: NVIDIA's device plugin for containers serves it, whose GPUs the "
                    "host's driver has"
                )
                if meant is None and not near:
                    fix = (
                        f"write the resource of a card on vfio-pci: {PREFIXES[NVIDIA]}/pgpu with the shipped config, "
                        "or as gpu-plugin inventory lists it"
                    )
            raise UserError(entry, wrong, fix)
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
            devices = cards(
                addresses,
                wanted=drawing,
                same_card=partial(_same_card, host),
                travels_alone=partial(_travels_alone, host),
            )
        except InvalidValue as error:
            raise UserError(
                entry,
                f"asks for {resource}, but {error}",
                f"the log of the plugin that serves {resource} may say why",
            ) from error
        return cls(resource, name, devices, drawing)

    def next(self, entry: Entry, taken: set[DeviceID]) -> DeviceID:
        if not self.devices:
            raise UserError(
                entry,
                f"asks for {self.resource}, but {self.variable} is empty",
                "expected at least one address: the device plugin allocated nothing, its log says why",
            )
        for device in self.devices:
            if device not in taken:
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


def _examples(entry: Entry, resource: str) -> tuple[str, ...]:
    """Return the variables that the entry may get, as NAME=VALUE, the likeliest first: only the plugin knows which."""
    pci, mdev, usb = (f"{variable(resource, kind)}={value}" for kind, value in _VALUES.items())
    if entry.kind is EntryKind.GPU:
        return (mdev, f"{pci} of a virtual function") if _VGPU.search(resource) else (pci,)
    return (usb,) if "usb" in resource.lower() else (pci, f"{usb} of a USB device")


def _unasked(environ: Mapping[str, str], wanted: tuple[Entry, ...]) -> Mapping[str, DeviceKind]:
    """Return the variables of the contract that no entry draws on, in alphabetical order."""
    variables = {variable(entry.wants, kind) for entry in wanted if isinstance(entry.wants, str) for kind in DeviceKind}
    names = sorted(environ.keys() - variables)
    return {name: kind for name in names for kind in DeviceKind if name.startswith(f"{kind}_")}


def _same_card(host: Host | None, one: PCIAddress, other: PCIAddress) -> bool:
    """Return whether an older plugin lists both functions for one device; by their slots, if sysfs does not show
    both."""
    if host is None or one not in host.functions or other not in host.functions:
        return one.shares_slot(other)
    return any(function.address == other for function in listed_with(host, one))


def _travels_alone(host: Host | None, address: PCIAddress) -> bool:
    return host is not None and address in host.functions and travels_alone(host.functions[address])


def _left_unasked(environ: Mapping[str, str], unasked: Mapping[str, DeviceKind]) -> tuple[LeftOver, ...]:
    """Return the devices of the variables that no entry draws on."""
    left_over = []
    for name, kind in unasked.items():
        try:
            devices: tuple[DeviceID, ...] = _DECODE[kind](name, environ[name])
        except InvalidValue:
            continue  # nobody asked for it, so it need not be ours
        if devices:
            left_over.append(LeftOver(name, devices))
    return tuple(left_over)
