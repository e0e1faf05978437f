"""<clock> and its timers."""

from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.manifest.clock import UTC, Clock, Timer, Timers

#: Libvirt's name for each of KubeVirt's timers, in the order in which KubeVirt writes them.
_TIMERS = {"rtc": "rtc", "pit": "pit", "kvm": "kvmclock", "hpet": "hpet", "hyperv": "hypervclock"}


def clock(clock: Clock | None) -> list[Element]:
    """Return <clock>: in UTC if the manifest has timers alone; none if it has no clock, which is UTC to libvirt."""
    if clock is None:
        return []
    if clock.timezone is not None:
        element = E.clock(offset="timezone", timezone=clock.timezone)
    elif clock.utc is not None:
        element = E.clock(offset="utc", adjustment=_adjustment(clock.utc))
    else:
        element = E.clock(offset="utc")
    if clock.timer is not None:
        element.extend(_timers(clock.timer))
    return [element]


def _adjustment(utc: UTC) -> str:
    """Return seconds, with which libvirt keeps what a guest does to its clock; `reset` forgets it at every start."""
    return "reset" if utc.offsetSeconds is None else str(utc.offsetSeconds)


def _timers(timers: Timers) -> list[Element]:
    return [
        _timer(libvirts, timer) for name, libvirts in _TIMERS.items() if (timer := getattr(timers, name)) is not None
    ]


def _timer(name: str, timer: Timer) -> Element:
    element = E.timer(name=name)
    for field, attribute in (("tickPolicy", "tickpolicy"), ("track", "track")):
        value = getattr(timer, field, None)
        if value is not None:
            element.set(attribute, value)
    element.set("present", "yes" if timer.present else "no")
    return element
