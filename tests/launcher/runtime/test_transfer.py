"""Two launchers on one connection: each proves who it is, and what a peer sends, or does not send, is bounded."""

import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from launcher.runtime.transfer import PART, Invitation, Listener, PeerLink, connected
from program.errors import Refusal
from tests.waiting import allowed


@contextmanager
def linked() -> Iterator[tuple[PeerLink, PeerLink]]:
    """The receiver's end, and the sender's."""
    with Listener(0) as listener, ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(listener.accepted, allowed(10))
        sender = connected("127.0.0.1", listener.invitation)
        receiver = accepted.result()
        try:
            yield receiver, sender
        finally:
            sender.close()
            receiver.close()


def test_what_is_sent_comes_whole_and_in_order() -> None:
    with linked() as (receiver, sender):
        sender.say("hello")
        assert receiver.hear() == "hello"
        parts = [b"a" * PART, b"b", b"c" * 1000]

        def send() -> None:
            for part in (*parts, b""):
                sender.send_part(part)

        sending = threading.Thread(target=send)
        sending.start()
        assert [*receiver.parts()] == parts
        sending.join()
        receiver.say("loaded")
        assert sender.hear() == "loaded"


def test_a_peer_that_is_silent_is_given_up() -> None:
    with linked() as (receiver, _), pytest.raises(Refusal, match="neither sends nor takes anything"):
        receiver.hear(within=0.2)


@pytest.mark.parametrize("sent", [b"\x00\x00\x00\x09half", b"\x00", b""], ids=["a part", "a length", "nothing"])
def test_memory_without_its_end_is_not_whole(sent: bytes) -> None:
    with linked() as (receiver, sender):
        sender._tls.sendall(sent)
        sender.close()
        with pytest.raises(Refusal, match="the connection is lost"):
            list(receiver.parts())


def test_no_part_is_longer_than_the_longest() -> None:
    with linked() as (receiver, sender):
        sender._tls.sendall((PART + 1).to_bytes(4, "big"))
        with pytest.raises(Refusal, match="sends a part of 1048577 bytes"):
            next(receiver.parts())


def test_no_line_is_longer_than_the_longest() -> None:
    with linked() as (receiver, sender):
        sender.say("x" * 5000)
        with pytest.raises(Refusal, match="the connection is lost"):
            receiver.hear()


def test_a_stranger_neither_gets_in_nor_keeps_the_sender_out() -> None:
    with Listener(0) as listener, ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(listener.accepted, allowed(30))
        port = listener.invitation.port
        with socket.create_connection(("127.0.0.1", port)) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
        stranger = connected("127.0.0.1", Invitation(port, listener.invitation.fingerprint, "00" * 32))
        with pytest.raises(Refusal, match="the connection is lost"):
            stranger.hear()
        stranger.close()
        sender = connected("127.0.0.1", listener.invitation)
        receiver = accepted.result()
        receiver.say("ready")
        assert sender.hear() == "ready"
        sender.close()
        receiver.close()


def test_a_sender_gives_its_token_to_nobody_else() -> None:
    with Listener(0) as other, Listener(0) as listener, ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(other.accepted, allowed(3))
        mixed = listener.invitation._replace(port=other.invitation.port)
        with pytest.raises(Refusal, match="is not the launcher that is to receive the guest"):
            connected("127.0.0.1", mixed)
        with pytest.raises(Refusal, match="nobody has sent a guest"):
            accepted.result()


def test_nobody_speaks_an_older_tls() -> None:
    with Listener(0) as listener, ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(listener.accepted, allowed(3))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with (
            socket.create_connection(("127.0.0.1", listener.invitation.port)) as plain,
            pytest.raises(ssl.SSLError),
        ):
            context.wrap_socket(plain)
        with pytest.raises(Refusal, match="nobody has sent a guest"):
            accepted.result()


def test_a_port_that_somebody_has_is_named() -> None:
    with Listener(0) as listener, pytest.raises(Refusal, match=f"port {listener.invitation.port}: cannot be had"):
        Listener(listener.invitation.port)


@pytest.mark.parametrize("address", ["node-2", "10.0.0.1; rm", ""])
def test_no_name_is_looked_up(address: str) -> None:
    with pytest.raises(Refusal, match="is no invitation"):
        connected(address, Invitation(1, "00", "00"))
