"""<os> and <sysinfo>: BIOS or EFI, and the serial number that the guest reads from SMBIOS."""

from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.manifest import Firmware


def boot(firmware: Firmware, os: Element) -> None:
    """Add to <os> what the firmware asks for; libvirt picks the EFI image that has these features."""
    bios, efi = firmware.bootloader.bios, firmware.bootloader.efi
    if efi is not None:
        secure = "yes" if efi.secureBoot else "no"
        os.set("firmware", "efi")
        os.append(
            E.firmware(
                E.feature(enabled=secure, name="enrolled-keys"),
                E.feature(enabled=secure, name="secure-boot"),
            )
        )
    if bios is not None and bios.useSerial:
        os.append(E.bios(useserial="yes"))
    if firmware.serial is not None:
        os.append(E.smbios(mode="sysinfo"))


def sysinfo(firmware: Firmware) -> list[Element]:
    """<sysinfo> where the manifest has something to say in it."""
    if firmware.serial is None:
        return []
    return [E.sysinfo(E.system(E.entry(firmware.serial, name="serial")), type="smbios")]
