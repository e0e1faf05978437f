"""A real passt in a network namespace of its own, called as libvirt calls it, and a guest's card at its socket."""

import os
import socket
import struct
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

from lxml.etree import _Element as Element

from launcher.runtime.embedded import called_for_passt
from tests.processes import unix_sockets
from tests.waiting import allowed, until

#: What the pod has: its address and gateway, of which the guest of a bridge has the same. Its net1 has no gateway.
ADDRESS, GATEWAY = IPv4Address("10.244.1.5"), IPv4Address("10.244.1.1")
_POD = f"""
set -e
ip link set lo up
ip link add eth0 type veth peer name node
ip addr add {ADDRESS}/24 dev eth0
ip link set eth0 up
ip link set node up
ip route add default via {GATEWAY}
ip link add net1 type veth peer name lan
ip addr add 192.0.2.17/24 dev net1
ip link set net1 up
ip link set lan up
echo 0 > /proc/sys/net/ipv4/ip_unprivileged_port_start
exec "$0" "$@"
"""
_MAC = bytes.fromhex("020000000001")
_COOKIE = bytes.fromhex("63825363")
_DISCOVER, _OFFER, _REQUEST, _ACK = 1, 2, 3, 5
_TYPE, _MASK, _ROUTER, _ROUTES = 53, 1, 3, 121


@dataclass(frozen=True)
class Lease:
    """What DHCP has given a guest. `routes` are the bytes of option 121, empty where there is none."""

    address: IPv4Address
    mask: IPv4Address
    router: IPv4Address
    routes: bytes


@dataclass(frozen=True)
class RunningPasst:
    pid: int
    socket: Path

    def lease(self) -> Lease:
        """Ask for an address as DHCP clients do (RFC 2131): discover, request."""
        with socket.socket(socket.AF_UNIX) as card:
            card.settimeout(allowed(10))
            card.connect(str(self.socket))
            _offer, options = _exchange(card, _DISCOVER)
            assert options[_TYPE] == bytes([_OFFER])
            address, options = _exchange(card, _REQUEST)
            assert options[_TYPE] == bytes([_ACK])
        return Lease(address, IPv4Address(options[_MASK]), IPv4Address(options[_ROUTER]), options.get(_ROUTES, b""))

    def listening(self, protocol: str) -> set[int]:
        """The ports of the pod on which passt listens, `tcp` or `udp`; it ends with its first guest."""
        lines = Path(f"/proc/{self.pid}/net/{protocol}").read_text().splitlines()[1:]
        return {int(line.split()[1].partition(":")[2], 16) for line in lines if line.split()[2].endswith(":0000")}


@contextmanager
def called(directory: Path, script: str, interface: Element) -> Iterator[RunningPasst]:
    """passt for an <interface>, until the end of the block; `directory` has a short path, for the socket in it."""
    listening = directory / "passt.socket"
    # What looks for it on PATH is a shell's exec, as libvirt's would.
    within = ("unshare", "--user", "--map-root-user", "--net", "sh", "-c", _POD)
    arguments = ("--foreground", "--quiet", *_arguments(interface, listening))
    with (
        called_for_passt(directory, script),
        subprocess.Popen(
            [*within, "passt", *arguments],
            env={**os.environ, "PATH": f"{directory}/bin:{os.environ['PATH']}"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        ) as process,
    ):
        try:

            def listens() -> bool:
                assert process.poll() is None, process.communicate()[1]
                # Its file is there before it listens.
                return any(one.path == str(listening) and one.listens for one in unix_sockets(process.pid))

            until(listens)
            yield RunningPasst(process.pid, listening)
        finally:
            process.kill()


def _arguments(interface: Element, listening: Path) -> Iterator[str]:
    """What libvirt makes of an <interface> (src/qemu/qemu_passt.c)."""
    yield from ("--one-off", "--socket", str(listening))
    if (source := interface.find("source")) is not None:
        yield from ("--interface", source.get("dev", ""))
    for ip in interface.iterfind("ip"):
        yield from ("--address", ip.get("address", ""))
        if prefix := ip.get("prefix"):
            yield from ("--netmask", prefix)
    for forward in interface.iterfind("portForward"):
        ranges = ["-".join(filter(None, (ports.get("start"), ports.get("end")))) for ports in forward.iterfind("range")]
        yield from (f"--{forward.get('proto')}-ports", ",".join(ranges) or "all")


def _exchange(card: socket.socket, kind: int) -> tuple[IPv4Address, Mapping[int, bytes]]:
    """Send a DHCP message and wait for its answer: the address that is offered, and the options."""
    bootp = struct.pack("!BBBBIHH16x6s202x", 1, 1, 6, 0, 0x67707531, 0, 0, _MAC) + _COOKIE
    bootp += bytes([_TYPE, 1, kind, 55, 3, _MASK, _ROUTER, _ROUTES, 255])
    udp = struct.pack("!HHHH", 68, 67, 8 + len(bootp), 0) + bootp
    header = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0, b"\0" * 4, b"\xff" * 4)
    header = header[:10] + struct.pack("!H", _checksum(header)) + header[12:]
    frame = b"\xff" * 6 + _MAC + b"\x08\x00" + header + udp
    card.sendall(struct.pack("!I", len(frame)) + frame)
    while True:
        (length,) = struct.unpack("!I", _read(card, 4))
        frame = _read(card, length)
        if frame[12:14] == b"\x08\x00" and frame[23] == 17 and frame[36:38] == b"\x00\x44":
            return IPv4Address(frame[42 + 16 : 42 + 20]), _options(frame[42 + 240 :])


def _read(card: socket.socket, length: int) -> bytes:
    found = b""
    while len(found) < length:
        more = card.recv(length - len(found))
        assert more, "passt has closed the connection"
        found += more
    return found


def _options(data: bytes) -> Mapping[int, bytes]:
    found = {}
    while data and data[0] != 255:
        if data[0] == 0:
            data = data[1:]
            continue
        found[data[0]] = data[2 : 2 + data[1]]
        data = data[2 + data[1] :]
    return found


def _checksum(header: bytes) -> int:
    total: int = sum(struct.unpack("!10H", header))
    return ~(total + (total >> 16)) & 0xFFFF
