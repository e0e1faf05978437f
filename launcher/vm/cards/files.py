"""The option ROMs that volumes bring for cards."""

from collections.abc import Iterator
from pathlib import Path

from launcher.vm import paths
from launcher.vm.cards.roms import roms_of
from launcher.vm.spec import VirtualMachineInstance
from launcher.vm.volumes.media import Brought


def files(vmi: VirtualMachineInstance, root: Path) -> Iterator[Brought]:
    for rom in roms_of(vmi.spec, vmi.metadata).values():
        if rom is not None:
            fix = f"expected the file {rom.path} in that volume, which the pod mounts at {rom.directory}"
            file, directory = (paths.below(root, path) for path in (rom.file, rom.directory))
            yield Brought(file, directory, f"the ROM in the volume {rom.volume!r}", fix)
