"""The domain in libvirt: define, start, stop, and libvirt's events of it. Only this and saving import libvirt."""

import errno
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from shutil import copytree
from tempfile import TemporaryDirectory
from typing import Any
from xml.etree import ElementTree  # lxml costs 5 MB in a process that stays

import libvirt
import libvirt_qemu

from launcher.runtime.capabilities import least_on_passt, names_in, unknown_model, without_passt
from launcher.runtime.embedded import prepared
from launcher.runtime.events import Changed, NotStarted, Started
from launcher.runtime.hostdevs import Hostdev, hostdevs_in
from launcher.runtime.iommufd import IOMMUFD
from launcher.runtime.memory_file import Restored
from launcher.runtime.vm import VM, having_threads
from launcher.vm.versions import Version, missing, newer_elements, numbered, refuse_newer, version_text
from program.ending import Ending
from program.errors import Refusal
from program.problem import Problem, one_line

_log = logging.getLogger(__name__)

_KEEPALIVE = 5  # seconds between two signs of life of a libvirt in another process; three missed ones are its end
_AGENT = 5  # seconds for the guest's agent to answer
_NO_CURE = "docs/troubleshooting.md says more of libvirt's refusals"


def words_of(prefix: str) -> Mapping[int, str]:
    """Return the words of libvirt's constants with this prefix, by value: VIR_DOMAIN_PAUSED_FROM_SNAPSHOT is "from
    snapshot"."""
    names = (name for name in vars(libvirt) if name.startswith(prefix))
    return {getattr(libvirt, name): name.removeprefix(prefix).lower().replace("_", " ") for name in names}


# virDomainEventType, and the virDomainEvent...DetailType of each.
_EVENTS = {
    getattr(libvirt, f"VIR_DOMAIN_EVENT_{event}"): (event.lower(), words_of(f"VIR_DOMAIN_EVENT_{event}_"))
    for event in ("DEFINED", "UNDEFINED", "STARTED", "SUSPENDED", "RESUMED", "STOPPED", "SHUTDOWN", "PMSUSPENDED")
} | {libvirt.VIR_DOMAIN_EVENT_CRASHED: ("crashed", words_of("VIR_DOMAIN_EVENT_CRASHED_"))}

_STOPPED = {
    libvirt.VIR_DOMAIN_EVENT_STOPPED_SHUTDOWN: Ending.POWERED_OFF,
    libvirt.VIR_DOMAIN_EVENT_STOPPED_CRASHED: Ending.PANICKED,
    libvirt.VIR_DOMAIN_EVENT_STOPPED_FAILED: Ending.QEMU_DIED,  # its monitor closed without a word
}
# Why QEMU shuts down, if the guest has not asked for it (ShutdownCause in QEMU's qapi/run-state.json).
_QEMU_SHUTDOWN = {
    "guest-reset": Ending.REBOOTED,
    "guest-panic": Ending.PANICKED,
    "host-error": Ending.QEMU_DIED,
    "host-signal": Ending.QEMU_DIED,
}


def _opened(uri: str) -> Any:
    _run_event_loop()
    with asking_libvirt(
        f"be reached at {uri}", "expected a libvirt there, leave --connect out for the one in the launcher"
    ):
        return libvirt.open(uri)


@contextmanager
def connected(uri: str, vm: VM) -> Iterator[Any]:
    """Connect to libvirt; the loss of the connection ends the VM. Refusal if libvirt cannot be reached, or fails."""
    connection = _opened(uri)
    # Only the connection to a driver in another process can be lost, and takes these calls.
    with suppress(libvirt.libvirtError):
        connection.registerCloseCallback(_report_loss, vm)
    with suppress(libvirt.libvirtError):
        connection.setKeepAlive(_KEEPALIVE, 3)
    try:
        with asking_libvirt(f"go on at {uri}"):
            yield connection
    finally:
        with suppress(libvirt.libvirtError):
            connection.unregisterCloseCallback()
        with suppress(libvirt.libvirtError):
            connection.close()


@contextmanager
def defined(connection: Any, xml: str, vm: VM) -> Iterator[Any]:
    """Define the domain, and report its events to the VM; undefine it afterwards.

    Raise Refusal if libvirt rejects the XML, is too old for it, or already has a domain of this name, which is not
    ours. EFI's variables are removed with the domain, unless the XML names their file.
    """
    tree = ElementTree.fromstring(xml)  # noqa: S314 it is ours
    refuse_newer(newer_elements(tree), version(connection))
    name = tree.findtext("name")
    if name in (domain.name() for domain in connection.listAllDomains()):
        raise Refusal("libvirt", f"has a domain called {name} already", "undefine it, or use another connection")
    has_passt = tree.find("devices/interface/backend[@type='passt']") is not None
    unless = ", unless this libvirt is built without passt, as Debian 12's is" if has_passt else ""
    with asking_libvirt("define the domain", f"report it, with what gpu-launcher render prints{unless}"):
        domain = connection.defineXMLFlags(xml, libvirt.VIR_DOMAIN_DEFINE_VALIDATE)
    try:
        with _reported(connection, domain, vm):
            yield domain
    finally:
        _undefine(domain, xml)


