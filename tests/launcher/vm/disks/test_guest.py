"""Disks, where golden files do not show it well: many of them, and what only the volume knows."""

from pathlib import Path

import pytest

from launcher.vm.disks.guest import GuestDisk, device_name, guest_disks, iothreads_of
from launcher.vm.facts import BlockSizes, Facts, read_block_sizes
from launcher.vm.spec import VirtualMachineInstance
from program.errors import UserError
from tests.launcher.vms import read_manifest, vmi_text

_NOTHING = Facts()


def read(path: Path, *, disks: str, volumes: str, domain: str = "") -> VirtualMachineInstance:
    text = vmi_text(domain=domain).replace("gpus: []", f"disks: [{disks}]")
    path.write_text(f"{text}  volumes: [{volumes}]\n")
    return read_manifest(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "vm.yaml"


def claim(name: str) -> str:
    return f"{{name: {name}, persistentVolumeClaim: {{claimName: {name}}}}}"


def disks_of(vmi: VirtualMachineInstance, facts: Facts = _NOTHING) -> list[GuestDisk]:
    return list(guest_disks(vmi.spec, vmi.metadata, iothreads_of(vmi.spec), facts))


@pytest.mark.parametrize(
    ("number", "name"),
    [(0, "vda"), (25, "vdz"), (26, "vdaa"), (51, "vdaz"), (52, "vdba"), (701, "vdzz"), (702, "vdaaa")],
)
def test_disks_are_named_as_linux_names_them(number: int, name: str) -> None:
    assert device_name("vd", number) == name


def test_thirty_disks_have_thirty_names(path: Path) -> None:
    vmi = read(path, disks="", volumes=", ".join(claim(f"a{number}") for number in range(30)))
    named = [disk.device for disk in disks_of(vmi)]
    assert (len(set(named)), named[0], named[26], named[29]) == (30, "sda", "sdaa", "sdad")


def test_a_disk_matches_the_block_size_of_its_volume_where_that_is_known(path: Path) -> None:
    vmi = read(path, disks="{name: a, disk: {bus: virtio}, blockSize: {matchVolume: {}}}", volumes=claim("a"))
    sizes = BlockSizes(512, 4096, 65536)
    (disk,) = disks_of(vmi, Facts(block_sizes={"a": sizes}))
    assert disk.block_sizes == sizes
    with pytest.raises(UserError, match="'a' is to match its volume's block size, which is not known here"):
        disks_of(vmi, Facts(block_sizes={"b": BlockSizes(512, 4096, 65536)}))


def test_a_disk_that_several_guests_share_is_refused_where_each_node_would_cache_it(path: Path) -> None:
    facts = Facts(no_direct_io=frozenset({"a"}))
    (alone,) = disks_of(read(path, disks="{name: a, disk: {bus: virtio}}", volumes=claim("a")), facts)
    assert alone.cache == "writethrough"
    shared = read(path, disks="{name: a, disk: {bus: virtio}, shareable: true}", volumes=claim("a"))
    assert [disk.cache for disk in disks_of(shared)] == ["none"]
    with pytest.raises(UserError, match=r"'a' is shareable, so the node may not cache it, .* takes no direct I/O"):
        disks_of(shared, facts)


def test_base64_may_have_lines(path: Path) -> None:
    seed = '{name: a, cloudInitNoCloud: {userDataBase64: "I2Nsb3Vk\\r\\nLWNvbmZpZw==\\n"}}'
    assert len(disks_of(read(path, disks="", volumes=seed))) == 1


@pytest.mark.parametrize("text", ["I2Nsb3VkLWNvbmZpZw", "I2Nsb3VkLWNvbmZpZw==I2", "I2 Nsb3Vk", "Straße=="])
def test_what_is_not_base64_is_refused(path: Path, text: str) -> None:
    with pytest.raises(UserError, match=r"cloudInitNoCloud\.networkDataBase64: is not base64: "):
        read(path, disks="", volumes=f'{{name: a, cloudInitNoCloud: {{networkDataBase64: "{text}"}}}}')


def test_block_sizes_are_three_numbers_or_one() -> None:
    assert read_block_sizes("a=512/4096/0") == ("a", BlockSizes(512, 4096, 0))
    assert read_block_sizes("a=4096") == ("a", BlockSizes(4096, 4096, 4096))


@pytest.mark.parametrize("setting", ["", "a", "a=", "=512", "a=512/4096", "a=512/4096/0/1", "a=-512", "a=1k", "a=²"])
def test_other_block_sizes_are_refused(setting: str) -> None:
    with pytest.raises(UserError, match="expected NAME=LOGICAL/PHYSICAL/DISCARD in bytes"):
        read_block_sizes(setting)
