"""spec.domain.features and spec.domain.clock."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from launcher.fields.objects import Object, one_of
from launcher.fields.scalars import Matching, Text
from program.errors import Nonsense


class FeatureState(Object):
    """The state of a feature. A feature that the manifest names is on, unless it says otherwise."""

    enabled: bool = True


class APIC(FeatureState):
    """The APIC. `endOfInterrupt`: KVM's paravirtual end of interrupt, which KubeVirt takes and forgets."""

    endOfInterrupt: bool = False


class Spinlocks(FeatureState):
    """Spinlocks. `spinlocks`: how often a guest tries before it tells the hypervisor; 2**32-1 is never."""

    spinlocks: Annotated[int, Field(ge=4096, le=2**32 - 1)] = 4096


class SynICTimer(FeatureState):
    direct: FeatureState | None = None


class VendorID(FeatureState):
    vendorid: (
        Annotated[Text, Matching("[^,]{1,12}", "is no vendor ID", "expected 1 to 12 ASCII characters without a comma")]
        | None
    ) = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.enabled and self.vendorid is None:
            raise Nonsense("is enabled and has no vendorid", "expected the text that the guest sees")
        if self.vendorid is not None and not self.vendorid.isascii():
            raise Nonsense(f"vendorid {self.vendorid!r} is not ASCII", "expected 1 to 12 characters of one byte")
        return self


class TLBFlush(FeatureState):
    direct: FeatureState | None = None
    extended: FeatureState | None = None


#: What needs what else, each after whatever needs it (KubeVirt pkg/defaults/base/hyperv.go): what is missing is turned
#: on with it, and what is disabled is an error.
_NEEDS = (
    ("evmcs", "vapic"),
    ("ipi", "vpindex"),
    ("tlbflush", "vpindex"),
    ("synictimer", "synic"),
    ("synic", "vpindex"),
)


class Hyperv(Object):
    relaxed: FeatureState | None = None
    vapic: FeatureState | None = None
    spinlocks: Spinlocks | None = None
    vpindex: FeatureState | None = None
    runtime: FeatureState | None = None
    synic: FeatureState | None = None
    synictimer: SynICTimer | None = None
    reset: FeatureState | None = None
    vendorid: VendorID | None = None
    frequencies: FeatureState | None = None
    reenlightenment: FeatureState | None = None
    tlbflush: TLBFlush | None = None
    ipi: FeatureState | None = None
    evmcs: FeatureState | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        on = self.on()
        if self._flushes_directly() and self.vapic is not None and not self.vapic.enabled:
            raise Nonsense("tlbflush.direct needs vapic, which is disabled", "leave one of the two out")
        for name, needed in _NEEDS:
            state = getattr(self, needed)
            if name in on and state is not None and not state.enabled:
                raise Nonsense(f"{name} needs {needed}, which is disabled", "leave one of the two out")
        return self

    def on(self) -> frozenset[str]:
        """Return the names of the features that are on: those that the manifest names, and those that these need."""
        on = {name for name, state in self if is_on(state)}
        for name, needed in _NEEDS:
            if name in on:
                on.add(needed)
        if self._flushes_directly():
            on.add("vapic")  # QEMU's docs/system/i386/hyperv.rst; KubeVirt leaves the guest without a start
        return frozenset(on)

    def _flushes_directly(self) -> bool:
        return self.tlbflush is not None and self.tlbflush.enabled and is_on(self.tlbflush.direct)


class KVM(Object):
    hidden: bool = False


class Features(Object):
    """Features of the machine and the hypervisor. One that is not named is as the machine has it; `acpi` is on."""

    acpi: FeatureState = FeatureState.model_construct()
    apic: APIC | None = None
    hyperv: Hyperv | None = None
    hypervPassthrough: FeatureState | None = None
    smm: FeatureState | None = None
    kvm: KVM | None = None
    pvspinlock: FeatureState | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.hyperv is not None and is_on(self.hypervPassthrough):
            raise Nonsense("has both hyperv and hypervPassthrough", "expected one of them")
        return self


def is_on(feature: FeatureState | None) -> bool:
    """Return whether a feature is named, and not disabled."""
    return feature is not None and feature.enabled


# A path below /usr/share/zoneinfo, and never out of it.
TimeZone = Annotated[
    Text,
    Matching(
        "[A-Za-z0-9][A-Za-z0-9_+-]*(/[A-Za-z0-9][A-Za-z0-9_+-]*)*", "is no time zone", "expected one like Europe/Berlin"
    ),
]


class UTC(Object):
    """A clock in UTC. With an offset, the guest's changes of the clock outlive its next start; without one they are
    lost."""

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
