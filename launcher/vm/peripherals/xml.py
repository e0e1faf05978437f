"""The small devices: inputs, sound, watchdog, TPM, entropy, memory balloon, panic device, vsock; and <controller>: what
devices of other buses than PCI are plugged into.
"""

from lxml import etree
from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.vm.cpu import placement
from launcher.vm.devices import Devices
from launcher.vm.from_spec import GuestDevices
from launcher.vm.guest import Guest
from launcher.vm.peripherals.guest import GuestInput
from launcher.vm.xml import virtio_driver, virtio_model

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


def controllers(guest: Guest, devices: GuestDevices) -> list[Element]:
    """Return what devices of other buses than PCI are plugged into. The agent's channel is on virtio-serial."""
    return [
        # Said also where it is none: libvirt adds one by itself.
        E.controller(type="usb", index="0", model="qemu-xhci" if devices.has_usb else "none"),
        E.controller(*virtio_driver(guest), type="virtio-serial", index="0", model=virtio_model(guest)),
        *_scsi(guest, devices),
    ]


def _scsi(guest: Guest, devices: GuestDevices) -> list[Element]:
    """Return the one controller of all SCSI disks, if there are any; nothing is hotplugged that would need it."""
    if all(disk.bus != "scsi" for disk in devices.disks):
        return []
    element = E.controller(*virtio_driver(guest), type="scsi", index="0", model=virtio_model(guest))
    if threads := devices.iothreads.of_scsi_controller:
        drivers = element.findall("driver") or [etree.SubElement(element, "driver")]
        drivers[0].set("queues", str(guest.vcpus))
        placement.serve(drivers[0], threads)
    return [element]