def give_iommufd(domain: Any, xml: str, iommufd: IOMMUFD | None) -> None:
    """Give libvirt /dev/iommu for a domain whose XML asks for it, before its start; Refusal if it is not open."""
    asks = ElementTree.fromstring(xml).find("iommufd")  # noqa: S314 it is ours
    if asks is None:
        return
    if iommufd is None:
        raise Refusal("/dev/iommu", "could not be opened", "gpu-launcher check says why")
    if not iommufd.counts_per_process:
        _log.warning(
            "IOMMUFD counts what all VMs of user %d on this node have pinned as one, and the limit of each has to "
            "cover it: to have it count for each takes the capability SYS_RESOURCE",
            os.getuid(),
        )
    with asking_libvirt("take /dev/iommu", "expected a libvirt on this machine"):
        domain.FDAssociate(asks.get("fdgroup"), [iommufd.descriptor], 0)


def forget(connection: Any, name: str, xml: str) -> None:
    """End and undefine the domain of this name and XML, if a killed launcher has left one."""
    for domain in connection.listAllDomains():
        if domain.name() == name:
            end(domain)
            _undefine(domain, xml)


def _undefine(domain: Any, xml: str) -> None:
    with _logged("undefine the domain"):
        flags = 0
        # The test driver has no EFI, and takes no flag.
        if _tree(domain).find("os[@firmware='efi']") is not None:
            names_variables = ElementTree.fromstring(xml).find("os/nvram") is not None  # noqa: S314 it is ours
            flags = libvirt.VIR_DOMAIN_UNDEFINE_KEEP_NVRAM if names_variables else libvirt.VIR_DOMAIN_UNDEFINE_NVRAM
        domain.undefineFlags(flags)


def version(connection: Any) -> Version:
    """Return the version of the libvirt at the other end."""
    with asking_libvirt("tell its version"):
        return numbered(connection.getLibVersion())


def versions_at(uri: str) -> tuple[Version, Version | None]:
    """Return the versions of the libvirt at the URI and of its QEMU; None for QEMU's if the hypervisor is another.
    Raise Refusal as connected() does."""
    connection = _opened(uri)
    with asking_libvirt(f"tell its versions at {uri}"):
        qemu = numbered(connection.getVersion()) if connection.getType() == "QEMU" else None
        return version(connection), qemu


def unknown_names(connection: Any, xml: str) -> tuple[Problem, ...]:
    """Return a problem if QEMU lacks the machine or the CPU model of a domain of ours, or if libvirt is built without
    the passt that it uses; () for another hypervisor. Raise Refusal if libvirt cannot tell, as when QEMU has no KVM."""
    if connection.getType() != "QEMU":
        return ()
    names = names_in(xml)

    def capabilities(machine: str | None) -> str:
        return str(connection.getDomainCapabilities(None, names.architecture, machine, names.accelerator))

    with asking_libvirt("tell what QEMU can do"):
        try:
            problem = unknown_model(names, capabilities(names.machine))
        except libvirt.libvirtError:
            capabilities(None)  # so it was the machine
            version = version_text(numbered(connection.getVersion()))
            problem = missing(names.machine, f"is no machine of QEMU {version}, which is here")
    if problem is None and names.by_passt is not None:
        try:
            connection.domainXMLToNative("qemu-argv", least_on_passt(names))
        except libvirt.libvirtError as error:
            is_unread = error.get_error_code() == libvirt.VIR_ERR_XML_ERROR and "'passt'" in str(error)
            problem = without_passt(names) if is_unread else None
    return () if problem is None else (problem,)


def refuse_unknown_names(connection: Any, xml: str) -> None:
    """Raise Refusal for the problems of unknown_names(). Those that libvirt cannot tell show when the domain starts."""
    problems: tuple[Problem, ...] = ()
    with suppress(Refusal):
        problems = unknown_names(connection, xml)
    if problems:
        raise Refusal.of(problems)


def unknown_names_at(uri: str, xml: str) -> tuple[Problem, ...]:
    """Do as unknown_names() does, and raise Refusal as connected() does."""
    return unknown_names(_opened(uri), xml)


def unknown_names_apart(root: Path, xml: str) -> tuple[Problem, ...]:
    """Do as unknown_names() does, in a process of its own: a driver keeps one root for the life of its process. A guest
    may run in `root`, so the driver gets a temporary one, with a copy of the cache. OSError if that cannot be made."""
    with TemporaryDirectory(prefix="gpu-launcher-", ignore_cleanup_errors=True) as place, prepared(Path(place)):
        with suppress(OSError):
            copytree(root / "cache", Path(place, "cache"))
        return unknown_names_at(f"qemu:///embed?root={place}", xml)


