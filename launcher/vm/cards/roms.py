"""The option ROMs that cards have in the guest, where the manifest says it: a file of a volume, or none at all.

A card that the host's firmware has set up shows a ROM that is spoilt, or has none of its own that fits the guest's
firmware.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from launcher.vm.cards.guest import GuestCard
from launcher.vm.guest import ROM_OF
from launcher.vm.spec import Metadata, Spec
from launcher.vm.volumes.guest import directory_of
from pci.address import PCIAddress
from program.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class ROM:
    """A file below the `directory` where the pod has its volume; the names of both as the pod has them."""

    volume: str
    directory: str
    path: str

    @property
    def file(self) -> str:
        return f"{self.directory}/{self.path}"


def roms_of(spec: Spec, metadata: Metadata) -> Mapping[str, ROM | None]:
    """Return the ROMs of the manifest by their entries' names; None for an entry without a ROM."""
    directories = {volume.name: directory_of(volume) for volume in spec.volumes}
    return {
        name: ROM(volume=rom.volume, directory=directories[rom.volume], path=rom.path) if rom is not None else None
        for name, rom in metadata.annotations.roms.items()
    }


def roms_by_alias(cards: tuple[GuestCard, ...], roms: Mapping[str, ROM | None]) -> Mapping[str, ROM | None]:
    """Return the ROMs by the alias of the device; UserError for a device that is no PCI function."""
    claims = {card.claim.entry.name: card.claim for card in cards}
    for name in roms:
        if name in claims and not isinstance(claims[name].device, PCIAddress):
            raise UserError(
                "metadata.annotations", f"{ROM_OF}: {claims[name].entry} is no PCI function", "leave it out there"
            )
    return {claims[name].alias: rom for name, rom in roms.items() if name in claims}
