"""What is asked of a domain that is defined: its state, its XML, its console, its screen; pause, resume, reset.

Each may be called from any thread: libvirt serializes. Refusal for whatever libvirt refuses.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from launcher.runtime.guest import asked
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

_PART = 1 << 16  # bytes of a screenshot at once


@dataclass(frozen=True)
class VMState:
    """Libvirt's state of a domain and why it is in it, in words: paused, ioerror."""

    state: str
    reason: str


def state(domain: Any) -> VMState:
    with asked("tell the domain's state"):
        number, reason = domain.state()
    if number >= len(_STATES):
        return VMState("unknown", "unknown")
    name, reasons = _STATES[number]
    return VMState(name, reasons[reason] if reason < len(reasons) else "unknown")


@dataclass(frozen=True)
class Screenshot:
    """A picture of the guest's screen: its type, image/png or image/x-portable-pixmap, and libvirt's stream of it."""

    mime_type: str
    stream: Any

    def read(self) -> bytes:
        """The next part, of 64 KiB at most; empty at the end."""
        with asked("read the screenshot"):
            part = bytes(self.stream.recv(_PART))
            if not part:
                self.stream.finish()
        return part

    def close(self) -> None:
        """Whoever does not want the rest."""
        with suppress(Refusal), asked("leave the screenshot"):
            self.stream.abort()


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


def screen(domain: Any) -> str:
    """The path of the unix socket on which QEMU serves the screen by VNC. Refusal where there is none."""
    tree = ElementTree.fromstring(xml(domain))  # noqa: S314 it is libvirt's
    listen = tree.find("devices/graphics[@type='vnc']/listen[@type='socket']")
    path = None if listen is None else listen.get("socket")
    if path is None:
        raise _no_screen()
    return path


def screenshot(domain: Any) -> Screenshot:
    """A picture of what the first screen shows now. Refusal where there is none."""
    tree = ElementTree.fromstring(xml(domain))  # noqa: S314 it is libvirt's
    if tree.find("devices/video/model") is None or tree.find("devices/video/model[@type='none']") is not None:
        raise _no_screen()
    with asked("take a screenshot"):
        stream = domain.connect().newStream()
        return Screenshot(str(domain.screenshot(stream, 0)), stream)


def _no_screen() -> Refusal:
    return Refusal("the VM", "has no screen", "leave autoattachGraphicsDevice: false out of its manifest")
