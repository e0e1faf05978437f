"""The domain in libvirt: define, start, wait, stop. The only module that imports libvirt."""

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from enum import Enum
from functools import cache
from queue import Empty, SimpleQueue
from typing import Any

import libvirt
from lxml import etree

from launcher.errors import Refusal
from launcher.running.embedded import prepare
from launcher.versions import Version, newer_elements, numbered, refuse_newer
from pci.address import PCIAddress

_log = logging.getLogger(__name__)

_KEEPALIVE = 5  # seconds between two signs of life of a libvirt in another process; three missed ones are its end
_USER_ALIAS = "ua-"  # what every name begins with that libvirt has not made up
_ASK_AGAIN = 5.0  # seconds between two ACPI power buttons: a guest that is still booting misses the first


class Ending(Enum):
    """How a domain ended: libvirt's VIR_DOMAIN_EVENT_STOPPED details, and what libvirt has no number for."""

    SHUTDOWN = libvirt.VIR_DOMAIN_EVENT_STOPPED_SHUTDOWN
    DESTROYED = libvirt.VIR_DOMAIN_EVENT_STOPPED_DESTROYED
    CRASHED = libvirt.VIR_DOMAIN_EVENT_STOPPED_CRASHED
    MIGRATED = libvirt.VIR_DOMAIN_EVENT_STOPPED_MIGRATED
    SAVED = libvirt.VIR_DOMAIN_EVENT_STOPPED_SAVED
    FAILED = libvirt.VIR_DOMAIN_EVENT_STOPPED_FAILED
    SNAPSHOT = libvirt.VIR_DOMAIN_EVENT_STOPPED_FROM_SNAPSHOT
    CONNECTION_LOST = -1
    ENDED_ON_REQUEST = -2


class StopRequested(Enum):
    """Somebody wants the domain to end: what goes into the same queue as its ending."""

    SIGNAL = "signal"


Events = SimpleQueue[Ending | StopRequested]


@contextmanager
def connected(uri: str, events: Events) -> Iterator[Any]:
    """A connection to libvirt, whose loss goes to `events`; Refusal where there is none to be had, or it fails."""
    prepare(uri)
    _run_event_loop()
    with _asked(f"be reached at {uri}"):
        connection = libvirt.open(uri)
    # Only a driver in another process has a connection to lose, and takes these.
    with suppress(libvirt.libvirtError):
        connection.registerCloseCallback(_report_loss, events)
    with suppress(libvirt.libvirtError):
        connection.setKeepAlive(_KEEPALIVE, 3)
    try:
        with _asked(f"go on at {uri}"):
            yield connection
    finally:
        with suppress(libvirt.libvirtError):
            connection.unregisterCloseCallback()
        with suppress(libvirt.libvirtError):
            connection.close()


@contextmanager
def defined(connection: Any, xml: str, events: Events) -> Iterator[Any]:
    """The domain, defined and with its ending reported to `events`; undefined again afterwards.

    Refusal where libvirt does not take the XML or is too old for it, or has a domain of that name already: that one is
    somebody else's.

    EFI's variables go with the domain where libvirt has named their file, and stay where the XML names it.
    """
    tree = etree.fromstring(xml)
    refuse_newer(newer_elements(tree), version(connection))
    name = tree.findtext("name")
    if name in (domain.name() for domain in connection.listAllDomains()):
        raise Refusal(f"libvirt has a domain called {name} already; undefine it, or use another connection")
    with _asked("define the domain"):
        domain = connection.defineXMLFlags(xml, libvirt.VIR_DOMAIN_DEFINE_VALIDATE)
    try:
        callback = connection.domainEventRegisterAny(domain, libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, _report, events)
        try:
            yield domain
        finally:
            with suppress(libvirt.libvirtError):
                connection.domainEventDeregisterAny(callback)
    finally:
        with _logged("undefine the domain"):
            domain.undefineFlags(_undefining(tree, domain))


def version(connection: Any) -> Version:
    """The version of the libvirt at the other end."""
    with _asked("tell its version"):
        return numbered(connection.getLibVersion())


def versions_at(uri: str) -> tuple[Version, Version | None]:
    """Those of the libvirt there and of its QEMU, None where that is another hypervisor. Refusal as connected()."""
    _run_event_loop()
    with _asked(f"be reached at {uri}"):
        connection = libvirt.open(uri)
    with _asked(f"tell its versions at {uri}"):
        qemu = numbered(connection.getVersion()) if connection.getType() == "QEMU" else None
        return version(connection), qemu


def library_version() -> Version:
    """The version of libvirt in this process, which is the embedded driver's."""
    return numbered(libvirt.getVersion())


