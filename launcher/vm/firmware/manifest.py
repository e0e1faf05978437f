"""spec.domain.firmware, machine and chassis."""

from typing import Annotated, Literal, Self

from pydantic import model_validator

from launcher.fields.objects import Object, one_of
from launcher.fields.scalars import AliasName, Matching, PathInImage, Text, UUIDText
from program.errors import Nonsense


class Machine(Object):
    type: (
        Annotated[
            Text,
            Matching(
                "|q35|pc-q35-[A-Za-z0-9.-]+|virt|virt-[A-Za-z0-9.-]+",
                "is no machine with PCI Express",
                "expected q35 or a pc-q35 version, or for arm64 virt or a virt version",
            ),
        ]
        | None
    ) = None


class BIOS(Object):
    """SeaBIOS. `useSerial`: its own output goes to the serial console too."""

    useSerial: bool = False


class EFI(Object):
    """EFI. `persistent`: its variables outlive the pod, in a file on a volume of the pod."""

    secureBoot: bool = True
    persistent: bool = False


class Bootloader(Object):
    bios: BIOS | None = None
    efi: EFI | None = None

    _check = one_of("bios", "efi")


class KernelBootContainer(Object):
    """An image with a kernel in it, which the pod mounts; its node pulls it."""

    image: Text
    kernelPath: PathInImage | None = None
    initrdPath: PathInImage | None = None
    imagePullPolicy: Literal["Always", "IfNotPresent", "Never"] | None = None
    imagePullSecret: Text | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.image:
            raise Nonsense("has no image", "expected the image that has the kernel in it")
        if self.kernelPath is None:
            raise Nonsense("has no kernelPath", "expected the kernel's path in the image: an initrd needs one")
        return self


class KernelBoot(Object):
    kernelArgs: Text | None = None
    container: KernelBootContainer | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.kernelArgs and self.container is None:
            raise Nonsense("has kernelArgs and no container", "expected the image with the kernel that they are for")
        return self


class ACPITables(Object):
    """Secret volumes, by name, whose file slic.bin or msdm.bin is the table."""

    slicNameRef: AliasName | None = None
    msdmNameRef: AliasName | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.slicNameRef is None and self.msdmNameRef is None:
            raise Nonsense("has neither slicNameRef nor msdmNameRef", "expected the name of a secret volume")
        return self


class Firmware(Object):
    uuid: UUIDText | None = None
    serial: (
        Annotated[
            Text,
            # KubeVirt's webhook (validateFirmwareSerial); an empty one is none.
            Matching(
                "[A-Za-z0-9_.+-]{0,256}", "is no serial number", "expected at most 256 letters, digits and _ . + -"
            ),
        ]
        | None
    ) = None
    bootloader: Bootloader = Bootloader.model_construct()
    kernelBoot: KernelBoot | None = None
    acpi: ACPITables | None = None


class Chassis(Object):
    """The chassis that the guest reads of in SMBIOS table 3."""

    manufacturer: Text = ""
    version: Text = ""
    serial: Text = ""
    asset: Text = ""
    sku: Text = ""
