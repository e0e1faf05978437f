"""Reads the pod's second networks; no other module does."""

import time
from collections.abc import Iterator, Mapping
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import NamedTuple

from launcher.vm import paths
from launcher.vm.facts import PodInterface
from launcher.vm.network.multus import SecondNetwork, Status, attached_to_the_pod, read_status, second_networks
from launcher.vm.spec import Spec

_NET = "sys/class/net"
#: Of Linux's include/uapi/linux/if_tun.h.
_IFF_TAP = 0x0002
_GLOBAL = "00"  # the scope of an IPv6 address in /proc/net/if_inet6


def read_pod_interfaces(spec: Spec, root: Path = Path("/"), seconds: float = 0.0) -> Mapping[str, PodInterface]:
    """Read Multus' attachments of the pod whose file system is `root`, by network; a missing one is left out.

    Interfaces are the kernel's to tell. The address of a virtual function is Multus's, in the annotation that the
    kubelet writes into a file, which may be after the container's start: that is waited for, so many seconds at most.
    UserError for a file that is not Multus's.
    """
    second = second_networks(spec)
    functions = [network for network in second if network.interface.method == "sriov"]
    attachments = _attachments(spec, functions, root, seconds)
    interfaces = {}
    for network in second:
        known = attachments.get(network.name)
        if network in functions:
            if known is not None:
                interfaces[network.name] = known
            continue
        device = known.device if known is not None and known.device else network.device
        interface = _interface(device, root)
        if interface is not None:
            interfaces[network.name] = interface
    return interfaces


def _attachments(spec: Spec, functions: list[SecondNetwork], root: Path, seconds: float) -> Mapping[str, PodInterface]:
    """Return Multus' answer as soon as it names all these virtual functions, or at the deadline."""
    deadline = time.monotonic() + seconds
    while True:
        attachments = attached_to_the_pod(spec, _statuses(root))
        known = (attachments.get(network.name) for network in functions)
        is_known = all(interface is not None and interface.function is not None for interface in known)
        if is_known or time.monotonic() >= deadline:
            return attachments
        time.sleep(0.2)


def _statuses(root: Path) -> tuple[Status, ...]:
    path = paths.below(root, paths.NETWORK_STATUS)
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return ()  # no volume of it, as for a VM without virtual functions
    return read_status(text, str(path)) if text.strip() else ()


def _interface(device: str, root: Path) -> PodInterface | None:
    """Return the pod's interface of this name; None if there is none."""
    if not (root / _NET / device).is_dir():
        return None
    try:
        flags = int((root / _NET / device / "tun_flags").read_text(), 16)
    except (OSError, ValueError):
        flags = 0  # no tap's
    routes = [route for route in _routes(root) if route.device == device]
    # The subnet of the interface's own address: each address has a route to its subnet.
    largest = min((route.to for route in routes), key=lambda to: to.prefixlen, default=None)
    return PodInterface(
        device=device,
        has_address=bool(routes) or _has_ipv6(device, root),
        subnet=None if any(route.has_gateway for route in routes) else largest,
        is_tap=bool(flags & _IFF_TAP),
    )


class _Route(NamedTuple):
    device: str
    to: IPv4Network
    has_gateway: bool


def _routes(root: Path) -> Iterator[_Route]:
    """Yield the pod's IPv4 routes from /proc/net/route, whose numbers are hexadecimal and little-endian."""
    for line in _lines(root / "proc/net/route")[1:]:
        device, destination, gateway, *_, mask, _mtu, _window, _irtt = line.split()
        to = IPv4Network((_address(destination), str(_address(mask))))
        yield _Route(device, to, _address(gateway) != IPv4Address(0))


def _address(text: str) -> IPv4Address:
    return IPv4Address(bytes.fromhex(text)[::-1])


def _has_ipv6(device: str, root: Path) -> bool:
    """Return whether the interface has a global IPv6 address."""
    addresses = (line.split() for line in _lines(root / "proc/net/if_inet6"))
    return any(address[5:6] == [device] and address[3] == _GLOBAL for address in addresses)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []  # a kernel without this version of IP
