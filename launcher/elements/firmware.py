"""<os> and <sysinfo>: BIOS or EFI, a kernel of its own, and the serial number that the guest reads from SMBIOS."""

from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.manifest import Firmware, KernelBoot

#: Where the pod mounts the image of `kernelBoot.container`, whole: an image volume. The directory is KubeVirt's
#: (pkg/container-disk, GetKernelBootArtifactPathFromLauncherView), which has just the two files in it.
KERNEL_BOOT = "/var/run/kubevirt/container-disks/kernel-boot"


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
    if firmware.kernelBoot is not None:
        os.extend(_kernel(firmware.kernelBoot))


def sysinfo(firmware: Firmware) -> list[Element]:
    """<sysinfo> where the manifest has something to say in it."""
    if firmware.serial is None:
        return []
    return [E.sysinfo(E.system(E.entry(firmware.serial, name="serial")), type="smbios")]


def _kernel(boot: KernelBoot) -> list[Element]:
    paths = {"kernel": boot.container.kernelPath, "initrd": boot.container.initrdPath}
    elements = [E(name, KERNEL_BOOT + path) for name, path in paths.items() if path is not None]
    if boot.kernelArgs is not None:
        elements.append(E.cmdline(boot.kernelArgs))
    return elements