def _undefining(ours: etree._Element, domain: Any) -> int:
    """Flags to undefine a domain of this XML. Only one with EFI takes one: the test driver's has neither."""
    if etree.fromstring(domain.XMLDesc()).find("os[@firmware='efi']") is None:
        return 0
    kept = ours.find("os/nvram") is not None
    return int(libvirt.VIR_DOMAIN_UNDEFINE_KEEP_NVRAM if kept else libvirt.VIR_DOMAIN_UNDEFINE_NVRAM)


@contextmanager
def started(domain: Any) -> Iterator[None]:
    """The domain runs; it is ended afterwards if it still does. One that somebody else started is left alone."""
    with _asked("start the domain"):
        domain.create()
    try:
        yield
    finally:
        with _logged("end the domain"):
            domain.destroy()


def wait(domain: Any, events: Events, grace: float) -> Ending:
    """Wait until the domain ends. When a stop is requested: ask the guest, and end it after `grace` seconds."""
    event = events.get()
    return _stop(domain, events, grace) if isinstance(event, StopRequested) else event


def hostdevs(domain: Any, numbers: Mapping[int, int]) -> tuple[str, ...]:
    """The domain's host devices as libvirt reports them, one line each: alias, source, address as the guest has it.

    `numbers` are the guest's bus numbers, by libvirt's index of the controller (Layout.numbers).
    """
    elements = etree.fromstring(domain.XMLDesc()).iterfind("devices/hostdev")
    return tuple(_hostdev_line(element, numbers) for element in elements)


def _stop(domain: Any, events: Events, grace: float) -> Ending:
    deadline = time.monotonic() + grace
    while (left := deadline - time.monotonic()) > 0:
        _log.info("asking the guest to shut down; it has %.0f s left", left)
        with _logged("ask the guest"):
            domain.shutdown()
        try:
            event = events.get(timeout=min(_ASK_AGAIN, left))
        except Empty:
            continue
        if isinstance(event, Ending):
            return event
    _log.warning("the guest is still there after its grace period; ending it")
    with _logged("end the domain"):
        domain.destroy()
    return Ending.ENDED_ON_REQUEST


def _report(connection: Any, domain: Any, event: int, detail: int, events: Events) -> None:
    if event == libvirt.VIR_DOMAIN_EVENT_STOPPED:
        events.put(Ending(detail))
    elif event == libvirt.VIR_DOMAIN_EVENT_CRASHED:
        # A domain whose crash is preserved does not stop.
        events.put(Ending.CRASHED)


def _report_loss(connection: Any, reason: int, events: Events) -> None:
    events.put(Ending.CONNECTION_LOST)


@contextmanager
def _asked(what: str) -> Iterator[None]:
    """What libvirt refuses within is a Refusal, in one line: QEMU's own words come with line breaks."""
    try:
        yield
    except libvirt.libvirtError as error:
        raise Refusal(f"libvirt cannot {what}: {' '.join(str(error).split())}") from error


@contextmanager
def _logged(what: str) -> Iterator[None]:
    """What libvirt refuses within is logged; that the domain is no longer there is what was wanted."""
    try:
        yield
    except libvirt.libvirtError as error:
        if error.get_error_code() not in (libvirt.VIR_ERR_NO_DOMAIN, libvirt.VIR_ERR_OPERATION_INVALID):
            _log.error("libvirt cannot %s: %s", what, error)


@cache
def _run_event_loop() -> None:
    """Start libvirt's event loop in a thread of its own, before the first connection; once per process."""
    # Errors are raised; libvirt would print them to stderr besides.
    libvirt.registerErrorHandler(lambda context, error: None, None)
    libvirt.virEventRegisterDefaultImpl()

    def loop() -> None:
        while True:
            libvirt.virEventRunDefaultImpl()

    threading.Thread(target=loop, daemon=True).start()


def _hostdev_line(element: etree._Element, numbers: Mapping[int, int]) -> str:
    alias, source, address = (element.find(path) for path in ("alias", "source/address", "address"))
    assert source is not None
    # libvirt gives names of its own, like hostdev0, to what the manifest doesn't name.
    ours = alias is not None and alias.get("name", "").startswith(_USER_ALIAS)
    name = alias.get("name") if alias is not None and ours else "companion"
    if element.get("type") == "usb":
        port = address.get("port") if address is not None else "none"
        return f"{name}: host {source.get('bus')}:{source.get('device')} -> guest USB port {port}"
    host = source.get("uuid") or _address(source)
    if address is None:
        return f"{name}: host {host} -> guest nowhere"
    theirs = _address(address)
    return f"{name}: host {host} -> guest {replace(theirs, bus=numbers.get(theirs.bus, theirs.bus))}"


def _address(element: etree._Element) -> PCIAddress:
    return PCIAddress(*(int(element.get(part, "0"), 16) for part in ("domain", "bus", "slot", "function")))
