"""Disks, where golden files do not show it well: many of them, encrypted guests, and what only the volume knows."""

from pathlib import Path

import pytest
from lxml import etree
from lxml.etree import _Element as Element

from launcher.elements.controllers import scsi
from launcher.elements.disks import device_name, disks
from launcher.facts import BlockSizes, Facts, read_block_sizes
from launcher.manifest.reading import read_manifest
from launcher.manifest.spec import VirtualMachineInstance
from program.errors import UserError
from tests.launcher.vms import vmi_text


def read(path: Path, *, disks: str, volumes: str, domain: str = "") -> VirtualMachineInstance:
    text = vmi_text(domain=domain).replace("gpus: []", f"disks: [{disks}]")
    path.write_text(f"{text}  volumes: [{volumes}]\n")
    return read_manifest(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "vm.yaml"


def claim(name: str) -> str:
    return f"{{name: {name}, persistentVolumeClaim: {{claimName: {name}}}}}"


def targets(elements: list[Element]) -> list[str]:
    return [target.get("dev", "") for element in elements for target in element.iterfind("target")]


@pytest.mark.parametrize(
    ("number", "name"),
    [(0, "vda"), (25, "vdz"), (26, "vdaa"), (51, "vdaz"), (52, "vdba"), (701, "vdzz"), (702, "vdaaa")],
)
def test_disks_are_named_as_linux_names_them(number: int, name: str) -> None:
    assert device_name("vd", number) == name


def test_thirty_disks_have_thirty_names(path: Path) -> None:
    vmi = read(path, disks="", volumes=", ".join(claim(f"a{number}") for number in range(30)))
    named = targets(disks(vmi, Facts()))
    assert (len(set(named)), named[0], named[26], named[29]) == (30, "sda", "sdaa", "sdad")


@pytest.mark.parametrize("technology", ["sev: {}", "snp: {}"])
def test_virtio_devices_of_an_encrypted_guest_use_its_dma_api(path: Path, technology: str) -> None:
    vmi = read(
        path,
        disks="{name: a, disk: {bus: virtio}}, {name: b, disk: {bus: scsi}}, {name: c, disk: {bus: sata}}",
        volumes=", ".join(map(claim, "abc")),
        domain=f"    launchSecurity: {{{technology}}}\n    firmware: {{bootloader: {{efi: {{secureBoot: false}}}}}}\n",
    )
    assert [driver.get("iommu") for disk in disks(vmi, Facts()) for driver in disk.iterfind("driver")] == [
        "on",
        None,
        None,
    ]
    (controller,) = scsi(vmi)
    assert etree.tostring(controller[0]) == b'<driver iommu="on"/>'


def test_without_a_scsi_disk_there_is_no_scsi_controller(path: Path) -> None:
    assert scsi(read(path, disks="", volumes=claim("a"))) == []


def test_a_disk_matches_the_block_size_of_its_volume_where_that_is_known(path: Path) -> None:
    vmi = read(path, disks="{name: a, disk: {bus: virtio}, blockSize: {matchVolume: {}}}", volumes=claim("a"))
    (disk,) = disks(vmi, Facts(block_sizes={"a": BlockSizes(512, 4096, 65536)}))
    (blockio,) = disk.iterfind("blockio")
    assert dict(blockio.attrib) == {
        "logical_block_size": "512",
        "physical_block_size": "4096",
        "discard_granularity": "65536",
    }
    with pytest.raises(UserError, match="'a' is to match its volume's block size, which is not known here"):
        disks(vmi, Facts(block_sizes={"b": BlockSizes(512, 4096, 65536)}))


def test_base64_may_have_lines(path: Path) -> None:
    seed = '{name: a, cloudInitNoCloud: {userDataBase64: "I2Nsb3Vk\\r\\nLWNvbmZpZw==\\n"}}'
    assert len(disks(read(path, disks="", volumes=seed), Facts())) == 1


@pytest.mark.parametrize("text", ["I2Nsb3VkLWNvbmZpZw", "I2Nsb3VkLWNvbmZpZw==I2", "I2 Nsb3Vk", "Straße=="])
def test_what_is_not_base64_is_refused(path: Path, text: str) -> None:
    with pytest.raises(UserError, match="cloudInitNoCloud: networkDataBase64: is not base64: "):
        read(path, disks="", volumes=f'{{name: a, cloudInitNoCloud: {{networkDataBase64: "{text}"}}}}')


def test_block_sizes_are_three_numbers_or_one() -> None:
    assert read_block_sizes("a=512/4096/0") == ("a", BlockSizes(512, 4096, 0))
    assert read_block_sizes("a=4096") == ("a", BlockSizes(4096, 4096, 4096))


@pytest.mark.parametrize("setting", ["", "a", "a=", "=512", "a=512/4096", "a=512/4096/0/1", "a=-512", "a=1k", "a=²"])
def test_other_block_sizes_are_refused(setting: str) -> None:
    with pytest.raises(ValueError, match="expected NAME=LOGICAL/PHYSICAL/DISCARD in bytes"):
        read_block_sizes(setting)
