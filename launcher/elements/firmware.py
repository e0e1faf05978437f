"""<os> and <sysinfo>: BIOS or EFI, a kernel of its own, and the serial number that the guest reads from SMBIOS."""

from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.manifest.firmware import KernelBoot
from launcher.manifest.spec import Domain, Spec, VirtualMachineInstance

#: Where the pod mounts the image of `kernelBoot.container`, whole: an image volume. The directory is KubeVirt's
#: (pkg/container-disk, GetKernelBootArtifactPathFromLauncherView), which has just the two files in it.
KERNEL_BOOT = "/var/run/kubevirt/container-disks/kernel-boot"


ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
_MACHINES = {"amd64": "q35", "arm64": "virt"}


def machine(spec: Spec) -> str:
    return spec.domain.machine.type or _MACHINES[spec.architecture]


def boot(vmi: VirtualMachineInstance, os: Element) -> None:
    """Add to <os> what the firmware asks for; libvirt picks the EFI image that has these features."""
    firmware = vmi.spec.domain.firmware
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


def sysinfo(domain: Domain) -> list[Element]:
    """<sysinfo> where the manifest has something to say in it."""
    firmware = domain.firmware
    if firmware.serial is None:
        return []
    return [E.sysinfo(E.system(E.entry(firmware.serial, name="serial")), type="smbios")]


def _kernel(boot: KernelBoot) -> list[Element]:
    if boot.container is None:
        return []
    paths = {"kernel": boot.container.kernelPath, "initrd": boot.container.initrdPath}
    elements = [E(name, KERNEL_BOOT + path) for name, path in paths.items() if path is not None]
    if boot.kernelArgs is not None:
        elements.append(E.cmdline(boot.kernelArgs))
    return elements
