"""The files that a VM needs and that neither libvirt nor the pod makes: those of each thing, in the order in which they
are made."""

from pathlib import Path

from launcher.vm.cards import files as cards
from launcher.vm.facts import Facts
from launcher.vm.firmware import files as firmware
from launcher.vm.peripherals import files as peripherals
from launcher.vm.spec import VirtualMachineInstance
from launcher.vm.volumes import files as volumes
from launcher.vm.volumes.media import Needs, StateFiles
from launcher.vm.volumes.places import refuse_all_but_files
from program.errors import Refusal


def needs_of(vmi: VirtualMachineInstance, facts: Facts, root: Path = Path("/")) -> Needs:
    """Return the VM's needs in a pod whose root directory is `root`. This makes nothing."""
    of_volumes = volumes.needs_of(vmi, facts, root)
    needs, refusals = [*of_volumes.needs], [*of_volumes.refusals]
    for need in (
        *firmware.files(vmi, facts, root),
        *cards.files(vmi, root),
        *peripherals.files(vmi, facts, root),
    ):
        try:
            if isinstance(need, StateFiles):
                refuse_all_but_files(need.whose, need.path)
            needs.append(need)
        except Refusal as refusal:
            refusals.append(refusal)
    return Needs(tuple(needs), tuple(refusals))
