"""The domain in libvirt: define, start, stop, and what libvirt tells of it. The only module that imports libvirt."""

import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from typing import Any
from xml.etree import ElementTree  # lxml costs 5 MB in a process that stays

import libvirt
import libvirt_qemu

from launcher.runtime.events import Changed, Ending, NotStarted, Started
from launcher.runtime.threads import having_threads
from launcher.runtime.vm import VM
from launcher.versions import Version, newer_elements, numbered, refuse_newer
from pci.address import PCIAddress
from program.errors import Refusal
from program.problem import one_line

_log = logging.getLogger(__name__)

_KEEPALIVE = 5  # seconds between two signs of life of a libvirt in another process; three missed ones are its end
_AGENT = 5  # seconds for the guest's agent to answer
_NO_CURE = "docs/troubleshooting.md says more of libvirt's refusals"
_REACHABLE = "expected a libvirt there, leave --connect out for the one in the launcher"
_USER_ALIAS = "ua-"  # what every name begins with that libvirt has not made up


def _words(prefix: str) -> Mapping[int, str]:
    """Libvirt's constants of that prefix, by their value: VIR_DOMAIN_EVENT_STARTED_FROM_SNAPSHOT is "from snapshot"."""
    names = (name for name in vars(libvirt) if name.startswith(prefix))
    return {getattr(libvirt, name): name.removeprefix(prefix).lower().replace("_", " ") for name in names}


# virDomainEventType, and the virDomainEvent...DetailType of each.
_EVENTS = {
    getattr(libvirt, f"VIR_DOMAIN_EVENT_{event}"): (event.lower(), _words(f"VIR_DOMAIN_EVENT_{event}_"))
    for event in ("DEFINED", "UNDEFINED", "STARTED", "SUSPENDED", "RESUMED", "STOPPED", "SHUTDOWN", "PMSUSPENDED")
} | {libvirt.VIR_DOMAIN_EVENT_CRASHED: ("crashed", _words("VIR_DOMAIN_EVENT_CRASHED_"))}

_STOPPED = {
    libvirt.VIR_DOMAIN_EVENT_STOPPED_SHUTDOWN: Ending.POWERED_OFF,
    libvirt.VIR_DOMAIN_EVENT_STOPPED_CRASHED: Ending.PANICKED,
    libvirt.VIR_DOMAIN_EVENT_STOPPED_FAILED: Ending.QEMU_DIED,  # its monitor closed without a word
}
# Why QEMU shuts down, where it is not the guest's wish (ShutdownCause of QEMU's qapi/run-state.json).
_QEMU_SHUTDOWN = {
    "guest-reset": Ending.REBOOTED,
    "guest-panic": Ending.PANICKED,
    "host-error": Ending.QEMU_DIED,
    "host-signal": Ending.QEMU_DIED,
}


@contextmanager
def connected(uri: str, vm: VM) -> Iterator[Any]:
    """A connection to libvirt, whose loss ends the VM; Refusal where there is none to be had, or it fails."""
    _run_event_loop()
    with asked(f"be reached at {uri}", _REACHABLE):
        connection = libvirt.open(uri)
    # Only a driver in another process has a connection to lose, and takes these.
    with suppress(libvirt.libvirtError):
        connection.registerCloseCallback(_report_loss, vm)
    with suppress(libvirt.libvirtError):
        connection.setKeepAlive(_KEEPALIVE, 3)
    try:
        with asked(f"go on at {uri}"):
            yield connection
    finally:
        with suppress(libvirt.libvirtError):
            connection.unregisterCloseCallback()
        with suppress(libvirt.libvirtError):
            connection.close()


@contextmanager
def defined(connection: Any, xml: str, vm: VM) -> Iterator[Any]:
    """The domain, defined and with what happens to it told to the VM; undefined again afterwards.

    Refusal where libvirt does not take the XML or is too old for it, or has a domain of that name already: that one is
    somebody else's.

    EFI's variables go with the domain where libvirt has named their file, and stay where the XML names it.
    """
    tree = ElementTree.fromstring(xml)  # noqa: S314 it is ours
    refuse_newer(newer_elements(tree), version(connection))
    name = tree.findtext("name")
    if name in (domain.name() for domain in connection.listAllDomains()):
        raise Refusal("libvirt", f"has a domain called {name} already", "undefine it, or use another connection")
    with asked("define the domain", "report it, with what gpu-launcher render prints"):
        domain = connection.defineXMLFlags(xml, libvirt.VIR_DOMAIN_DEFINE_VALIDATE)
    try:
        with _reported(connection, domain, vm):
            yield domain
    finally:
        with _logged("undefine the domain"):
            domain.undefineFlags(_undefining(xml, domain))


def forget(connection: Any, name: str, xml: str) -> None:
    """Have libvirt forget a domain of that name and XML, if it has one: for what a killed launcher has left."""
    for domain in connection.listAllDomains():
        if domain.name() == name:
            end(domain)
            with _logged("undefine the domain"):
                domain.undefineFlags(_undefining(xml, domain))


