"""A connection between two launchers, on which a guest's memory goes from one to the other: TLS over TCP.

The receiver makes a key and a token for one connection. Whoever invites the sender brings it the invitation: the
port, the fingerprint of the receiver's certificate, and the token. By the fingerprint the sender knows the receiver, by
the token the receiver knows the sender. The network between them may be anybody's, and the peer may be silent: each
wait has a deadline, each line and each part a bound.

After the token, lines of text go both ways. The memory is in parts, each after its length, and ends with an empty one.
"""

import logging
import os
import secrets
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from hmac import compare_digest
from ipaddress import ip_address
from typing import NamedTuple, Self

from program.child import NoAnswer, output
from program.errors import Refusal
from program.problem import printable

_log = logging.getLogger(__name__)

_CONNECTS = 20.0  # seconds for the peer to take the connection, and to prove who it is
#: Seconds until a peer that is gone is noticed, and until one that neither sends nor takes anything is given up.
_GONE, _SILENT = 30, 60.0
_KEY_MADE = 10.0  # seconds
_LONGEST_LINE = 4096  # bytes
PART = 1 << 20  # bytes of memory at once
_LENGTH = struct.Struct(">I")
_TOKEN = 32  # bytes
_FIX = "the guest stays where it was; docs/suspend.md#move says what both need"


class Invitation(NamedTuple):
    """What a sender has to know of the receiver: its port, its certificate's SHA-256, and the token. The latter two are
    in hexadecimal digits."""

    port: int
    fingerprint: str
    token: str


class PeerLink:
    """A connection to a peer that has proved who it is. Each method raises Refusal if the peer is gone, silent, or says
    what nobody of ours says."""

    def __init__(self, tls: ssl.SSLSocket, peer: str) -> None:
        self.peer = peer
        self._tls = tls
        self._tls.settimeout(_SILENT)
        self._read = tls.makefile("rb", buffering=PART)

    def say(self, line: str) -> None:
        with _refusing(self.peer):
            self._tls.sendall(f"{line}\n".encode())

    def hear(self, within: float = _SILENT) -> str:
        with _refusing(self.peer):
            self._tls.settimeout(within)
            line = self._read.readline(_LONGEST_LINE)
            self._tls.settimeout(_SILENT)
            if not line.endswith(b"\n"):
                raise EOFError
            return printable(line.decode(errors="replace").strip())

    def send_part(self, part: bytes) -> None:
        """Send at most PART bytes; nothing to say that there are no more."""
        with _refusing(self.peer):
            self._tls.sendall(_LENGTH.pack(len(part)) + part)

    def parts(self) -> Iterator[bytes]:
        """Yield what send_part() sends, up to the end."""
        with _refusing(self.peer):
            while length := _LENGTH.unpack(self._exactly(_LENGTH.size))[0]:
                if length > PART:
                    raise Refusal(self.peer, f"sends a part of {length} bytes", f"expected {PART} at most")
                yield self._exactly(length)

    def _exactly(self, size: int) -> bytes:
        read: bytes = self._read.read(size)
        if len(read) < size:
            raise EOFError
        return read

    def close(self) -> None:
        with suppress(OSError):
            self._tls.shutdown(socket.SHUT_RDWR)
        with suppress(OSError):
            self._read.close()  # else the socket stays open
        with suppress(OSError):
            self._tls.close()


def connected(address: str, invitation: Invitation) -> PeerLink:
    """Connect to the launcher at an IP address that has given this invitation. Refusal if nobody, or somebody else,
    is there."""
    try:
        ip_address(address)
        expected, token = bytes.fromhex(invitation.fingerprint), bytes.fromhex(invitation.token)
    except ValueError as error:
        fix = "expected an IP address, and what ctl receive has printed there"
        raise Refusal(f"ctl send {address}"[:100], "is no invitation", fix) from error
    peer = f"[{address}]:{invitation.port}"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # The one certificate that is accepted is known; its names and dates say nothing, and clocks differ.
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with _refusing(peer), ExitStack() as unless_proved:
        plain = unless_proved.enter_context(socket.create_connection((address, invitation.port), _CONNECTS))
        _notice_its_end(plain)
        tls = unless_proved.enter_context(context.wrap_socket(plain))  # which has the socket now
        if not compare_digest(sha256(tls.getpeercert(binary_form=True) or b"").digest(), expected):
            raise Refusal(peer, "is not the launcher that is to receive the guest", _FIX)
        tls.sendall(token)
        unless_proved.pop_all()
    return PeerLink(tls, peer)


