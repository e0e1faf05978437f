"""spec.domain.firmware, machine and chassis."""

from typing import Annotated, Literal

from launcher.manifest.scalars import AliasName, PathInImage, UUIDText, matching
from launcher.model import model


@model
class Machine:
    type: (
        Annotated[
            str,
            matching(
                "q35|pc-q35-[A-Za-z0-9.-]+|virt|virt-[A-Za-z0-9.-]+",
                "is no machine with PCI Express; expected q35 or a pc-q35 version, or for arm64 virt or a virt version",
            ),
        ]
        | None
    ) = None


@model
class BIOS:
    useSerial: bool = False


@model
class EFI:
    secureBoot: bool = True
    persistent: bool = False


@model
class Bootloader:
    bios: BIOS | None = None
    efi: EFI | None = None

    def __post_init__(self) -> None:
        if self.bios is not None and self.efi is not None:
            raise ValueError("has both bios and efi; expected one of them")


@model
class KernelBootContainer:
    """An image with a kernel in it. The pod mounts it; where the image comes from is between the pod and its node."""

    image: str
    kernelPath: PathInImage | None = None
    initrdPath: PathInImage | None = None
    imagePullPolicy: Literal["Always", "IfNotPresent", "Never"] | None = None
    imagePullSecret: str | None = None

    def __post_init__(self) -> None:
        if self.kernelPath is None and self.initrdPath is None:
            raise ValueError("has neither kernelPath nor initrdPath; expected at least the kernel's path in the image")


@model
class KernelBoot:
    kernelArgs: str | None = None
    container: KernelBootContainer | None = None


@model
class ACPITables:
    """Volumes, by name, whose file is the table."""

    slicNameRef: AliasName | None = None
    msdmNameRef: AliasName | None = None


@model
class Firmware:
    uuid: UUIDText | None = None
    serial: str | None = None
    bootloader: Bootloader = Bootloader()
    kernelBoot: KernelBoot | None = None
    acpi: ACPITables | None = None


@model
class Chassis:
    """What the guest reads from SMBIOS table 3."""

    manufacturer: str = ""
    version: str = ""
    serial: str = ""
    asset: str = ""
    sku: str = ""