def version(connection: Any) -> Version:
    """The version of the libvirt at the other end."""
    with asked("tell its version"):
        return numbered(connection.getLibVersion())


def versions_at(uri: str) -> tuple[Version, Version | None]:
    """Those of the libvirt there and of its QEMU, None where that is another hypervisor. Refusal as connected()."""
    _run_event_loop()
    with asked(f"be reached at {uri}", _REACHABLE):
        connection = libvirt.open(uri)
    with asked(f"tell its versions at {uri}"):
        qemu = numbered(connection.getVersion()) if connection.getType() == "QEMU" else None
        return version(connection), qemu


def library_version() -> Version:
    """The version of libvirt in this process, which is the embedded driver's."""
    return numbered(libvirt.getVersion())


def look_at_qemu(uri: str) -> None:
    """Have libvirt find out what its QEMU can do, which takes 0.6 s and is remembered. Refusal where libvirt cannot be
    had; where QEMU cannot, whoever starts a domain will hear of it."""
    _run_event_loop()
    with asked(f"be reached at {uri}", _REACHABLE):
        connection = libvirt.open(uri)
    with suppress(libvirt.libvirtError):
        connection.getDomainCapabilities()
    connection.close()


def start(domain: Any, vm: VM, *, paused: bool) -> None:
    """Have the domain started, in a thread of its own: with VFIO it takes minutes. Started or NotStarted tells how."""
    flags = libvirt.VIR_DOMAIN_START_PAUSED if paused else 0

    def create() -> None:
        try:
            with asked("start the domain", "gpu-launcher check looks at what QEMU does not say"):
                domain.createWithFlags(flags)
        except Exception as error:
            vm.events.put(NotStarted(error))
        else:
            vm.events.put(Started())

    with having_threads("libvirt"):
        threading.Thread(target=create, daemon=True).start()


def ask_to_shut_down(domain: Any) -> None:
    """Press the power button, of a guest that can obey."""
    with _logged("resume the guest"):
        if domain.state()[0] == libvirt.VIR_DOMAIN_PAUSED:
            _log.info("resuming the guest: paused, it could not shut down")
            domain.resume()
    with _logged("ask the guest"):
        domain.shutdown()


def end(domain: Any) -> None:
    """End the domain, if it is there."""
    with _logged("end the domain"):
        domain.destroy()


def runs(domain: Any) -> bool:
    """Whether the guest's CPUs run."""
    try:
        return bool(domain.state()[0] == libvirt.VIR_DOMAIN_RUNNING)
    except libvirt.libvirtError:
        return False


def ask_agent(domain: Any, command: str, seconds: int) -> str:
    """What the guest's agent answers to that, in its protocol (launcher.runtime.agent).

    Libvirt first makes sure that the agent listens, so it takes twice those seconds at most. Refusal where there is no
    agent, where it does not answer, or where it refuses.
    """
    with _agent_asked():
        return str(libvirt_qemu.qemuAgentCommand(domain, command, seconds, 0))


def set_keys(domain: Any, user: str, keys: Sequence[str]) -> None:
    """Have the guest's agent make these all of a user's ssh keys. Refusal as ask_agent()."""
    with _agent_asked(f"the ssh keys of {user!r}"):
        domain.authorizedSSHKeysSet(user, list(keys), 0)


def set_password(domain: Any, user: str, password: str) -> None:
    """Have the guest's agent set a user's password. Refusal as ask_agent()."""
    with _agent_asked(f"the password of {user!r}"):
        domain.setUserPassword(user, password, 0)


@contextmanager
def agent_told(domain: Any, told: Callable[[bool], object]) -> Iterator[None]:
    """Within, `told` hears in libvirt's thread when the guest's agent connects, and when it is gone."""

    def tell(connection: Any, domain: Any, state: int, reason: int, opaque: object) -> None:
        told(state == libvirt.VIR_CONNECT_DOMAIN_EVENT_AGENT_LIFECYCLE_STATE_CONNECTED)

    connection = domain.connect()
    with suppress(libvirt.libvirtError):  # older than 5.10: each call has libvirt's own deadline then
        domain.agentSetResponseTimeout(_AGENT, 0)
    with asked("tell of the guest's agent"):
        callback = connection.domainEventRegisterAny(domain, libvirt.VIR_DOMAIN_EVENT_ID_AGENT_LIFECYCLE, tell, None)
    try:
        yield
    finally:
        with suppress(libvirt.libvirtError):
            connection.domainEventDeregisterAny(callback)


@contextmanager
def _agent_asked(what: str = "") -> Iterator[None]:
    """What libvirt or the agent refuses within is a Refusal; `what` is what the agent was to set."""
    try:
        yield
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_AGENT_UNRESPONSIVE:
            fix = "install qemu-guest-agent in the guest and start it, or wait until it has started"
        else:
            fix = "its log in the guest may say more"
        words = f"cannot set {what}: {error}" if what else str(error)
        raise Refusal("the guest's agent", one_line(words), fix) from error


