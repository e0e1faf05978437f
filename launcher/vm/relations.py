"""Errors in a combination of a manifest's parts, which no field shows alone.

KubeVirt's webhooks refuse most of this (pkg/virt-api/webhooks); the rest is what libvirt's QEMU driver would refuse.
"""

from collections.abc import Iterable

from launcher.fields.objects import Below
from launcher.vm.annotations import ON_DRAIN, Annotations
from launcher.vm.devices import Devices
from launcher.vm.features.manifest import Clock, Features, is_on
from launcher.vm.firmware.manifest import Firmware, Machine
from launcher.vm.guest import ROM_OF
from launcher.vm.lifecycle.manifest import LivenessProbe
from launcher.vm.security.manifest import LaunchSecurity
from launcher.vm.volumes.manifest import WITH_FILES, Volume

#: What an arm64 machine has none of; acpi is what it has.
_OF_AMD64 = ("apic", "hyperv", "hypervPassthrough", "smm", "kvm", "pvspinlock")


def check_firmware(
    firmware: Firmware, features: Features, devices: Devices, security: LaunchSecurity | None = None
) -> None:
    """Refuse firmware without what it needs: ACPI for EFI, SMM for secure boot, a serial console for BIOS's output."""
    bios, efi = firmware.bootloader.bios, firmware.bootloader.efi
    if efi is not None and not features.acpi.enabled:
        raise Below("features.acpi", "is disabled, and EFI needs it", "leave it out, or boot with bios")
    has_smm = security is None or security.technology.has_smm
    if has_smm and efi is not None and efi.secureBoot and features.smm is not None and not features.smm.enabled:
        raise Below(
            "features.smm",
            "is disabled, and secure boot needs it",
            "leave it out, or write firmware.bootloader.efi.secureBoot: false",
        )
    if bios is not None and bios.useSerial and not devices.autoattachSerialConsole:
        raise Below(
            "firmware.bootloader.bios.useSerial",
            "needs the serial console",
            "leave out devices.autoattachSerialConsole",
        )


def check_hyperv(features: Features, clock: Clock | None) -> None:
    """Refuse synthetic timers without Hyper-V's clock: QEMU starts no such guest (target/i386/kvm/kvm.c)."""
    timer = clock.timer.hyperv if clock is not None and clock.timer is not None else None
    if features.hyperv is not None and is_on(features.hyperv.synictimer) and not (timer is not None and timer.present):
        raise Below("features.hyperv.synictimer", "needs Hyper-V's clock", "add clock.timer.hyperv: {}")


def check_security(security: LaunchSecurity | None, firmware: Firmware, features: Features, devices: Devices) -> None:
    """Refuse encrypted memory with firmware or devices that cannot have it (KubeVirt's ValidateLaunchSecurityAmd64)."""
    if security is None:
        return
    technology = security.technology
    path = f"launchSecurity.{security.field}"
    efi = firmware.bootloader.efi
    if efi is None:
        raise Below(path, "needs EFI", "add firmware.bootloader.efi: {secureBoot: false}")
    if efi.secureBoot and not technology.has_secure_boot:
        raise Below(path, "has no secure boot", "write firmware.bootloader.efi.secureBoot: false")
    if efi.persistent and technology.is_measured:
        raise Below(path, "keeps no EFI variables", "leave out firmware.bootloader.efi.persistent")
    if not technology.has_smm and is_on(features.smm):
        raise Below(path, "has no SMM", "leave out features.smm")
    for interface in devices.interfaces:
        if interface.bootOrder is not None:
            raise Below(path, "boots from no network", f"leave out bootOrder of interface {interface.name!r}")


def check_machine(machine: Machine, architecture: str) -> None:
    """Refuse a machine type of the other architecture."""
    expected = {"amd64": "q35 or a pc-q35 version", "arm64": "virt or a virt version"}[architecture]
    if machine.type and machine.type.startswith("virt") != (architecture == "arm64"):
        raise Below(
            "domain.machine.type",
            f"{machine.type!r} is no machine of {architecture}",
            f"expected {expected}, or another architecture",
        )


def check_arm64(firmware: Firmware, features: Features, clock: Clock | None, security: LaunchSecurity | None) -> None:
    """Refuse fields that only amd64 has (KubeVirt's ValidateVirtualMachineInstanceArm64Setting, and libvirt)."""
    bios, efi = firmware.bootloader.bios, firmware.bootloader.efi
    if bios is not None:
        raise Below("domain.firmware.bootloader.bios", "arm64 has no BIOS", "leave it out, which is EFI")
    if efi is not None and efi.secureBoot:
        raise Below("domain.firmware.bootloader.efi", "has no secure boot on arm64", "write secureBoot: false")
    if not features.acpi.enabled:
        raise Below("domain.features.acpi", "is disabled, and EFI needs it", "leave it out")
    for name in _OF_AMD64:
        if getattr(features, name) is not None:
            raise Below(f"domain.features.{name}", "is a feature of amd64", "leave it out on arm64")
    if clock is not None and clock.timer is not None:
        raise Below("domain.clock.timer", "these timers are amd64's", "leave it out on arm64")
    if security is not None:
        raise Below("domain.launchSecurity", "SEV, SNP and TDX are amd64's", "leave it out on arm64")


def check_roms(annotations: Annotations, devices: Devices, volumes: tuple[Volume, ...]) -> None:
    """Refuse a ROM for anything but a gpu or a host device, and a ROM that is no file of a volume."""
    check_entries(ROM_OF, annotations.roms, devices)
    kinds = {volume.name: volume.kind for volume in volumes}
    for name, rom in annotations.roms.items():
        if rom is not None and kinds.get(rom.volume) not in WITH_FILES:
            kind = kinds.get(rom.volume)
            raise Below(
                "metadata.annotations",
                f"{ROM_OF}: {name!r} has a ROM of the volume {rom.volume!r}, which is "
                f"{'not in volumes' if kind is None else f'of kind {kind}'}",
                f"expected one of kind {', '.join(WITH_FILES)}",
            )


def check_on_drain(annotations: Annotations, probe: LivenessProbe | None) -> None:
    """Refuse a drain that suspends a guest with a livenessProbe. The kubelet ends a container whose probe fails as it
    ends one that is drained: the guest that hangs would be suspended, and resumed to hang."""
    if annotations.suspends_on_drain and probe is not None:
        wrong = f"{ON_DRAIN} would keep a guest that spec.livenessProbe ends, and have it go on"
        raise Below("metadata.annotations", wrong, "leave out one of them")


def check_entries(annotation: str, named: Iterable[str], devices: Devices) -> None:
    """Refuse an annotation that names anything but a gpu or a host device."""
    names = [entry.name for entry in (*devices.gpus, *devices.hostDevices)]
    for name in named:
        if name not in names:
            known = ", ".join(map(repr, names)) or "none"
            raise Below(
                "metadata.annotations",
                f"{annotation}: {name!r} is no entry of gpus or hostDevices",
                f"expected a name of theirs, here {known}",
            )


def check_acpi_tables(firmware: Firmware, volumes: tuple[Volume, ...]) -> None:
    """Refuse an ACPI table that is no secret volume's file."""
    if firmware.acpi is None:
        return
    secrets = {volume.name for volume in volumes if volume.secret is not None}
    for field in ("slicNameRef", "msdmNameRef"):
        name = getattr(firmware.acpi, field)
        if name is not None and name not in secrets:
            raise Below(f"domain.firmware.acpi.{field}", f"{name!r} is no secret volume", "add one to spec.volumes")
