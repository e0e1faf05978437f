"""The kernel, the ACPI tables, Ignition's config and the kept variables of EFI.

libvirt itself copies EFI's variables from their template.
"""

from collections.abc import Iterator
from pathlib import Path

from launcher.vm import paths
from launcher.vm.facts import Facts
from launcher.vm.spec import VirtualMachineInstance
from launcher.vm.volumes.media import Brought, Content, Directory, Need, StateFiles, Symlink


def files(vmi: VirtualMachineInstance, facts: Facts, root: Path) -> Iterator[Need]:
    yield from _opened_by_qemu(vmi, root)
    if config := vmi.metadata.annotations.ignition:
        yield Content(paths.below(root, facts.place(paths.IGNITION)), config.encode())
    if vmi.spec.efi is not None and vmi.spec.efi.persistent:
        variables = paths.below(root, facts.place(paths.NVRAM))
        yield StateFiles(variables, "EFI's variables")
        yield Directory(variables)


def _opened_by_qemu(vmi: VirtualMachineInstance, root: Path) -> Iterator[Brought | Symlink]:
    """Yield the kernels and ACPI tables, which QEMU opens in their places."""
    firmware = vmi.spec.domain.firmware
    if firmware.kernelBoot is not None and (boot := firmware.kernelBoot.container) is not None:
        image = paths.below(root, paths.KERNEL_IMAGE)
        yield Symlink(paths.below(root, paths.KERNEL_BOOT), image)
        fix = f"expected a path of {boot.image}, which the pod mounts whole at {paths.KERNEL_IMAGE}"
        for path in (boot.kernelPath, boot.initrdPath):
            if path is not None:
                yield Brought(paths.below(image, path), image, "firmware.kernelBoot", fix)
    if (acpi := firmware.acpi) is not None:
        for secret, table in ((acpi.slicNameRef, "slic"), (acpi.msdmNameRef, "msdm")):
            if secret is not None:
                volume = paths.below(root, paths.mounted("secret", secret))
                fix = f"expected the key {table}.bin in that secret"
                yield Brought(volume / f"{table}.bin", volume, "firmware.acpi", fix)
