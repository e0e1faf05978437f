"""The life of one VM, from its XML to its end: what `gpu-launcher run` does."""

import logging
import signal
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

from launcher.errors import Refusal
from launcher.running import guest
from launcher.running.embedded import has_qemu_here
from launcher.running.sockets import socket_directory

_log = logging.getLogger(__name__)


def run(xml: str, *, numbers: Mapping[int, int], sockets: Path, uri: str, grace: float) -> None:
    """Define and start the domain, and stay until it ends; nothing of it is left afterwards.

    `numbers` are the bus numbers that the guest will have, by index of the controller, for the log. `sockets` is the
    directory that the domain's sockets are in; it is made where QEMU runs on this machine.
    SIGTERM or SIGINT ask the guest to shut down and end it after `grace` seconds, which is a success. So is a guest
    that powers itself off. Refusal for every other end, and for what libvirt refuses.
    """
    events = guest.Events()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda signum, frame: events.put(guest.StopRequested.SIGNAL))
    with (
        guest.connected(uri, events) as connection,
        socket_directory(sockets) if has_qemu_here(uri) else nullcontext(),
        guest.defined(connection, xml, events) as domain,
    ):
        _log.info("%s is defined on %s", domain.name(), uri)
        if not events.empty():
            _log.info("%s is not started: the stop came before", domain.name())
            return
        with guest.started(domain):
            _log.info("%s is running", domain.name())
            for line in guest.hostdevs(domain, numbers):
                _log.info("%s", line)
            ending = guest.wait(domain, events, grace)
            words = ending.name.lower().replace("_", " ")
            _log.info("%s has ended: %s", domain.name(), words)
    if ending not in (guest.Ending.SHUTDOWN, guest.Ending.ENDED_ON_REQUEST):
        raise Refusal(f"the domain did not end by its guest or on request: {words}; libvirt's and QEMU's logs say why")
