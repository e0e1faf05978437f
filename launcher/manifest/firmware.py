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
                "|q35|pc-q35-[A-Za-z0-9.-]+|virt|virt-[A-Za-z0-9.-]+",
                "is no machine with PCI Express; expected q35 or a pc-q35 version, or for arm64 virt or a virt version",
            ),
        ]
        | None
    ) = None


@model
class BIOS:
    """`useSerial`: the firmware's own output goes to the serial console too."""

    useSerial: bool = False


@model
class EFI:
    """`persistent`: the variables outlive the pod, in a file that a volume of the pod's keeps."""

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
        if not self.image:
            raise ValueError("has no image; expected the image that has the kernel in it")
        if self.kernelPath is None:
            raise ValueError("has no kernelPath; expected the kernel's path in the image: an initrd needs one")


@model
class KernelBoot:
    kernelArgs: str | None = None
    container: KernelBootContainer | None = None

    def __post_init__(self) -> None:
        if self.kernelArgs and self.container is None:
            raise ValueError("has kernelArgs and no container; expected the image with the kernel that they are for")


@model
class ACPITables:
    """Secret volumes, by name, whose file slic.bin or msdm.bin is the table."""

    slicNameRef: AliasName | None = None
    msdmNameRef: AliasName | None = None

    def __post_init__(self) -> None:
        if self.slicNameRef is None and self.msdmNameRef is None:
            raise ValueError("has neither slicNameRef nor msdmNameRef; expected the name of a secret volume")


@model
class Firmware:
    uuid: UUIDText | None = None
    serial: (
        Annotated[
            str,
            # KubeVirt's webhook (validateFirmwareSerial); an empty one is none.
            matching("[A-Za-z0-9_.+-]{0,256}", "is no serial number; expected at most 256 letters, digits and _ . + -"),
        ]
        | None
    ) = None
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
