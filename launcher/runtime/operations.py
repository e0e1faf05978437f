"""Operations on a defined domain: its state, its XML, its console, its screen, its agent; pause, resume, reset.

Each may be called from any thread, since libvirt serializes. Each raises Refusal for what libvirt refuses.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from launcher.runtime.guest import asking_libvirt, words_of
from program.errors import Refusal

# By libvirt's numbers (virDomainState, https://libvirt.org/html/libvirt-libvirt-domain.html): virsh's word for a state,
# and the reasons for it.
_STATES: tuple[tuple[str, Mapping[int, str]], ...] = (
    ("no state", {}),
    ("running", words_of("VIR_DOMAIN_RUNNING_")),
    ("blocked", {}),
    ("paused", words_of("VIR_DOMAIN_PAUSED_")),
    # VIR_DOMAIN_SHUTDOWN_ is also the prefix of flags.
    ("shutting down", {1: "user"}),
    ("shutoff", words_of("VIR_DOMAIN_SHUTOFF_")),
    ("crashed", words_of("VIR_DOMAIN_CRASHED_")),
    ("pmsuspended", {}),
)

_PART = 1 << 16  # bytes of a screenshot at once


@dataclass(frozen=True)
class VMState:
    """libvirt's state of a domain, and the reason for it, in words: paused, ioerror."""

    state: str
    reason: str


def state(domain: Any) -> VMState:
    with asking_libvirt("tell the domain's state"):
        number, reason = domain.state()
    if number >= len(_STATES):
        return VMState("unknown", "unknown")
    name, reasons = _STATES[number]
    return VMState(name, reasons.get(reason, "unknown"))


@dataclass(frozen=True)
class Screenshot:
    """A picture of the guest's screen: its type, image/png or image/x-portable-pixmap, and libvirt's stream."""

    mime_type: str
    stream: Any

    def read(self) -> bytes:
        """Return the next part, at most 64 KiB; empty at the end."""
        with asking_libvirt("read the screenshot"):
            part = bytes(self.stream.recv(_PART))
            if not part:
                self.stream.finish()
        return part

    def close(self) -> None:
        """Leave the rest of the stream unread."""
        with suppress(Refusal), asking_libvirt("leave the screenshot"):
            self.stream.abort()


def xml(domain: Any) -> str:
    """Return the domain's XML as it is now, without secrets."""
    with asking_libvirt("tell the domain's XML"):
        return str(domain.XMLDesc())


def has_agent(domain: Any) -> bool | None:
    """Return whether the guest's agent has opened its channel; None if the domain has no such channel."""
    target = _devices(domain).find("channel/target[@name='org.qemu.guest_agent.0']")
    return None if target is None else target.get("state") == "connected"


def pause(domain: Any) -> None:
    """Stop the domain's virtual CPUs, unless it is paused already."""
    if state(domain).state != "paused":
        with asking_libvirt("pause the domain"):
            domain.suspend()


def resume(domain: Any) -> None:
    """Let the domain's virtual CPUs run, unless it runs already."""
    if state(domain).state != "running":
        with asking_libvirt("resume the domain"):
            domain.resume()


def reset(domain: Any) -> None:
    """Press the domain's reset button: the guest is not asked, and its firmware starts anew."""
    with asking_libvirt("reset the domain"):
        domain.reset()


def console(domain: Any) -> str:
    """Return the path of the unix socket on which QEMU serves the first serial port; Refusal if there is none."""
    source = _devices(domain).find("serial[@type='unix']/source")
    path = None if source is None else source.get("path")
    if path is None:
        raise Refusal("the VM", "has no serial console", "leave autoattachSerialConsole: false out of its manifest")
    return path


def screen(domain: Any) -> str:
    """Return the path of the unix socket on which QEMU serves the screen by VNC; Refusal if there is none."""
    listen = _devices(domain).find("graphics[@type='vnc']/listen[@type='socket']")
    path = None if listen is None else listen.get("socket")
    if path is None:
        raise _no_screen()
    return path


def screenshot(domain: Any) -> Screenshot:
    """Take a picture of the first screen; Refusal if there is none."""
    model = _devices(domain).find("video/model")
    if model is None or model.get("type") == "none":
        raise _no_screen()
    with asking_libvirt("take a screenshot"):
        stream = domain.connect().newStream()
        return Screenshot(str(domain.screenshot(stream, 0)), stream)


def _devices(domain: Any) -> ElementTree.Element:
    devices = ElementTree.fromstring(xml(domain)).find("devices")  # noqa: S314 it is libvirt's
    assert devices is not None, "every domain has some"
    return devices


def _no_screen() -> Refusal:
    return Refusal("the VM", "has no screen", "leave autoattachGraphicsDevice: false out of its manifest")
