"""What is asked of a domain that is defined: its state, its XML, its console; pause, resume, reset.

Each may be called from any thread: libvirt serializes. Refusal for whatever libvirt refuses.
"""

from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from launcher.running.guest import asked
from program.errors import Refusal

# By libvirt's numbers, which stay: virDomainState, and the enumeration of each state's reasons, virDomainPausedReason
# and so on (https://libvirt.org/html/libvirt-libvirt-domain.html). The words are virsh's, or the names of the numbers.
_STATES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("no state", ("unknown",)),
    ("running", (
        "unknown", "booted", "migrated", "restored", "from snapshot", "unpaused", "migration canceled", "save canceled",
        "wakeup", "crashed", "postcopy", "postcopy failed",
    )),
    ("blocked", ("unknown",)),
    ("paused", (
        "unknown", "user", "migration", "save", "dump", "ioerror", "watchdog", "from snapshot", "shutting down",
        "snapshot", "crashed", "starting up", "postcopy", "postcopy failed", "api error",
    )),
    ("shutting down", ("unknown", "user")),
    ("shutoff", (
        "unknown", "shutdown", "destroyed", "crashed", "migrated", "saved", "failed", "from snapshot", "daemon",
    )),
    ("crashed", ("unknown", "panicked")),
    ("pmsuspended", ("unknown",)),
)  # fmt: skip


@dataclass(frozen=True)
class State:
    """Libvirt's state of a domain and why it is in it, in words: paused, ioerror."""

    state: str
    reason: str


def state(domain: Any) -> State:
    with asked("tell the domain's state"):
        number, reason = domain.state()
    if number >= len(_STATES):
        return State("unknown", "unknown")
    name, reasons = _STATES[number]
    return State(name, reasons[reason] if reason < len(reasons) else "unknown")


def xml(domain: Any) -> str:
    """The domain as it is now, without secrets."""
    with asked("tell the domain's XML"):
        return str(domain.XMLDesc())


def pause(domain: Any) -> None:
    """Stop its virtual CPUs; one that is paused stays so."""
    if state(domain).state != "paused":
        with asked("pause the domain"):
            domain.suspend()


def resume(domain: Any) -> None:
    """Let its virtual CPUs run; one that runs goes on."""
    if state(domain).state != "running":
        with asked("resume the domain"):
            domain.resume()


def reset(domain: Any) -> None:
    """Press its reset button: the guest gets no word of it, and its firmware starts anew."""
    with asked("reset the domain"):
        domain.reset()


def console(domain: Any) -> str:
    """The path of the unix socket on which QEMU serves the first serial port. Refusal where it has none."""
    tree = ElementTree.fromstring(xml(domain))  # noqa: S314 it is libvirt's
    source = tree.find("devices/serial[@type='unix']/source")
    path = None if source is None else source.get("path")
    if path is None:
        raise Refusal(
            "the VM",
            "has no serial console",
            "leave autoattachSerialConsole: false out of its manifest",
        )
    return path
