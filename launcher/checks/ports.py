"""passt, which listens for the guest with a socket for each port: to forward all takes tens of thousands of them."""

import re
from collections.abc import Iterable

from launcher.checks.finding import error
from launcher.network.attachments import Attached, PasstAttachment
from program.finding import Finding

_PRIVILEGED = 1024
_PORTS = 1 << 16
#: The ports that connections go out from, which passt leaves alone (passt(1), --tcp-ports): Linux's own default.
_EPHEMERAL = (32768, 60999)


def ports(cards: Iterable[Attached], ephemeral: str, open_files: int | None) -> Finding | None:
    """Whether passt can open the sockets that it has to. `ephemeral` is /proc/sys/net/ipv4/ip_local_port_range, where
    it is known; `open_files` is how many files a process may have open, None without limit.

    One for each port of TCP and of UDP is the least; passt ends when it gets fewer ("Can't open enough sockets").
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