class Listener:
    """Waits for one sender, at all addresses. Refusal if no key can be made, or the port cannot be had."""

    def __init__(self, port: int) -> None:
        self._context, fingerprint = _new_key()
        self._token = secrets.token_bytes(_TOKEN)
        has_both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if has_both else socket.AF_INET
        try:
            self._socket = socket.create_server(("", port), family=family, dualstack_ipv6=has_both)
        except OSError as error:
            raise Refusal(f"port {port}", f"cannot be had: {error.strerror}", "name another one") from error
        self.invitation = Invitation(self._socket.getsockname()[1], fingerprint, self._token.hex())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Wait no longer: accepted() raises Refusal."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def accepted(self, within: float) -> PeerLink:
        """Return the connection of the sender; whoever else connects is sent away."""
        deadline = time.monotonic() + within
        while (left := deadline - time.monotonic()) > 0:
            try:
                self._socket.settimeout(left)
                plain, (address, *_) = self._socket.accept()
            except TimeoutError:
                break
            except OSError as error:
                raise Refusal(
                    "ctl receive", f"waits no longer: {error.strerror}", "ask again once the VM waits for a guest"
                ) from error
            try:
                return PeerLink(self._proved(plain), f"[{address}]")
            except (OSError, EOFError) as error:
                _log.warning("%s has not proved that it is the sender of the guest: %s", address, error)
        raise Refusal("ctl receive", f"nobody has sent a guest in {within:.0f} s", "invite a sender anew")

    def _proved(self, plain: socket.socket) -> ssl.SSLSocket:
        deadline = time.monotonic() + _CONNECTS
        with ExitStack() as unless_proved:
            unless_proved.enter_context(plain)
            plain.settimeout(_CONNECTS)
            _notice_its_end(plain)
            tls = unless_proved.enter_context(self._context.wrap_socket(plain, server_side=True))
            token = b""
            while len(token) < _TOKEN:
                tls.settimeout(max(0.1, deadline - time.monotonic()))
                more = tls.recv(_TOKEN - len(token))
                if not more or time.monotonic() > deadline:
                    raise EOFError("no token")
                token += more
            if not compare_digest(token, self._token):
                raise EOFError("another token")
            unless_proved.pop_all()
        return tls


def _new_key() -> tuple[ssl.SSLContext, str]:
    """Return TLS with a new key, and its certificate's fingerprint."""
    command = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    try:
        made = output((*command, "-subj", "/CN=gpu-launcher", "-keyout", "-"), within=_KEY_MADE)
    except (OSError, NoAnswer) as error:
        raise Refusal("openssl", f"makes no key: {error}", "expected the package openssl, as in the image") from error
    if made.returncode:
        raise Refusal(
            "openssl",
            f"makes no key: {made.stderr.decode(errors='replace')[-300:]}",
            "try openssl by hand in this container",
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    place = os.memfd_create("key", os.MFD_CLOEXEC)
    try:
        os.write(place, made.stdout)
        context.load_cert_chain(f"/proc/self/fd/{place}")
    finally:
        os.close(place)
    first, last = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    body = made.stdout.decode().partition(first)[2].partition(last)[0]
    return context, sha256(ssl.PEM_cert_to_DER_cert(f"{first}{body}{last}")).hexdigest()


def _notice_its_end(connection: socket.socket) -> None:
    """Have the kernel end the connection if the peer's machine is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, _GONE // 3),
        (socket.TCP_KEEPINTVL, _GONE // 6),
        (socket.TCP_KEEPCNT, 4),
        (socket.TCP_USER_TIMEOUT, _GONE * 1000),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


@contextmanager
def _refusing(peer: str) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise Refusal(peer, "neither sends nor takes anything", _FIX) from error
    except (OSError, EOFError, ValueError) as error:  # ValueError: closed by another thread
        reason = getattr(error, "strerror", None) or "it has hung up"
        raise Refusal(peer, f"the connection is lost: {printable(reason)}", _FIX) from error
