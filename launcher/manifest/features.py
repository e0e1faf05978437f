"""spec.domain.features."""

from typing import Annotated

from launcher.manifest.scalars import between
from launcher.model import model


@model
class FeatureState:
    """A feature that is named is on, unless it says otherwise."""

    enabled: bool = True


@model
class APIC(FeatureState):
    endOfInterrupt: bool = False


@model
class Spinlocks(FeatureState):
    spinlocks: Annotated[int, between(4095, 2**32 - 1)] | None = None


@model
class SynICTimer(FeatureState):
    direct: FeatureState | None = None


@model
class VendorID(FeatureState):
    vendorid: str | None = None


@model
class TLBFlush(FeatureState):
    direct: FeatureState | None = None
    extended: FeatureState | None = None


@model
class Hyperv:
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


@model
class KVM:
    hidden: bool = False


@model
class Features:
    acpi: FeatureState | None = None
    apic: APIC | None = None
    hyperv: Hyperv | None = None
    hypervPassthrough: FeatureState | None = None
    smm: FeatureState | None = None
    kvm: KVM | None = None
    pvspinlock: FeatureState | None = None
