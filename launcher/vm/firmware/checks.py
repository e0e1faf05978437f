"""EFI: whether libvirt finds an image with the features that the manifest asks for.

libvirt chooses by descriptors, JSON files that come with the images (QEMU's docs/interop/firmware.json): by
architecture, machine and features, in the order of the files' names. A file in /etc masks the one of the same name in
/usr (libvirt's src/qemu/qemu_firmware.c and qemu_interop_config.c).
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from launcher.vm import paths
from launcher.vm.checks import error
from launcher.vm.guest import Guest
from program.finding import Finding

#: The one that masks the other comes first.
DIRECTORIES = ("etc/qemu/firmware", "usr/share/qemu/firmware")
#: What a domain may say yes or no to, and does (launcher.vm.firmware.xml).
_SWITCHED = ("secure-boot", "enrolled-keys")
_PACKAGES = {"amd64": "ovmf", "arm64": "qemu-efi-aarch64"}


@dataclass(frozen=True, slots=True)
class FirmwareImage:
    """A descriptor: its file's name, the image's features, and which of the files that it names are missing."""

    descriptor: str
    features: frozenset[str]
    targets: tuple[tuple[str, str], ...]
    is_stateless: bool
    missing: tuple[str, ...]


def read_images(root: Path) -> tuple[FirmwareImage, ...]:
    """Read the descriptors of EFI images below a container's root, in libvirt's order. Like libvirt, leave out a file
    that is no descriptor."""
    descriptors: dict[str, Path] = {}
    for directory in reversed(DIRECTORIES):
        descriptors.update({path.name: path for path in (root / directory).glob("*.json")})
    return tuple(image for name in sorted(descriptors) if (image := _read(descriptors[name], root)) is not None)


def firmware(guest: Guest, images: tuple[FirmwareImage, ...]) -> Iterator[Finding]:
    """Yield what is wrong with the guest's EFI image. A BIOS is part of QEMU."""
    if not guest.is_efi:
        return
    architecture, technology = guest.qemu_architecture, guest.confidentiality
    wanted = dict.fromkeys(_SWITCHED, guest.has_secure_boot)
    required = frozenset[str]() if technology is None else frozenset({technology.firmware_feature})
    is_measured = technology is not None and technology.is_measured
    fitting = [
        image
        for image in images
        if any(
            arch == architecture and fnmatchcase(_versioned(guest.machine), pattern) for arch, pattern in image.targets
        )
        and all((feature in image.features) is enabled for feature, enabled in wanted.items())
        and required <= image.features
        and (image.is_stateless or not is_measured)
    ]
    kind = f"EFI for {architecture}, secure boot {'on' if guest.has_secure_boot else 'off'}"
    if required:
        kind += f", with {' and '.join(sorted(required))}"
    if not fitting:
        others = ", ".join(image.descriptor for image in images) or "none"
        yield error(
            "firmware",
            f"no image is {kind}: {' and '.join(f'/{directory}' for directory in DIRECTORIES)} describe {others}",
            f"install the Debian package {_PACKAGES[guest.architecture]}, as gpu-launcher's image does, or write "
            "another firmware.bootloader",
        )
    elif fitting[0].missing:
        yield error(
            "firmware",
            f"{fitting[0].descriptor} is {kind}, and names {' and '.join(fitting[0].missing)}, which is not there",
            f"install the Debian package {_PACKAGES[guest.architecture]} anew",
        )


def _versioned(machine: str) -> str:
    """Return an alias of a machine as one of the machines that it stands for: descriptors name those."""
    return {"q35": "pc-q35-0", "virt": "virt-0"}.get(machine, machine)


def _read(path: Path, root: Path) -> FirmwareImage | None:
    try:
        descriptor = json.loads(path.read_text(encoding="utf-8"))
        if "uefi" not in descriptor["interface-types"]:
            return None
        mapping: Mapping[str, Any] = descriptor["mapping"]
        named = [mapping[part]["filename"] for part in ("executable", "nvram-template") if part in mapping]
        if mapping["device"] == "memory":
            named = [mapping["filename"]]
        return FirmwareImage(
            descriptor=path.name,
            features=frozenset(descriptor["features"]),
            targets=tuple(
                (target["architecture"], pattern) for target in descriptor["targets"] for pattern in target["machines"]
            ),
            is_stateless=mapping["device"] == "memory" or mapping.get("mode") == "stateless",
            missing=tuple(name for name in named if not paths.below(root, name).is_file()),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # one that masks another is empty
