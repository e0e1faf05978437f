"""The small devices: inputs, sound, watchdog, TPM, entropy, memory balloon, panic device, vsock."""

from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.elements.virtio import virtio_driver, virtio_model
from launcher.manifest.devices import Devices, Input
from launcher.manifest.spec import Domain, Spec, VirtualMachineInstance

_BALLOON_PERIOD = "10"  # seconds between two looks at the guest's memory, KubeVirt's


def peripherals(vmi: VirtualMachineInstance) -> list[Element]:
    spec, domain, devices = vmi.spec, vmi.spec.domain, vmi.spec.domain.devices
    return [
        *inputs(spec),
        *_sound(devices),
        *_watchdog(devices),
        *_tpm(spec),
        *_rng(domain),
        _balloon(vmi),
        *(E.panic(model=panic.of(spec.architecture)) for panic in devices.panicDevices),
        *_vsock(devices),
    ]


def inputs(spec: Spec) -> list[Element]:
    """Return the tablets; on arm64, whose machine has no PS/2, also what a screen needs."""
    devices = spec.domain.devices
    listed = devices.inputs
    if not listed and devices.autoattachInputDevice:
        listed = (Input(name="default-0"),)
    elements = [_tablet(tablet) for tablet in listed]
    if spec.architecture == "arm64" and devices.autoattachGraphicsDevice:
        if not listed:
            elements.append(E.input(type="tablet", bus="usb"))
        elements.append(E.input(type="keyboard", bus="usb"))
    return elements


def _tablet(tablet: Input) -> Element:
    element = E.input(E.alias(name=f"ua-{tablet.name}"), type=tablet.type, bus=tablet.bus)
    if tablet.bus == "virtio":
        element.set("model", "virtio")
    return element


def _sound(devices: Devices) -> list[Element]:
    sound = devices.sound
    return [] if sound is None else [E.sound(E.alias(name=f"ua-{sound.name}"), model=sound.model)]


def _watchdog(devices: Devices) -> list[Element]:
    watchdog = devices.watchdog
    if watchdog is None:
        return []
    return [E.watchdog(E.alias(name=f"ua-{watchdog.name}"), model="i6300esb", action=watchdog.i6300esb.action)]


def _tpm(spec: Spec) -> list[Element]:
    """Return a TPM 2.0 that swtpm emulates. A persistent one keeps its state when the domain is undefined."""
    tpm = spec.domain.devices.tpm
    if tpm is None or not tpm.enabled:
        return []
    backend = E.backend(type="emulator", version="2.0")
    if tpm.persistent:
        backend.set("persistent_state", "yes")
    # KubeVirt's crb for a persistent one is a device of amd64.
    crb = tpm.persistent and spec.architecture == "amd64"
    return [E.tpm(backend, model="tpm-crb" if crb else "tpm-tis")]


def _rng(domain: Domain) -> list[Element]:
    if domain.devices.rng is None:
        return []
    source = E.backend("/dev/urandom", model="random")
    return [E.rng(source, *virtio_driver(domain), model=virtio_model(domain))]


def _balloon(vmi: VirtualMachineInstance) -> Element:
    domain = vmi.spec.domain
    if not domain.devices.autoattachMemBalloon:
        # libvirt would add one by itself.
        return E.memballoon(model="none")
    return E.memballoon(
        E.stats(period=_BALLOON_PERIOD),
        *virtio_driver(domain),
        model=virtio_model(domain),
        freePageReporting="on" if _reports_free_pages(vmi) else "off",
    )


def _reports_free_pages(vmi: VirtualMachineInstance) -> bool:
    """Return whether the balloon tells of free pages: not of a guest whose memory is its own (KubeVirt,
    IsHighPerformanceVMI)."""
    domain = vmi.spec.domain
    is_high_performance = (
        domain.cpu.dedicatedCpuPlacement or domain.cpu.realtime is not None or domain.memory.hugepages is not None
    )
    return vmi.metadata.annotations.free_page_reporting and not is_high_performance


def _vsock(devices: Devices) -> list[Element]:
    """Return <vsock>. libvirt takes a context ID that is free on the node; KubeVirt's controller hands them out."""
    if not devices.autoattachVSOCK:
        return []
    return [E.vsock(E.cid(auto="yes"), model="virtio-non-transitional")]
