"""spec.domain.clock."""

from typing import Annotated, Literal

from launcher.manifest.scalars import between, matching
from launcher.model import model

# A path below /usr/share/zoneinfo, and never out of it.
TimeZone = Annotated[
    str,
    matching(
        "[A-Za-z0-9][A-Za-z0-9_+-]*(/[A-Za-z0-9][A-Za-z0-9_+-]*)*", "is no time zone; expected one like Europe/Berlin"
    ),
]


@model
class UTC:
    """Without an offset, a guest's changes to its clock are gone at its next start; with one, they are kept."""

    offsetSeconds: Annotated[int, between(-(2**31), 2**31 - 1)] | None = None


@model
class Timer:
    present: bool = True


@model
class HPETTimer(Timer):
    tickPolicy: Literal["delay", "catchup", "merge", "discard"] | None = None


@model
class PITTimer(Timer):
    tickPolicy: Literal["delay", "catchup", "discard"] | None = None


@model
class RTCTimer(Timer):
    tickPolicy: Literal["delay", "catchup"] | None = None
    track: Literal["guest", "wall"] | None = None


@model
class Timers:
    hpet: HPETTimer | None = None
    kvm: Timer | None = None
    pit: PITTimer | None = None
    rtc: RTCTimer | None = None
    hyperv: Timer | None = None


@model
class Clock:
    utc: UTC | None = None
    timezone: TimeZone | None = None
    timer: Timers | None = None

    def __post_init__(self) -> None:
        if self.utc is not None and self.timezone is not None:
            raise ValueError("has both utc and timezone; expected one of them")