def library_version() -> Version:
    """Return the version of the libvirt in this process, which has the embedded driver."""
    return numbered(libvirt.getVersion())


def look_at_qemu(uri: str) -> None:
    """Have libvirt find out what its QEMU can do, which takes 0.6 s and is remembered. Refusal if libvirt cannot be
    reached; problems of QEMU show when a domain starts."""
    connection = _opened(uri)
    with suppress(libvirt.libvirtError):
        connection.getDomainCapabilities()
    connection.close()


def start(
    domain: Any,
    vm: VM,
    *,
    paused: bool,
    printed: Callable[[], str] = str,
    restore: Callable[[], Restored | None] = lambda: None,
) -> None:
    """Start the domain in a thread, since that takes minutes with VFIO; the event Started or NotStarted follows.
    `printed` returns what QEMU has printed. `restore` starts a suspended domain with stopped CPUs, and returns None if
    there is none."""
    flags = libvirt.VIR_DOMAIN_START_PAUSED if paused else 0

    def words(error: libvirt.libvirtError) -> str:
        # QEMU has ended before libvirt connected to it. libvirt quotes QEMU only if it has also been reaped by then.
        is_gone = error.get_int1() == errno.ECONNREFUSED
        return f"{error}: {printed()}" if is_gone else str(error)

    def create() -> None:
        try:
            with asking_libvirt("start the domain", "gpu-launcher check looks at what QEMU does not say", words):
                if (restored := restore()) is None:
                    domain.createWithFlags(flags)
        except Exception as error:
            vm.events.put(NotStarted(error))
        else:
            vm.events.put(Started(restored))

    with having_threads("libvirt"):
        threading.Thread(target=create, daemon=True).start()


def ask_to_shut_down(domain: Any) -> None:
    """Press the guest's power button; resume a paused guest first."""
    with _logged("resume the guest"):
        if domain.state()[0] == libvirt.VIR_DOMAIN_PAUSED:
            _log.info("resuming the guest: paused, it could not shut down")
            domain.resume()
    with _logged("ask the guest"):
        domain.shutdown()


def end(domain: Any) -> None:
    """End the domain, if it still runs."""
    with _logged("end the domain"):
        domain.destroy()


def runs(domain: Any) -> bool:
    """Return whether the guest's CPUs run."""
    try:
        return bool(domain.state()[0] == libvirt.VIR_DOMAIN_RUNNING)
    except libvirt.libvirtError:
        return False


def statistics(domain: Any) -> Mapping[str, Any]:
    """Return libvirt's statistics of a domain, by the names of virConnectGetAllDomainStats: `vcpu.0.time`, in
    nanoseconds. Those that QEMU has to supply are missing while libvirt waits for QEMU."""
    groups = ("BALLOON", "VCPU", "INTERFACE", "BLOCK")
    wanted = sum(getattr(libvirt, f"VIR_DOMAIN_STATS_{group}") for group in groups)
    with asking_libvirt("tell the domain's statistics"):
        flags = libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT
        ((_, values),) = domain.connect().domainListGetStats([domain], wanted, flags)
    numbers: Mapping[str, Any] = values
    return numbers


def qemu_of(domain: Any) -> str:
    """Return the version of the QEMU that libvirt has, like 10.0.2."""
    with asking_libvirt("tell QEMU's version"):
        return version_text(numbered(domain.connect().getVersion()))


def ask_agent(domain: Any, command: str, seconds: int) -> str:
    """Send a command to the guest's agent and return its answer, both JSON of its protocol (launcher.runtime.agent).

    libvirt first makes sure that the agent listens, so this takes at most twice as many seconds. Raise Refusal if there
    is no agent, or it does not answer or refuses.
    """
    with _agent_asked():
        return str(libvirt_qemu.qemuAgentCommand(domain, command, seconds, 0))


def set_keys(domain: Any, user: str, keys: Sequence[str]) -> None:
    """Have the guest's agent replace a user's ssh keys. Raise Refusal as ask_agent() does."""
    with _agent_asked(f"the ssh keys of {user!r}"):
        domain.authorizedSSHKeysSet(user, list(keys), 0)


def set_password(domain: Any, user: str, password: str) -> None:
    """Have the guest's agent set a user's password. Raise Refusal as ask_agent() does."""
    with _agent_asked(f"the password of {user!r}"):
        domain.setUserPassword(user, password, 0)


