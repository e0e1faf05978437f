"""A preference's values for fields that a VM leaves out, and whether the guest meets its requirements (KubeVirt's
pkg/instancetype/preference/apply and requirements)."""

from collections.abc import Iterator, Mapping
from math import prod

from launcher.fields.quantity import written
from launcher.manifest.instancetypes.draft import Draft, Path, value_at
from launcher.manifest.instancetypes.kinds import Instancetype, PreferenceSpec
from launcher.manifest.instancetypes.sizes import Applied
from launcher.vm.features.manifest import Hyperv
from launcher.vm.network.manifest import DEFAULT
from launcher.vm.spec import VirtualMachineInstance
from program.problem import Problem

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
    ("preferredLaunchSecurity",): ("domain", "launchSecurity"),
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
#: Of which of sockets, cores and threads the vCPUs are that count; what is spread counts by what it is spread across.
_COUNTED = {"sockets": (0,), "cores": (1,), "threads": (2,), "any": (0, 1, 2)}
_SPREAD = {"SocketsCores": (0, 1), "CoresThreads": (1, 2), "SocketsCoresThreads": (0, 1, 2)}
_NAMES = ("sockets", "cores", "threads")


def attach(draft: Draft, applied: Applied) -> None:
    """Fill in the devices that the VM has by default, by name: the preference's device settings apply to these as well.

    Disks for volumes without one, an input and an interface are KubeVirt's defaults (SetDefaultVolumeDisk,
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
    """Fill in the preferred values of fields that are not set yet."""
    for source, field in FILLED.items():
        _fill(draft, applied, source, field)
    _fill_cpu_features(draft, applied)
    _fill_hyperv(draft, applied)
    _fill_firmware(draft, preference, applied)
    _fill_clock(draft, applied)
    if draft.get(*_DEVICES, "sound") is not None:
        _fill(draft, applied, ("devices", "preferredSoundModel"), (*_DEVICES, "sound", "model"))
    _fill_disks(draft, applied)
    _fill_devices(draft, applied)
    for name, value in preference.annotations.items():
        draft.fill_annotation(name, value, applied.at(("annotations", name)))
    if (storage_class := preference.volumes.preferredStorageClassName) is not None:
        origin = applied.at(("volumes", "preferredStorageClassName"))
        draft.fill_in_templates("storageClassName", storage_class, origin)


def _fill(draft: Draft, applied: Applied, source: Path, field: Path) -> None:
    if (value := value_at(applied.spec, source)) is not None:
        draft.fill(field, value, applied.at(source))


def _fill_cpu_features(draft: Draft, applied: Applied) -> None:
    """Add the preferred CPU features that the VM does not name."""
    source = ("cpu", "preferredCPUFeatures")
    features: Path = ("domain", "cpu", "features")
    named = draft.names(*features)
    for index, feature in enumerate(value_at(applied.spec, source) or ()):
        if feature["name"] not in named:
            draft.append(features, feature, applied.at((*source, index)))


def _fill_hyperv(draft: Draft, applied: Applied) -> None:
    """Fill in each Hyper-V feature by itself, unless the guest has all features of the host."""
    passthrough = draft.get(*_FEATURES, "hypervPassthrough")
    if passthrough is not None and draft.get(*_FEATURES, "hypervPassthrough", "enabled") is not False:
        return
    for name in Hyperv.model_fields:
        _fill(draft, applied, ("features", "preferredHyperv", name), (*_FEATURES, "hyperv", name))


def _fill_firmware(draft: Draft, preference: PreferenceSpec, applied: Applied) -> None:
    """Fill in BIOS or EFI if the VM has neither, BIOS first; and the options of the one that it has."""
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
    """Fill in the clock's offset as a whole, if the VM has neither utc nor timezone."""
    clock: Path = ("domain", "clock")
    if all(draft.get(*clock, name) is None for name in ("utc", "timezone")):
        for name in ("utc", "timezone"):
            _fill(draft, applied, ("clock", "preferredClockOffset", name), (*clock, name))


def _fill_disks(draft: Draft, applied: Applied) -> None:
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


def unmet(
    vmi: VirtualMachineInstance,
    instancetype: Instancetype | None,
    preference: PreferenceSpec,
    applied: Applied,
    subject: str,
) -> Iterator[Problem]:
    """Yield a Problem for each requirement of the preference that the guest does not meet.

    `subject` stands before the path of a field of the VM.
    """
    required, spec = preference.requirements, vmi.spec

    def problem(field: str, amount: str, path: Path, least: object) -> Problem:
        where = "spec.instancetype" if instancetype is not None else f"spec.template.spec.{field}"
        fix = "expected that at least; or name another preference"
        return Problem(f"{subject}{where}", f"gives the guest {amount}, and {applied.at(path)} is {least}", fix)

    if required.cpu is not None:
        count, of = _vcpus(vmi, instancetype, preference)
        if count < required.cpu.guest:
            yield problem("domain.cpu", f"{count} {of}", ("requirements", "cpu", "guest"), required.cpu.guest)
    if required.memory is not None:
        size = spec.domain.memory.of_guest(spec.domain.resources)
        if size is not None and size < required.memory.guest:
            least = written(required.memory.guest)
            yield problem("domain.memory", f"{written(size)} of memory", ("requirements", "memory", "guest"), least)
    if required.architecture is not None and required.architecture != spec.architecture:
        wrong = f"is {spec.architecture}, and {applied.at(('requirements', 'architecture'))} is {required.architecture}"
        yield Problem(f"{subject}spec.template.spec.architecture", wrong, "write that, or name another preference")


def _vcpus(
    vmi: VirtualMachineInstance, instancetype: Instancetype | None, preference: PreferenceSpec
) -> tuple[int, str]:
    """Return how many vCPUs count, and what they count: without an instance type the VM's own, in the parts of its
    topology where the preference would put them."""
    if instancetype is not None:
        return instancetype.spec.cpu.guest, "vCPUs"
    counted = _COUNTED.get(preference.topology) or _SPREAD[preference.cpu.spreadOptions.across]
    topology = vmi.spec.domain.topology
    return prod(topology[index] for index in counted), " x ".join(_NAMES[index] for index in counted)
