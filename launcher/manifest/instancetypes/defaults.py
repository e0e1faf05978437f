"""What a preference fills in where a VM says nothing (KubeVirt's pkg/instancetype/preference/apply)."""

from collections.abc import Mapping

from launcher.manifest.features import Hyperv
from launcher.manifest.instancetypes.draft import Draft, Path, value_at
from launcher.manifest.instancetypes.kinds import PreferenceSpec
from launcher.manifest.instancetypes.sizes import Applied
from launcher.manifest.interfaces import DEFAULT

_DEVICES: Path = ("domain", "devices")
_FEATURES: Path = ("domain", "features")
_BOOTLOADER: Path = ("domain", "firmware", "bootloader")

#: What decides which devices a VM has by default, and so comes first.
ATTACHED: Mapping[Path, Path] = {
    ("devices", f"preferredAutoattach{what}"): (*_DEVICES, f"autoattach{what}")
    for what in ("GraphicsDevice", "InputDevice", "MemBalloon", "PodInterface", "SerialConsole")
}
#: A preference, and the VM's field that it fills in whole.
FILLED: Mapping[Path, Path] = {
    ("devices", "preferredBlockMultiQueue"): (*_DEVICES, "blockMultiQueue"),
    ("devices", "preferredDisableHotplug"): (*_DEVICES, "disableHotplug"),
    ("devices", "preferredNetworkInterfaceMultiQueue"): (*_DEVICES, "networkInterfaceMultiqueue"),
    ("devices", "preferredRng"): (*_DEVICES, "rng"),
    ("devices", "preferredTPM"): (*_DEVICES, "tpm"),
    ("devices", "preferredUseVirtioTransitional"): (*_DEVICES, "useVirtioTransitional"),
    ("devices", "preferredVideoType"): (*_DEVICES, "video", "type"),
    ("features", "preferredAcpi"): (*_FEATURES, "acpi"),
    ("features", "preferredApic"): (*_FEATURES, "apic"),
    ("features", "preferredKvm"): (*_FEATURES, "kvm"),
    ("features", "preferredPvspinlock"): (*_FEATURES, "pvspinlock"),
    ("features", "preferredSmm"): (*_FEATURES, "smm"),
    ("machine", "preferredMachineType"): ("domain", "machine", "type"),
    ("clock", "preferredTimer"): ("domain", "clock", "timer"),
    ("launchSecurity",): ("domain", "launchSecurity"),
    ("preferredArchitecture",): ("architecture",),
    ("preferredSubdomain",): ("subdomain",),
    ("preferredTerminationGracePeriodSeconds",): ("terminationGracePeriodSeconds",),
}
#: A preference for each device of a list, and the field of a device that it fills in.
LISTED: Mapping[Path, tuple[str, Path]] = {
    ("devices", "preferredInputBus"): ("inputs", ("bus",)),
    ("devices", "preferredInputType"): ("inputs", ("type",)),
    ("devices", "preferredInterfaceModel"): ("interfaces", ("model",)),
    ("devices", "preferredPanicDeviceModel"): ("panicDevices", ("model",)),
    ("devices", "preferredVirtualGPUOptions"): ("gpus", ("virtualGPUOptions",)),
}
#: The same for disks of one kind.
DISKS: Mapping[Path, tuple[str, Path]] = {
    ("devices", "preferredDiskBus"): ("disk", ("disk", "bus")),
    ("devices", "preferredDiskBlockSize"): ("disk", ("blockSize",)),
    ("devices", "preferredDiskCache"): ("disk", ("cache",)),
    ("devices", "preferredDiskIO"): ("disk", ("io",)),
    ("devices", "preferredCdromBus"): ("cdrom", ("cdrom", "bus")),
    ("devices", "preferredLunBus"): ("lun", ("lun", "bus")),
}
#: What connects an interface: one that has none of them may be given masquerade.
_BINDINGS = ("bridge", "masquerade", "sriov", "slirp", "macvtap", "passt", "passtBinding", "vhostuser", "binding")


def attach(draft: Draft, applied: Applied) -> None:
    """Fill in which devices the VM has by default, and name those: what it prefers of devices is for them as well.

    Disks of volumes without one, an input and an interface are KubeVirt's defaults (SetDefaultVolumeDisk,
    AutoAttachInputDevice, SetDefaultNetworkInterface).
    """
    for source, field in ATTACHED.items():
        _fill(draft, applied, source, field)
    by_default = "what a VM has by default"
    shown = (*draft.names(*_DEVICES, "disks"), *draft.names(*_DEVICES, "filesystems"))
    for name in draft.names("volumes"):
        if name not in shown:
            draft.append((*_DEVICES, "disks"), {"name": name}, by_default)
    if draft.get(*_DEVICES, "autoattachInputDevice") is True and not draft.get(*_DEVICES, "inputs"):
        draft.append((*_DEVICES, "inputs"), {"name": "default-0"}, by_default)
    if draft.get(*_DEVICES, "interfaces") or draft.get("networks"):
        return
    if draft.get(*_DEVICES, "autoattachPodInterface") is not False:
        draft.append((*_DEVICES, "interfaces"), DEFAULT.model_dump(exclude_unset=True), by_default)
        draft.append(("networks",), {"name": DEFAULT.name, "pod": {}}, by_default)


