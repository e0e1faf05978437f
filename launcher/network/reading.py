"""What of second networks is there in a pod: the one reader of it."""

import time
from collections.abc import Mapping
from pathlib import Path

from launcher import paths
from launcher.facts import PodInterface
from launcher.manifest.spec import Spec
from launcher.network.multus import SecondNetwork, Status, attached_to_the_pod, read_status, second_networks

_NET = "sys/class/net"
#: Of Linux's include/uapi/linux/if_tun.h.
_IFF_TAP = 0x0002
_GLOBAL = "00"  # the scope of an IPv6 address in /proc/net/if_inet6


def read_pod_interfaces(spec: Spec, root: Path = Path("/"), seconds: float = 0.0) -> Mapping[str, PodInterface]:
    """Read by network what Multus has attached to the pod whose file system is `root`; what is not there is left out.

    Interfaces are the kernel's to tell. The address of a virtual function is Multus's, in the annotation that the
    kubelet writes into a file, which may be after the container's start: that is waited for, so many seconds at most.
    UserError for a file that is not Multus's.
    """
    second = second_networks(spec)
    functions = [network for network in second if network.interface.method == "sriov"]
    told = _told(spec, functions, root, seconds)
    found = {}
    for network in second:
        known = told.get(network.name)
        if network in functions:
            if known is not None:
                found[network.name] = known
            continue
        device = known.device if known is not None and known.device else network.device
        interface = _interface(device, root)
        if interface is not None:
            found[network.name] = interface
    return found


def _told(spec: Spec, functions: list[SecondNetwork], root: Path, seconds: float) -> Mapping[str, PodInterface]:
    """What Multus says, once it says something of all these virtual functions, or the time is over."""
    deadline = time.monotonic() + seconds
    while True:
        told = attached_to_the_pod(spec, _statuses(root))
        known = (told.get(network.name) for network in functions)
        if all(interface is not None and interface.function is not None for interface in known):
            return told
        if time.monotonic() >= deadline:
            return told
        time.sleep(0.2)


def _statuses(root: Path) -> tuple[Status, ...]:
    path = paths.below(root, paths.NETWORK_STATUS)
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return ()  # no volume of it, as for a VM without virtual functions
    return read_status(text, str(path)) if text.strip() else ()


def _interface(device: str, root: Path) -> PodInterface | None:
    """The interface of this name, None where there is none."""
    if not (root / _NET / device).is_dir():
        return None
    try:
        flags = int((root / _NET / device / "tun_flags").read_text(), 16)
    except (OSError, ValueError):
        flags = 0  # no tap's
    return PodInterface(device=device, has_address=_has_address(device, root), is_tap=bool(flags & _IFF_TAP))


def _has_address(device: str, root: Path) -> bool:
    """Whether an IPv4 route leads through it, as one does with every address of a subnet, or it has an IPv6 address
    that is not link-local."""
    routes = (line.split() for line in _lines(root / "proc/net/route"))
    addresses = (line.split() for line in _lines(root / "proc/net/if_inet6"))
    return any(route[:1] == [device] for route in routes) or any(
        address[5:6] == [device] and address[3] == _GLOBAL for address in addresses
    )


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []  # a kernel without this version of IP
