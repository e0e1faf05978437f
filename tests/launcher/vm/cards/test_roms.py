"""Option ROMs: files of volumes, where the pod has them, and no other files."""

from pathlib import Path
from uuid import UUID

import pytest

from launcher.vm.cards.claims import Claim, Entry, EntryKind
from launcher.vm.cards.guest import GuestCard
from launcher.vm.cards.roms import ROM, roms_by_alias, roms_of
from launcher.vm.facts import Facts
from launcher.vm.files import needs_of
from launcher.vm.from_spec import guest_of
from launcher.vm.spec import VirtualMachineInstance
from launcher.vm.volumes.checks import volumes
from launcher.vm.volumes.media import refuse_links
from launcher.vm.volumes.pod import mounts
from program.errors import Refusal, UserError
from tests.launcher.vm.volumes.pods import put
from tests.launcher.vms import RTX_2060, read_manifest, vmi_text

#: The volume that a ROM is a file of, by its kind.
SOURCES = {
    "configMap": "{name: c}",
    "secret": "{secretName: c}",
    "persistentVolumeClaim": "{claimName: c}",
    "dataVolume": "{name: c}",
}
ANNOTATIONS = '{name: vm, annotations: {gpu-launcher.dev/rom: \'{"gpu1": "roms/a/gpu.rom"}\'}}'


def vm(path: Path, kind: str) -> VirtualMachineInstance:
    text = vmi_text(gpus=[("gpu1", RTX_2060)]).replace("{name: vm}", ANNOTATIONS)
    path.write_text(f"{text}  volumes:\n  - {{name: roms, {kind}: {SOURCES[kind]}}}\n")
    return read_manifest(path)


def rom(vmi: VirtualMachineInstance) -> ROM:
    found = roms_of(vmi.spec, vmi.metadata)["gpu1"]
    assert found is not None
    return found


@pytest.mark.parametrize("kind", SOURCES)
def test_the_pod_mounts_the_volume_where_the_domain_has_the_rom(tmp_path: Path, kind: str) -> None:
    vmi = vm(tmp_path / "vm.yaml", kind)
    mounted = mounts(vmi.spec, guest_of(vmi), "manifest", {}, frozenset())
    assert [mount.at for mount in mounted if mount.name == "roms"] == [rom(vmi).directory]
    assert rom(vmi).file == f"{rom(vmi).directory}/a/gpu.rom"


@pytest.mark.parametrize("kind", SOURCES)
def test_a_rom_is_a_file_of_its_volume_before_the_start_and_at_it(tmp_path: Path, kind: str) -> None:
    vmi = vm(tmp_path / "vm.yaml", kind)
    root = tmp_path / "root"
    of_rom = "the ROM in the volume 'roms': "

    def said() -> list[str]:
        lines = map(str, volumes(vmi.spec, Facts(), root, needs_of(vmi, Facts(), root).needs))
        return [line.removeprefix(of_rom) for line in lines if line.startswith(of_rom)]

    (missing,) = said()
    assert missing.startswith(f"{root}{rom(vmi).file} cannot be found: No such file")
    file = put(root, rom(vmi).file)
    assert said() == []
    file.unlink()
    file.symlink_to(put(tmp_path, "outside/shadow"))
    (link,) = said()
    assert link.startswith(f"{root}{rom(vmi).file} leads out of its volume, to {tmp_path}/outside/shadow")
    with pytest.raises(Refusal, match="leads out of its volume"):
        refuse_links(need for need in needs_of(vmi, Facts(), root).needs if "ROM" in getattr(need, "whose", ""))


def test_a_mediated_device_has_no_rom() -> None:
    entry = Entry(kind=EntryKind.GPU, name="gpu1", wants="example.com/vgpu")
    vgpu = GuestCard(claim=Claim(entry=entry, device=UUID(int=1), variable=None), functions=(), missing=None)
    with pytest.raises(UserError, match=r"gpu-launcher\.dev/rom: gpu 'gpu1' is no PCI function; leave it out there"):
        roms_by_alias((vgpu,), {"gpu1": None})
