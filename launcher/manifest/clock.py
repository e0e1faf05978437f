"""spec.domain.clock."""

from typing import Annotated, Literal

from pydantic import Field

from launcher.manifest.objects import Object, one_of
from launcher.manifest.scalars import Matching, Text

# A path below /usr/share/zoneinfo, and never out of it.
TimeZone = Annotated[
    Text,
    Matching(
        "[A-Za-z0-9][A-Za-z0-9_+-]*(/[A-Za-z0-9][A-Za-z0-9_+-]*)*", "is no time zone", "expected one like Europe/Berlin"
    ),
]


class UTC(Object):
    """A clock in UTC. With an offset, what the guest changes of it is kept over its next start; without, it is gone."""

    offsetSeconds: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] | None = None


class Timer(Object):
    present: bool = True


class HPETTimer(Timer):
    tickPolicy: Literal["delay", "catchup", "merge", "discard"] | None = None


class PITTimer(Timer):
    tickPolicy: Literal["delay", "catchup", "discard"] | None = None


class RTCTimer(Timer):
    tickPolicy: Literal["delay", "catchup"] | None = None
    track: Literal["guest", "wall"] | None = None


class Timers(Object):
    hpet: HPETTimer | None = None
    kvm: Timer | None = None
    pit: PITTimer | None = None
    rtc: RTCTimer | None = None
    hyperv: Timer | None = None


class ClockOffset(Object):
    utc: UTC | None = None
    timezone: TimeZone | None = None

    _check = one_of("utc", "timezone")


class Clock(ClockOffset):
    timer: Timers | None = None
