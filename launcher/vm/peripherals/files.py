"""The kept state of a TPM, which libvirt and swtpm make."""

from collections.abc import Iterator
from pathlib import Path

from launcher.vm import paths
from launcher.vm.facts import Facts
from launcher.vm.spec import VirtualMachineInstance
from launcher.vm.volumes.media import Directory, Need, StateFiles, Symlink


def files(vmi: VirtualMachineInstance, facts: Facts, root: Path) -> Iterator[Need]:
    """Keep the state of a persistent TPM: libvirt's root ends with the pod, or with the session of an own machine."""
    if not vmi.spec.domain.devices.keeps_tpm:
        return
    kept, authority = (paths.below(root, facts.place(place)) for place in (paths.TPM_STATE, paths.SWTPM_CA))
    yield StateFiles(kept, "the TPM's state")
    yield StateFiles(authority, "the TPM's state")
    if facts.own is not None:
        yield Directory(kept)
        yield Symlink(facts.own.run / Path(paths.SWTPM).relative_to(paths.LIBVIRT_ROOT), kept)
    elif kept.is_dir():
        yield Symlink(paths.below(root, paths.SWTPM), kept)