def hostdevs(domain: Any, numbers: Mapping[int, int]) -> tuple[str, ...]:
    """The domain's host devices as libvirt reports them, one line each: alias, source, address as the guest has it.

    `numbers` are the guest's bus numbers, by libvirt's index of the controller (Layout.numbers).
    """
    with _logged("tell the domain's devices"):
        return tuple(_hostdev_line(element, numbers) for element in _tree(domain).iterfind("devices/hostdev"))
    return ()


def _undefining(xml: str, domain: Any) -> int:
    """Flags to undefine a domain of this XML. Only one with EFI takes one: the test driver's has neither."""
    if _tree(domain).find("os[@firmware='efi']") is None:
        return 0
    kept = ElementTree.fromstring(xml).find("os/nvram") is not None  # noqa: S314 it is ours
    return int(libvirt.VIR_DOMAIN_UNDEFINE_KEEP_NVRAM if kept else libvirt.VIR_DOMAIN_UNDEFINE_NVRAM)


def _tree(domain: Any) -> ElementTree.Element:
    return ElementTree.fromstring(domain.XMLDesc())  # noqa: S314 libvirt has made it


@contextmanager
def _reported(connection: Any, domain: Any, vm: VM) -> Iterator[None]:
    """Within, what libvirt and its QEMU tell of the domain reaches the VM."""
    shutdown = _Shutdown()
    callback = connection.domainEventRegisterAny(domain, libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, _report, (shutdown, vm))
    # Libvirt knows no reboot that ends a domain; QEMU does. The test driver has no QEMU.
    monitor = None
    if connection.getType() == "QEMU":
        monitor = libvirt_qemu.qemuMonitorEventRegister(connection, domain, "SHUTDOWN", _report_cause, shutdown)
    try:
        yield
    finally:
        with suppress(libvirt.libvirtError):
            connection.domainEventDeregisterAny(callback)
        if monitor is not None:
            with suppress(libvirt.libvirtError):
                libvirt_qemu.qemuMonitorEventDeregister(connection, monitor)


class _Shutdown:
    """Why QEMU shuts down, in its own word; libvirt's event comes after it."""

    cause = ""


def _report_cause(
    connection: Any, domain: Any, event: str, seconds: int, micros: int, details: str, shutdown: _Shutdown
) -> None:
    # The second is libvirt's own signal, after the first.
    shutdown.cause = shutdown.cause or json.loads(details)["reason"]


def _report(connection: Any, domain: Any, event: int, detail: int, to: tuple[_Shutdown, VM]) -> None:
    shutdown, vm = to
    name, details = _EVENTS.get(event, (f"event {event}", {}))
    vm.happened(name, details.get(detail, str(detail)))
    if event == libvirt.VIR_DOMAIN_EVENT_STOPPED:
        ending = _STOPPED.get(detail, Ending.TAKEN)
        vm.events.put(_QEMU_SHUTDOWN.get(shutdown.cause, ending) if ending is Ending.POWERED_OFF else ending)
    elif event == libvirt.VIR_DOMAIN_EVENT_CRASHED:
        # A domain whose crash is preserved does not stop.
        vm.events.put(Ending.PANICKED)
    else:
        vm.events.put(Changed())


def _report_loss(connection: Any, reason: int, vm: VM) -> None:
    vm.events.put(Ending.CONNECTION_LOST)


@contextmanager
def asked(what: str, fix: str = _NO_CURE) -> Iterator[None]:
    """What libvirt refuses within is a Refusal, in one line: QEMU's own words come with line breaks."""
    try:
        yield
    except libvirt.libvirtError as error:
        raise Refusal("libvirt", f"cannot {what}: {' '.join(str(error).split())}", fix) from error


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


def _hostdev_line(element: ElementTree.Element, numbers: Mapping[int, int]) -> str:
    alias, source, address = (element.find(path) for path in ("alias", "source/address", "address"))
    assert source is not None
    # libvirt gives names of its own, like hostdev0, to what the manifest doesn't name.
    name = alias.get("name", "") if alias is not None else ""
    if not name.startswith(_USER_ALIAS):
        name = "companion"
    if element.get("type") == "usb":
        port = address.get("port") if address is not None else "none"
        return f"{name}: host {source.get('bus')}:{source.get('device')} -> guest USB port {port}"
    host = source.get("uuid") or _address(source)
    if address is None:
        return f"{name}: host {host} -> guest nowhere"
    theirs = _address(address)
    return f"{name}: host {host} -> guest {replace(theirs, bus=numbers.get(theirs.bus, theirs.bus))}"


def _address(element: ElementTree.Element) -> PCIAddress:
    return PCIAddress(*(int(element.get(part, "0"), 16) for part in ("domain", "bus", "slot", "function")))
