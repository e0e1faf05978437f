"""The small devices: inputs, sound, watchdog, TPM, entropy, memory balloon, panic device, vsock."""

from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.devices.devices import GuestInput
from launcher.elements.virtio import virtio_driver, virtio_model
from launcher.guest import Guest
from launcher.manifest.devices import Devices

_BALLOON_PERIOD = "10"  # seconds between two looks at the guest's memory, KubeVirt's


def peripherals(devices: Devices, inputs: tuple[GuestInput, ...], guest: Guest) -> list[Element]:
    elements = list(map(_input, inputs))
    if (sound := devices.sound) is not None:
        elements.append(E.sound(E.alias(name=f"ua-{sound.name}"), model=sound.model))
    if (watchdog := devices.watchdog) is not None:
        alias = E.alias(name=f"ua-{watchdog.name}")
        elements.append(E.watchdog(alias, model="i6300esb", action=watchdog.i6300esb.action))
    elements += _tpm(devices, guest)
    if devices.rng is not None:
        source = E.backend("/dev/urandom", model="random")
        elements.append(E.rng(source, *virtio_driver(guest), model=virtio_model(guest)))
    elements.append(_balloon(devices, guest))
    elements += [E.panic(model=panic.of(guest.architecture)) for panic in devices.panicDevices]
    if devices.autoattachVSOCK:
        # libvirt takes a context ID that is free on the node; KubeVirt's controller hands them out.
        elements.append(E.vsock(E.cid(auto="yes"), model="virtio-non-transitional"))
    return elements


def _input(device: GuestInput) -> Element:
    element = E.input(type=device.type, bus=device.bus)
    if device.name is not None:
        element.append(E.alias(name=f"ua-{device.name}"))
    if device.bus == "virtio":
        element.set("model", "virtio")
    return element


def _tpm(devices: Devices, guest: Guest) -> list[Element]:
    """Return a TPM 2.0 that swtpm emulates. A persistent one keeps its state when the domain is undefined."""
    tpm = devices.tpm
    if tpm is None or not tpm.enabled:
        return []
    backend = E.backend(type="emulator", version="2.0")
    if tpm.persistent:
        backend.set("persistent_state", "yes")
    # KubeVirt's crb for a persistent one is a device of amd64.
    crb = tpm.persistent and guest.architecture == "amd64"
    return [E.tpm(backend, model="tpm-crb" if crb else "tpm-tis")]


def _balloon(devices: Devices, guest: Guest) -> Element:
    if not devices.autoattachMemBalloon:
        # libvirt would add one by itself.
        return E.memballoon(model="none")
    return E.memballoon(
        E.stats(period=_BALLOON_PERIOD),
        *virtio_driver(guest),
        model=virtio_model(guest),
        freePageReporting="on" if guest.reports_free_pages else "off",
    )