@contextmanager
def agent_told(domain: Any, listener: Callable[[bool], object]) -> Iterator[None]:
    """Call `listener` in libvirt's thread when the guest's agent connects (True), and when it disconnects (False)."""

    def tell(connection: Any, domain: Any, state: int, reason: int, opaque: object) -> None:
        listener(state == libvirt.VIR_CONNECT_DOMAIN_EVENT_AGENT_LIFECYCLE_STATE_CONNECTED)

    connection = domain.connect()
    with suppress(libvirt.libvirtError):  # older than 5.10: each call has libvirt's own deadline then
        domain.agentSetResponseTimeout(_AGENT, 0)
    with asking_libvirt("tell of the guest's agent"):
        callback = connection.domainEventRegisterAny(domain, libvirt.VIR_DOMAIN_EVENT_ID_AGENT_LIFECYCLE, tell, None)
    try:
        yield
    finally:
        with suppress(libvirt.libvirtError):
            connection.domainEventDeregisterAny(callback)


@contextmanager
def _agent_asked(what: str = "") -> Iterator[None]:
    """Raise Refusal for what libvirt or the agent refuses; `what`: what the agent was to set."""
    try:
        yield
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_AGENT_UNRESPONSIVE:
            fix = "install qemu-guest-agent in the guest and start it, or wait until it has started"
        else:
            fix = "its log in the guest may say more"
        words = f"cannot set {what}: {error}" if what else str(error)
        raise Refusal("the guest's agent", one_line(words), fix) from error


def hostdevs(domain: Any, numbers: Mapping[int, int]) -> tuple[Hostdev, ...]:
    """Return the domain's host devices, as hostdevs_in() does. Refusal if libvirt does not return its XML."""
    with asking_libvirt("tell the domain's devices"):
        tree = _tree(domain)
    return hostdevs_in(tree, numbers)


def _tree(domain: Any) -> ElementTree.Element:
    return ElementTree.fromstring(domain.XMLDesc())  # noqa: S314 libvirt has made it


@contextmanager
def _reported(connection: Any, domain: Any, vm: VM) -> Iterator[None]:
    """Report libvirt's and QEMU's events of the domain to the VM."""
    shutdown = _Shutdown()
    callback = connection.domainEventRegisterAny(domain, libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, _report, (shutdown, vm))
    # libvirt does not tell that a reboot has ended the domain; QEMU does. The test driver has no QEMU.
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
    """Why QEMU shuts down, in its own word, which comes before libvirt's event."""

    cause = ""


def _report_cause(
    connection: Any, domain: Any, event: str, seconds: int, micros: int, details: str, shutdown: _Shutdown
) -> None:
    # QEMU's second SHUTDOWN is for libvirt's signal, which follows the first.
    shutdown.cause = shutdown.cause or json.loads(details)["reason"]


def _report(connection: Any, domain: Any, event: int, detail: int, to: tuple[_Shutdown, VM]) -> None:
    shutdown, vm = to
    name, details = _EVENTS.get(event, (f"event {event}", {}))
    vm.happened(name, details.get(detail, str(detail)))
    if event == libvirt.VIR_DOMAIN_EVENT_STOPPED:
        ending = _STOPPED.get(detail, Ending.TAKEN)
        vm.events.put(_QEMU_SHUTDOWN.get(shutdown.cause, ending) if ending is Ending.POWERED_OFF else ending)
    elif event == libvirt.VIR_DOMAIN_EVENT_CRASHED:
        vm.events.put(Ending.PANICKED)  # a domain whose crash is preserved does not stop
    else:
        vm.events.put(Changed())


def _report_loss(connection: Any, reason: int, vm: VM) -> None:
    vm.events.put(Ending.CONNECTION_LOST)


@contextmanager
def asking_libvirt(
    what: str, fix: str = _NO_CURE, words: Callable[[libvirt.libvirtError], str] = str
) -> Iterator[None]:
    """Raise Refusal for what libvirt refuses, in one line: QEMU's own words come with line breaks."""
    try:
        yield
    except libvirt.libvirtError as error:
        raise Refusal("libvirt", f"cannot {what}: {' '.join(words(error).split())}", fix) from error


@contextmanager
def _logged(what: str) -> Iterator[None]:
    """Log what libvirt refuses, unless the domain is gone already."""
    try:
        yield
    except libvirt.libvirtError as error:
        if error.get_error_code() not in (libvirt.VIR_ERR_NO_DOMAIN, libvirt.VIR_ERR_OPERATION_INVALID):
            _log.error("libvirt cannot %s: %s", what, error)


@cache
def _run_event_loop() -> None:
    """Start libvirt's event loop in a thread of its own, before the first connection; once per process."""
    # libvirt would also print the errors that it raises.
    libvirt.registerErrorHandler(lambda context, error: None, None)
    libvirt.virEventRegisterDefaultImpl()

    def loop() -> None:
        while True:
            libvirt.virEventRunDefaultImpl()

    threading.Thread(target=loop, daemon=True).start()