def fill_in(draft: Draft, preference: PreferenceSpec, applied: Applied) -> None:
    """Fill in what is preferred and not said yet."""
    for source, field in FILLED.items():
        _fill(draft, applied, source, field)
    _fill_cpu_features(draft, applied)
    _fill_hyperv(draft, applied)
    _fill_firmware(draft, preference, applied)
    _fill_clock(draft, applied)
    if draft.get(*_DEVICES, "sound") is not None:
        _fill(draft, applied, ("devices", "preferredSoundModel"), (*_DEVICES, "sound", "model"))
    _fill_disks(draft, preference, applied)
    _fill_devices(draft, applied)
    for name, value in preference.annotations.items():
        draft.fill_annotation(name, value, applied.at(("annotations", name)))
    if (storage_class := preference.volumes.preferredStorageClassName) is not None:
        for kind in ("pvc", "storage"):
            origin = applied.at(("volumes", "preferredStorageClassName"))
            draft.fill_in_templates(kind, "storageClassName", storage_class, origin)


def _fill(draft: Draft, applied: Applied, source: Path, field: Path) -> None:
    if (value := value_at(applied.spec, source)) is not None:
        draft.fill(field, value, applied.at(source))


def _fill_cpu_features(draft: Draft, applied: Applied) -> None:
    """Those whose name the VM does not have."""
    source = ("cpu", "preferredCPUFeatures")
    features: Path = ("domain", "cpu", "features")
    named = draft.names(*features)
    for index, feature in enumerate(value_at(applied.spec, source) or ()):
        if feature["name"] not in named:
            draft.append(features, feature, applied.at((*source, index)))


def _fill_hyperv(draft: Draft, applied: Applied) -> None:
    """Each feature by itself, unless the guest has all that the host has."""
    passthrough = draft.get(*_FEATURES, "hypervPassthrough")
    if passthrough is not None and draft.get(*_FEATURES, "hypervPassthrough", "enabled") is not False:
        return
    for name in Hyperv.model_fields:
        _fill(draft, applied, ("features", "preferredHyperv", name), (*_FEATURES, "hyperv", name))


def _fill_firmware(draft: Draft, preference: PreferenceSpec, applied: Applied) -> None:
    """BIOS or EFI where the VM has neither, BIOS before EFI; and what it says of the one that it has."""
    prefers = preference.firmware
    bios, efi = (*_BOOTLOADER, "bios"), (*_BOOTLOADER, "efi")

    def has_neither() -> bool:
        return draft.get(*bios) is None and draft.get(*efi) is None

    if prefers.preferredUseBios and has_neither():
        draft.set(bios, {}, applied.at(("firmware", "preferredUseBios")))
    if draft.get(*bios) is not None:
        _fill(draft, applied, ("firmware", "preferredUseBiosSerial"), (*bios, "useSerial"))
    if prefers.preferredEfi is not None and has_neither():
        _fill(draft, applied, ("firmware", "preferredEfi"), efi)
        return
    if prefers.preferredUseEfi and has_neither():
        draft.set(efi, {}, applied.at(("firmware", "preferredUseEfi")))
    if draft.get(*efi) is not None:
        _fill(draft, applied, ("firmware", "preferredUseSecureBoot"), (*efi, "secureBoot"))


def _fill_clock(draft: Draft, applied: Applied) -> None:
    """The offset whole, where the VM has neither of the two that there are."""
    clock: Path = ("domain", "clock")
    if all(draft.get(*clock, name) is None for name in ("utc", "timezone")):
        for name in ("utc", "timezone"):
            _fill(draft, applied, ("clock", "preferredClockOffset", name), (*clock, name))


def _fill_disks(draft: Draft, preference: PreferenceSpec, applied: Applied) -> None:
    threads = ("devices", "preferredDiskDedicatedIoThread")
    for index, disk in enumerate(draft.items(*_DEVICES, "disks")):
        kind = next((kind for kind in ("disk", "cdrom", "lun") if disk.get(kind) is not None), "disk")
        at: Path = (*_DEVICES, "disks", index)
        for source, (of, field) in DISKS.items():
            if of == kind:
                _fill(draft, applied, source, (*at, *field))
        if kind == "disk" and draft.get(*at, "disk", "bus") == "virtio":
            _fill(draft, applied, threads, (*at, "dedicatedIOThread"))


def _fill_devices(draft: Draft, applied: Applied) -> None:
    panic = ("devices", "preferredPanicDeviceModel")
    if value_at(applied.spec, panic) is not None and not draft.get(*_DEVICES, "panicDevices"):
        draft.append((*_DEVICES, "panicDevices"), {}, applied.at(panic))
    for source, (devices, field) in LISTED.items():
        for index in range(len(draft.items(*_DEVICES, devices))):
            _fill(draft, applied, source, (*_DEVICES, devices, index, *field))
    on_the_pods = [network.get("name") for network in draft.items("networks") if network.get("pod") is not None]
    for index, interface in enumerate(draft.items(*_DEVICES, "interfaces")):
        unconnected = all(interface.get(binding) is None for binding in _BINDINGS)
        if unconnected and interface.get("name") in on_the_pods:
            masquerade: Path = (*_DEVICES, "interfaces", index, "masquerade")
            _fill(draft, applied, ("devices", "preferredInterfaceMasquerade"), masquerade)
