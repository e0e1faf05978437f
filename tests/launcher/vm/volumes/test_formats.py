"""Images of other formats are never taken for raw, and what a guest writes into its raw disk chooses nothing."""

import os
from pathlib import Path

import pytest

from launcher.vm import paths
from launcher.vm.facts import Facts
from launcher.vm.paths import below
from launcher.vm.spec import VirtualMachineInstance
from launcher.vm.volumes.images import format_of
from launcher.vm.volumes.media import making_media
from program.errors import Refusal
from tests.launcher.vm.volumes.pods import needed, put, qemu_img, vmi_with

#: A name, and what qemu-img makes it with; it knows each format by its own probes.
IMAGES = {
    "sparse.vmdk": ("vmdk",),
    "described.vmdk": ("vmdk", "-o", "subformat=monolithicFlat"),
    "exported.vmdk": ("vmdk", "-o", "subformat=streamOptimized"),
    "disk.vhdx": ("vhdx",),
    "disk.vdi": ("vdi",),
    "disk.qed": ("qed",),
    "dynamic.vhd": ("vpc",),
    "fixed.vhd": ("vpc", "-o", "subformat=fixed"),
    "disk.hdd": ("parallels",),
    "disk.qcow": ("qcow",),
    "disk.qcow2": ("qcow2",),
    "disk.img": ("raw",),
}
_CLAIM = "{name: data, persistentVolumeClaim: {claimName: data}}"
_VOLUMES = {
    "a claim": (_CLAIM, paths.disk_image("data")),
    "a claim below": ("{name: data, ephemeral: {persistentVolumeClaim: {claimName: a}}}", paths.disk_image("data")),
    "a host disk": ("{name: data, hostDisk: {path: /srv/vm.img, type: Disk}}", paths.disk_image("data", "vm.img")),
    "an image": ("{name: data, containerDisk: {image: a}}", f"{paths.image_volume('data')}/disk/disk.img"),
}


def make(directory: Path, name: str) -> Path:
    image = directory / name
    directory.mkdir(parents=True, exist_ok=True)
    kind, *options = IMAGES[name]
    qemu_img("create", "-q", "-f", kind, *options, image, "4M")
    return image


@pytest.mark.parametrize("name", IMAGES)
def test_a_format_is_known_by_its_first_and_last_bytes(name: str, tmp_path: Path) -> None:
    assert format_of(make(tmp_path, name)) == IMAGES[name][0]


@pytest.mark.parametrize("content", [b"", b"KDM", b"\0" * 100, b"LUKS\xba\xbe" + bytes(1018)])
def test_whatever_else_a_file_has_it_is_raw(content: bytes, tmp_path: Path) -> None:
    """Also one that a guest has encrypted as a whole."""
    assert format_of(put(tmp_path, "/a", content)) == "raw"


def test_a_dmg_is_known_by_its_end(tmp_path: Path) -> None:
    assert format_of(put(tmp_path, "/a", bytes(1024) + b"koly".ljust(512, b"\0"))) == "dmg"


@pytest.mark.parametrize("name", [name for name in IMAGES if name not in ("disk.qcow2", "disk.img")])
@pytest.mark.parametrize("volume", _VOLUMES)
def test_an_image_of_another_format_is_refused_with_its_conversion(volume: str, name: str, tmp_path: Path) -> None:
    source, place = _VOLUMES[volume]
    file = put(tmp_path, place, make(tmp_path / "made", name).read_bytes())
    kind = IMAGES[name][0]
    facts = Facts(raw_images=frozenset({"data"}))
    with pytest.raises(Refusal) as refused:
        needed(vmi_with(tmp_path, source), facts, tmp_path)
    assert str(refused.value) == (
        f"the volume 'data': {file} is a {kind} image, and would be opened as raw; "
        f"qemu-img convert -f {kind} -O raw {file} NEW.raw, and take that one"
    )


def test_a_qcow2_image_in_a_claim_is_no_raw_disk(tmp_path: Path) -> None:
    put(tmp_path, paths.disk_image("data"), make(tmp_path / "made", "disk.qcow2").read_bytes())
    with pytest.raises(Refusal, match="is a qcow2 image, and would be opened as raw; qemu-img convert -f qcow2 -O raw"):
        needed(vmi_with(tmp_path, _CLAIM), Facts(), tmp_path)


def started(vmi: VirtualMachineInstance, root: Path) -> None:
    with making_media(needed(vmi, Facts(), root)):
        pass


@pytest.mark.parametrize(
    ("source", "place"),
    [
        *(_VOLUMES[volume] for volume in ("a claim", "a host disk")),
        (
            "{name: data, hostDisk: {path: /srv/vm.img, type: DiskOrCreate, capacity: 1Mi}}",
            paths.disk_image("data", "vm.img"),
        ),
    ],
)
def test_whatever_a_guest_writes_into_its_raw_disk_it_starts_again(source: str, place: str, tmp_path: Path) -> None:
    vmi = vmi_with(tmp_path, source)
    file = put(tmp_path, place, b"" if "OrCreate" in source else bytes(1 << 20))
    started(vmi, tmp_path)
    for name in ("sparse.vmdk", "disk.qcow2"):
        file.write_bytes(make(tmp_path / "made", name).read_bytes())
        started(vmi, tmp_path)


def test_a_link_within_the_claim_is_as_good_as_the_disk(tmp_path: Path) -> None:
    file = put(tmp_path, paths.disk_image("data", "real.img"), bytes(512))
    below(tmp_path, paths.disk_image("data")).symlink_to("real.img")
    vmi = vmi_with(tmp_path, _CLAIM)
    started(vmi, tmp_path)
    file.write_bytes(b"conectix".ljust(512, b"\0"))
    started(vmi, tmp_path)


def test_a_pipe_in_place_of_a_disk_holds_nothing_up(tmp_path: Path) -> None:
    """Whoever has the claim may put it there between the two looks at it."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="seek"):
        format_of(tmp_path / "pipe")


def test_a_mark_is_set_on_no_link(tmp_path: Path) -> None:
    vmi = vmi_with(tmp_path, _CLAIM)
    other = put(tmp_path, "/etc/other", bytes(512))
    needs = needed(vmi, Facts(), put(tmp_path, paths.disk_image("data"), bytes(512)) and tmp_path)
    file = below(tmp_path, paths.disk_image("data"))
    file.unlink()
    file.symlink_to(other)
    with pytest.raises(Refusal, match="leads out of its volume"), making_media(needs):
        pass
    assert os.listxattr(other) == []
