"""spec.domain.devices: the lists of disks, interfaces and host devices, and all the small devices."""

from functools import partial
from typing import Annotated, Any, Self

from pydantic import model_validator

from launcher.fields.objects import Below, Ignored, Items, Object, Refused, check_all, placed, refuse_twice
from launcher.fields.scalars import first_twice
from launcher.vm.cards.claims import Entry, EntryKind, VirtualFunctionOf
from launcher.vm.cards.manifest import GPU, HostDevice, refuse_repeated
from launcher.vm.disks.manifest import Disk, Filesystem
from launcher.vm.network.manifest import DEFAULT, Interface
from launcher.vm.peripherals.manifest import TPM, Input, PanicDevice, Rng, Sound, Video, Watchdog
from program.errors import Nonsense


class Devices(Object):
    gpus: Items[GPU] = ()
    hostDevices: Items[HostDevice] = ()
    disks: Items[Disk] = ()
    interfaces: Items[Interface] = ()
    inputs: Items[Input] = ()
    watchdog: Watchdog | None = None
    rng: Rng | None = None
    sound: Sound | None = None
    panicDevices: Items[PanicDevice] = ()
    tpm: TPM | None = None
    video: Video | None = None
    autoattachGraphicsDevice: bool = True
    autoattachInputDevice: bool = False
    autoattachMemBalloon: bool = True
    autoattachPodInterface: bool = True
    autoattachSerialConsole: bool = True
    autoattachVSOCK: bool = False
    logSerialConsole: bool = False
    blockMultiQueue: bool = False
    networkInterfaceMultiqueue: Annotated[
        bool, Ignored("passt has one pair of queues for each card, and a warning says so")
    ] = False
    useVirtioTransitional: bool = False
    disableHotplug: Annotated[Any, Ignored("there is no hotplug, said or not")] = None
    clientPassthrough: Annotated[
        None, Refused("USB redirection is served by KubeVirt's API, which is not there", "leave it out")
    ] = None
    downwardMetrics: Annotated[
        None, Refused("there is no server of metrics behind a serial port", "write a volume with downwardMetrics: {}")
    ] = None
    filesystems: Items[Filesystem] = ()

    @property
    def entries(self) -> tuple[Entry, ...]:
        """gpus, then hostDevices, then the interfaces that are virtual functions."""
        lists = ((EntryKind.GPU, self.gpus), (EntryKind.HOST_DEVICE, self.hostDevices))
        return (
            *(Entry(kind=kind, name=device.name, wants=device.wants) for kind, devices in lists for device in devices),
            *(
                Entry(kind=EntryKind.SRIOV, name=interface.name, wants=VirtualFunctionOf(interface.name))
                for interface in self.connected
                if interface.sriov is not None
            ),
        )

    @property
    def entries_with_paths(self) -> list[tuple[str, HostDevice]]:
        """gpus and hostDevices, each behind its path."""
        return [*placed("gpus", self.gpus), *placed("hostDevices", self.hostDevices)]

    @property
    def keeps_tpm(self) -> bool:
        """True if the TPM's state outlives the VM."""
        return self.tpm is not None and self.tpm.enabled and self.tpm.persistent

    @property
    def connected(self) -> tuple[Interface, ...]:
        """The interfaces that the guest has: the manifest's except absent ones, or the default one."""
        if not self.interfaces and self.autoattachPodInterface:
            return (DEFAULT,)
        return tuple(interface for interface in self.interfaces if interface.state != "absent")

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_all(*(partial(check, self) for check in (_check_names, _check_orders, _check_attached)))
        return self


def check_architecture(devices: Devices, architecture: str) -> None:
    """Raise Nonsense for a device that QEMU's machine of this architecture does not have."""
    if model := first_twice(panic.of(architecture) for panic in devices.panicDevices):
        raise Below("domain.devices.panicDevices", f"has the model {model} twice", "leave one of them out")
    if architecture == "amd64":
        return
    for name, device in (("watchdog", devices.watchdog), ("sound", devices.sound)):
        if device is not None:
            raise Below(
                f"domain.devices.{name}",
                f"is a device of amd64, and this VM's architecture is {architecture}",
                "leave it out",
            )
    if devices.video is not None and devices.video.type not in ("virtio", "ramfb"):
        raise Below(
            "domain.devices.video.type", repr(devices.video.type), f"expected virtio or ramfb, which {architecture} has"
        )
    for panic in devices.panicDevices:
        if panic.of(architecture) != "pvpanic":
            raise Below(
                "domain.devices.panicDevices", f"has {panic.model!r}", f"expected pvpanic, which {architecture} has"
            )


def _check_names(devices: Devices) -> None:
    """Refuse two devices with one alias. Names become aliases: gpus' and hostDevices' with a prefix, all others as they
    are."""
    refuse_repeated(devices.entries_with_paths)
    disks, interfaces = placed("disks", devices.disks), placed("interfaces", devices.interfaces)
    single = [(path, getattr(devices, path)) for path in devices.present_fields("watchdog", "sound")]
    listed = (*disks, *interfaces, *placed("inputs", devices.inputs), *single)
    names = [(path, device.name) for path, device in listed]
    refuse_twice([(path, interface.name) for path, interface in interfaces], "rename one of them, and its network")
    refuse_twice(names, "rename one of them")
    gpus, others = placed("gpus", devices.gpus), placed("hostDevices", devices.hostDevices)
    prefixed = [
        *((path, f"{'dra-' if gpu.claimName else ''}gpu-{gpu.name}") for path, gpu in gpus),
        *((path, f"{'dra-' if device.claimName else ''}hostdevice-{device.name}") for path, device in others),
        *((path, f"usb-host-{device.name}") for path, device in others),
        *((path, f"sriov-{interface.name}") for path, interface in interfaces if interface.sriov is not None),
    ]
    refuse_twice([*names, *prefixed], "rename one of them", "would be called {name!r} in the domain, as {first} would")


def _check_orders(devices: Devices) -> None:
    bootable: list[tuple[str, Disk | Interface]] = [
        *placed("disks", devices.disks),
        *placed("interfaces", devices.interfaces),
    ]
    orders = [(path, device.bootOrder) for path, device in bootable if device.bootOrder is not None]
    refuse_twice(orders, "expected each once", "has bootOrder {name}, as {first} has")


def _check_attached(devices: Devices) -> None:
    if devices.video is not None and not devices.autoattachGraphicsDevice:
        raise Nonsense("has video, and autoattachGraphicsDevice is false", "leave one of them out")
