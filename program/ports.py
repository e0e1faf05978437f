"""The port on which a program listens for HTTP."""

import re
import socket
from contextlib import suppress
from dataclasses import dataclass, replace
from ipaddress import ip_address

from program.errors import Refusal

#: The form of a port on a command line.
METAVAR = "[ADDRESS:]PORT"
#: The flag for host names of requests to an HTTP server, like a Service's.
ALLOW_HOST = "--allow-host"


@dataclass(frozen=True, slots=True)
class HTTPPort:
    """An IP address to listen on, None for all, and a TCP port. `names` are the host names that a request may use, in
    lower case, beside localhost and every IP address."""

    address: str | None
    number: int
    names: frozenset[str] = frozenset()

    def __str__(self) -> str:
        if self.address is None:
            return str(self.number)
        return f"[{self.address}]:{self.number}" if ":" in self.address else f"{self.address}:{self.number}"


def http_port(word: str) -> HTTPPort:
    """Return the port that a word of the command line names; ValueError, naming the expected form, for another."""
    address, _, number = word.rpartition(":")
    with suppress(ValueError):
        if number.isascii() and number.isdecimal() and 1 <= int(number) <= 65535:
            return HTTPPort(
                str(ip_address(address.removeprefix("[").removesuffix("]"))) if address else None, int(number)
            )
    raise ValueError(f"{word!r}; expected {METAVAR}, like 8080, 127.0.0.1:8080 or [::1]:8080.")


def host_name(word: str) -> str:
    """Return a word of the command line if it is a host name; ValueError otherwise."""
    if re.fullmatch(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?", word):
        return word
    raise ValueError(f"{word!r}; expected a DNS name without a port, like gpu-plugin.kube-system.svc.")


def reached_by(port: HTTPPort, *names: str | None) -> HTTPPort:
    """Return the port with the names of this host and `names`, leaving out None."""
    return replace(port, names=frozenset(name.lower() for name in (socket.gethostname(), *names) if name is not None))


def opened(flag: str, port: HTTPPort) -> socket.socket:
    """Listen on a port; Refusal, with the flag that names the port, if that fails."""
    dual = port.address is None and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual or (port.address is not None and ":" in port.address) else socket.AF_INET
    try:
        listener = socket.create_server((port.address or "", port.number), family=family, dualstack_ipv6=dual)
    except OSError as error:
        raise Refusal(f"{flag} {port}", f"cannot serve there: {error.strerror}", "name another port") from error
    listener.setblocking(False)
    return listener
