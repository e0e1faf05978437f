"""<clock> and its timers."""

from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.manifest.clock import Clock, Timer

#: Libvirt's name for each of KubeVirt's timers, in the order in which KubeVirt writes them.
_TIMERS = {"rtc": "rtc", "pit": "pit", "kvm": "kvmclock", "hpet": "hpet", "hyperv": "hypervclock"}


def clock(clock: Clock | None) -> list[Element]:
    """Return <clock>: in UTC if the manifest has timers alone; none if it has no clock, which is UTC to libvirt."""
    if clock is None:
        return []
    if clock.timezone is not None:
        element = E.clock(offset="timezone", timezone=clock.timezone)
    elif clock.utc is not None:
        # With an offset libvirt keeps what the guest does to its clock; `reset` forgets that at every start.
        offset = clock.utc.offsetSeconds
        element = E.clock(offset="utc", adjustment="reset" if offset is None else str(offset))
    else:
        element = E.clock(offset="utc")
    for name, libvirts in _TIMERS.items():
        if (timer := getattr(clock.timer, name, None)) is not None:
            element.append(_timer(libvirts, timer))
    return [element]


def _timer(name: str, timer: Timer) -> Element:
    element = E.timer(name=name)
    for field, attribute in (("tickPolicy", "tickpolicy"), ("track", "track")):
        value = getattr(timer, field, None)
        if value is not None:
            element.set(attribute, value)
    element.set("present", "yes" if timer.present else "no")
    return element
