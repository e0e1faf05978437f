"""<clock> and its timers."""

from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.manifest.clock import UTC, Timer, Timers
from launcher.manifest.spec import Domain

#: Libvirt's name for each of KubeVirt's timers, in the order in which KubeVirt writes them.
_TIMERS = {"rtc": "rtc", "pit": "pit", "kvm": "kvmclock", "hpet": "hpet", "hyperv": "hypervclock"}


def clock(domain: Domain) -> list[Element]:
    """UTC where the manifest has timers alone; nothing where it has no clock, which is UTC to libvirt."""
    said = domain.clock
    if said is None:
        return []
    if said.timezone is not None:
        element = E.clock(offset="timezone", timezone=said.timezone)
    elif said.utc is not None:
        element = E.clock(offset="utc", adjustment=_adjustment(said.utc))
    else:
        element = E.clock(offset="utc")
    if said.timer is not None:
        element.extend(_timers(said.timer))
    return [element]


def _adjustment(utc: UTC) -> str:
    """Seconds, after which libvirt keeps what a guest does to its clock; `reset` forgets it at every start."""
    return "reset" if utc.offsetSeconds is None else str(utc.offsetSeconds)


def _timers(said: Timers) -> list[Element]:
    return [
        _timer(libvirts, getattr(said, name)) for name, libvirts in _TIMERS.items() if getattr(said, name) is not None
    ]


def _timer(name: str, said: Timer) -> Element:
    element = E.timer(name=name)
    for field, attribute in (("tickPolicy", "tickpolicy"), ("track", "track")):
        value = getattr(said, field, None)
        if value is not None:
            element.set(attribute, value)
    element.set("present", "yes" if said.present else "no")
    return element
