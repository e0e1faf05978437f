"""<os> and <sysinfo>: BIOS or EFI, a kernel of its own, and what the guest reads from SMBIOS and ACPI."""

from collections.abc import Mapping
from uuid import UUID

from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.vm import paths
from launcher.vm.facts import Facts
from launcher.vm.firmware.manifest import EFI, KernelBoot
from launcher.vm.guest import Guest
from launcher.vm.spec import Domain, Spec

#: What KubeVirt's clusters say of themselves where nobody has configured it (pkg/virt-config, SmbiosDefaultConfig).
#: Guests tie licences to it, and systemd finds KVM by it. Its sku and version are empty, which is left out here.
_SYSTEM = {"manufacturer": "KubeVirt", "family": "KubeVirt", "product": "None"}


def boot(spec: Spec, guest: Guest, name: str, os: Element, facts: Facts) -> None:
    """Add to <os> what the firmware asks for; libvirt picks the EFI image that has these features. `name` is the VM's,
    after which a file with its variables is called."""
    firmware = spec.domain.firmware
    if spec.efi is not None:
        os.set("firmware", "efi")
        os.extend(_efi(spec.efi, guest, facts.place(f"{paths.NVRAM}/{name}_VARS.fd")))
    if firmware.kernelBoot is not None:
        os.extend(_kernel(firmware.kernelBoot))
    os.append(E.smbios(mode="sysinfo"))
    if firmware.bootloader.bios is not None and firmware.bootloader.bios.useSerial:
        os.append(E.bios(useserial="yes"))
    if (acpi := firmware.acpi) is not None:
        volumes = {"slic": acpi.slicNameRef, "msdm": acpi.msdmNameRef}
        files = {table: f"{paths.mounted('secret', name)}/{table}.bin" for table, name in volumes.items() if name}
        os.append(E.acpi(*(E.table(file, type=table) for table, file in files.items())))


def sysinfo(domain: Domain, uuid: UUID) -> Element:
    """Return SMBIOS tables 1 and 3. The uuid is the domain's: libvirt refuses any other there."""
    system = {"uuid": str(uuid), "serial": domain.firmware.serial or "", **_SYSTEM}
    chassis = vars(domain.chassis) if domain.chassis is not None else {}
    return E.sysinfo(*_entries("system", system), *_entries("chassis", chassis), type="smbios")


def ignition(config: str, facts: Facts) -> list[Element]:
    """Return Ignition's config in QEMU's firmware configuration, where Ignition looks for it, as KubeVirt's command
    line has it (https://coreos.github.io/ignition/supported-platforms); nothing without a config."""
    if not config:
        return []
    return [E.sysinfo(E.entry(name="opt/com.coreos/config", file=facts.place(paths.IGNITION)), type="fwcfg")]


def _entries(table: str, values: Mapping[str, str]) -> list[Element]:
    """Return a table of the entries that have a value; nothing without entries, since libvirt's schema knows no empty
    table."""
    entries = [E.entry(value, name=name) for name, value in values.items() if value]
    return [E(table, *entries)] if entries else []


def _efi(efi: EFI, guest: Guest, variables: str) -> list[Element]:
    secure = "yes" if efi.secureBoot else "no"
    elements = [
        E.firmware(E.feature(enabled=secure, name="enrolled-keys"), E.feature(enabled=secure, name="secure-boot"))
    ]
    if guest.confidentiality is not None and guest.confidentiality.is_measured:
        elements.append(E.loader(stateless="yes"))
    if efi.persistent:
        # Named, it is what stays: launcher.runtime.guest undefines the domain, and with it only what libvirt has named.
        elements.append(E.nvram(variables))
    return elements


def _kernel(boot: KernelBoot) -> list[Element]:
    if boot.container is None:
        return []
    files = {"kernel": boot.container.kernelPath, "initrd": boot.container.initrdPath}
    elements = [E(name, paths.KERNEL_BOOT + path) for name, path in files.items() if path is not None]
    if boot.kernelArgs:
        elements.append(E.cmdline(boot.kernelArgs))
    return elements
