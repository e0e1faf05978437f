"""Where a program listens for HTTP."""

import socket
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address

from program.errors import Refusal

#: How a command line names such a port.
METAVAR = "[ADDRESS:]PORT"


@dataclass(frozen=True, slots=True)
class HTTPPort:
    """Where to listen: an IP address, None for every one, and a TCP port."""

    address: str | None
    number: int

    def __str__(self) -> str:
        if self.address is None:
            return str(self.number)
        return f"[{self.address}]:{self.number}" if ":" in self.address else f"{self.address}:{self.number}"


def http_port(word: str) -> HTTPPort:
    """Return the port that a word of the command line names; ValueError, with what was expected, if it names none."""
    address, _, number = word.rpartition(":")
    with suppress(ValueError):
        if number.isascii() and number.isdecimal() and 1 <= int(number) <= 65535:
            return HTTPPort(
                str(ip_address(address.removeprefix("[").removesuffix("]"))) if address else None, int(number)
            )
    raise ValueError(f"{word!r}; expected {METAVAR}, like 8080, 127.0.0.1:8080 or [::1]:8080.")


def opened(flag: str, port: HTTPPort) -> socket.socket:
    """Listen on a port; Refusal, with the flag that names the port, if that cannot be."""
    dual = port.address is None and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual or (port.address is not None and ":" in port.address) else socket.AF_INET
    try:
        listener = socket.create_server((port.address or "", port.number), family=family, dualstack_ipv6=dual)
    except OSError as error:
        raise Refusal(f"{flag} {port}", f"cannot serve there: {error.strerror}", "name another port") from error
    listener.setblocking(False)
    return listener
