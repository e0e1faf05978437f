"""<features>: what the machine and the hypervisor offer to the guest; <clock> and its timers."""

from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.vm.features.manifest import KVM, Clock, Features, FeatureState, Hyperv, Spinlocks, Timer, VendorID, is_on
from launcher.vm.guest import Guest

#: Libvirt's names for those of KubeVirt's hyperv features that it calls otherwise.
_HYPERV = {"synictimer": "stimer", "vendorid": "vendor_id"}


def features(features: Features, guest: Guest) -> list[Element]:
    """Return <features>: ACPI unless it is disabled; the others as the manifest, and what else is in it, needs them."""
    element = E.features()
    if features.acpi.enabled:
        element.append(E.acpi())
    if guest.architecture == "amd64":
        element.extend(_of_amd64(features, guest))
    if guest.realtime or (guest.confidentiality is not None and not guest.confidentiality.has_pmu):
        element.append(E.pmu(state="off"))
    return [element] if len(element) else []


def needed_of_the_cpu(features: Features) -> tuple[str, ...]:
    """Return the CPU features that a feature needs: enlightened VMCS is about VMX (KubeVirt's setEVMCSDependency)."""
    hyperv = features.hyperv
    return ("vmx",) if hyperv is not None and is_on(hyperv.evmcs) else ()


def _of_amd64(features: Features, guest: Guest) -> list[Element]:
    elements = []
    if features.apic is None or features.apic.enabled:
        eoi = features.apic is not None and features.apic.endOfInterrupt
        elements.append(E.apic(eoi="on") if eoi else E.apic())
    if features.hyperv is not None:
        elements += _hyperv(features.hyperv)
    elif is_on(features.hypervPassthrough):
        elements.append(E.hyperv(mode="passthrough"))
    elements += _kvm(features.kvm, guest)
    if features.pvspinlock is not None:
        elements.append(E.pvspinlock(state=_state(features.pvspinlock)))
    # As for KubeVirt, always: VMware's port is nobody's here.
    elements.append(E.vmport(state="off"))
    elements += _smm(features.smm, guest)
    return elements


def _hyperv(hyperv: Hyperv) -> list[Element]:
    on = hyperv.on()
    element = E.hyperv()
    for name, feature in hyperv:
        if name in on:
            element.append(E(_HYPERV.get(name, name), *_children(feature), state="on", **_attributes(feature)))
        elif feature is not None:
            element.append(E(_HYPERV.get(name, name), state="off"))
    return [element] if len(element) else []


def _attributes(feature: FeatureState | None) -> dict[str, str]:
    match feature:
        case Spinlocks():
            return {"retries": str(feature.spinlocks)}
        case VendorID(vendorid=str(text)):
            return {"value": text}
        case _:
            return {}


def _children(feature: FeatureState | None) -> list[Element]:
    """Return the parts of a feature that are on. A part that is off is left out, a form that older libvirts know
    too."""
    return [E(part, state="on") for part in ("direct", "extended") if is_on(getattr(feature, part, None))]


def _kvm(kvm: KVM | None, guest: Guest) -> list[Element]:
    element = E.kvm()
    if kvm is not None:
        element.append(E.hidden(state="on" if kvm.hidden else "off"))
    if guest.has_own_cpus:
        element.append(E("hint-dedicated", state="on"))
    return [element] if len(element) else []


def _smm(smm: FeatureState | None, guest: Guest) -> list[Element]:
    """Return <smm>: on with secure boot, since only SMM keeps its variables from the guest's kernel; else as the
    manifest asks. Measured firmware has no variables."""
    if guest.has_secure_boot and (guest.confidentiality is None or not guest.confidentiality.is_measured):
        return [E.smm(state="on")]
    return [E.smm(state=_state(smm))] if smm is not None else []


def _state(feature: FeatureState) -> str:
    return "on" if feature.enabled else "off"


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
