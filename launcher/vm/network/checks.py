"""What the guest does not get of the network in its manifest: fields without a counterpart in passt, ports that another
interface or Istio's proxy has, and more ports than this container may listen on."""

import re
from collections.abc import Iterable, Iterator

from launcher.vm.checks import error, warning
from launcher.vm.devices import Devices
from launcher.vm.network.guest import PROTOCOLS, Attached, PasstAttachment
from program.finding import Finding

_DEVICES = "spec.domain.devices"
_PRIVILEGED = 1024
_PORTS = 1 << 16
#: The ports that connections go out from, which passt leaves alone (passt(1), --tcp-ports): Linux's own default.
_EPHEMERAL = (32768, 60999)


def not_tuned(devices: Devices) -> Iterator[Finding]:
    """Yield a warning for each field that has no effect; the guest starts without it."""
    if devices.networkInterfaceMultiqueue and devices.connected:
        yield warning(
            f"{_DEVICES}.networkInterfaceMultiqueue",
            "passt has one pair of queues for each card",
            "leave it out, or pass a virtual function on where one pair is too slow",
        )
    for index, interface in enumerate(devices.interfaces):
        if interface.dhcpOptions is None or interface.state == "absent":
            continue
        for name, value in interface.dhcpOptions:
            if value:
                yield warning(
                    f"{_DEVICES}.interfaces[{index}].dhcpOptions.{name}",
                    "passt's DHCP server has no such option",
                    "set it in the guest, with cloud-init for example, or leave it out",
                )


def reached_elsewhere(cards: Iterable[Attached]) -> Iterator[Finding]:
    """Yield a warning for each card that lists ports which an earlier card gets, or Istio's proxy."""
    for card in cards:
        if not isinstance(card.to, PasstAttachment):
            continue
        forwards = card.to.forwards
        if forwards.lists("TCP", forwards.reserved):
            yield warning(
                f"interface {card.interface.name!r}",
                "lists a port of Istio's proxy, which is in the pod: it does not reach the guest",
                "take it out of the interface's ports, and have the guest's service listen on another one",
            )
        if any(forwards.lists(protocol, forwards.elsewhere.get(protocol, ())) for protocol in PROTOCOLS):
            yield warning(
                f"interface {card.interface.name!r}",
                "lists ports that an earlier interface has: whichever of the pod's addresses they come to, they reach "
                "the guest there",
                "list the ports of each interface, each port once",
            )


def privileged(cards: Iterable[Attached], first: str, *, is_root: bool) -> Iterator[Finding]:
    """Yield an error for each port of an own machine on which its user may not listen. `first` is
    /proc/sys/net/ipv4/ip_unprivileged_port_start, "" if unknown."""
    least = int(first) if first.strip().isdecimal() else _PRIVILEGED
    for card in cards:
        if is_root or not isinstance(card.to, PasstAttachment) or (own := card.to.forwards.own) is None:
            continue
        for start, _ in (each for protocol in PROTOCOLS for each in card.to.forwards.ranges(protocol)):
            if (port := own.get(start, start)) < least:
                yield error(
                    f"interface {card.interface.name!r}",
                    f"has the port {start}, and only root may listen on {port} of this machine",
                    f"give it another one, like --port {start + 2200 if start < _PRIVILEGED else least}:{start}",
                )


def ports(cards: Iterable[Attached], ephemeral: str, open_files: int | None) -> Finding | None:
    """Return an error if passt cannot open its sockets: one for each port of TCP and of UDP at least, and passt ends
    when it gets fewer ("Can't open enough sockets").

    `ephemeral` is /proc/sys/net/ipv4/ip_local_port_range, "" if unknown. `open_files` is how many files a process may
    have open, None without limit.
    """
    every = next(
        (card.interface for card in cards if isinstance(card.to, PasstAttachment) and card.to.forwards.are_all), None
    )
    match = re.fullmatch(r"\s*(\d{1,5})\s+(\d{1,5})\s*", ephemeral, re.ASCII)
    first, last = (int(match[1]), int(match[2])) if match else _EPHEMERAL
    needed = 2 * (_PORTS - _PRIVILEGED - (last - first + 1))
    if every is None or open_files is None or open_files >= needed:
        return None
    return error(
        f"interface {every.name!r}",
        f"gets all ports of the pod, and passt listens on each: that takes {needed} open files at least, and a process "
        f"of this container may have {open_files} (RLIMIT_NOFILE)",
        "list the ports that are to reach the guest (interfaces.ports, with masquerade or passt), or start the "
        "container runtime with a higher LimitNOFILE",
    )
