from pathlib import Path

import pytest

from pci.address import PCIAddress
from pci.host import OtherMember
from pci.sysfs import details, pcie, vgpus
from pci.sysfs.functions import FILES, LINKS, VFIO_DEV_NUMBER, NotSysfs, read_host
from pci.sysfs.huge_pages import read_transparent
from pci.sysfs.processors import NODE_FILES, SIBLINGS, read_processors
from pci.sysfs.record import record
from pci.sysfs.vgpus import read_card
from tests.compose import MACHINES, PROCESSORS, SYSFS, compose
from tests.conftest import Machine
from tests.kernel import platform_device
from tests.vgpu_kernel import Kernel, a10, b60, l40s


def contents(tree: Path) -> dict[str, str]:
    """Every file's text and every link's target, by path; READMEs are not part of a machine."""
    return {
        str(path.relative_to(tree)): str(path.readlink()) if path.is_symlink() else path.read_text()
        for path in sorted(tree.rglob("*"))
        if path.is_symlink() or (path.is_file() and path.name != "README.md")
    }


@pytest.mark.parametrize("name", sorted(path.name for path in SYSFS.iterdir()))
def test_a_recorded_machine_recorded_again_is_the_same(machine: Machine, tmp_path: Path, name: str) -> None:
    record(machine(name), tmp_path / "again")
    assert contents(tmp_path / "again") == contents(machine(name))
    assert read_host(tmp_path / "again") == read_host(machine(name))
    assert read_processors(tmp_path / "again") == read_processors(machine(name))


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_a_composed_machine_is_what_its_description_says(machine: Machine, tmp_path: Path, name: str) -> None:
    compose(tmp_path / "sys", MACHINES[name], PROCESSORS.get(name))
    assert contents(tmp_path / "sys") == contents(machine(name)), "run python -m tests.compose, and read the diff"


@pytest.mark.parametrize("name", sorted(path.name for path in SYSFS.iterdir()))
def test_every_machine_says_whether_it_was_recorded_or_composed(machine: Machine, name: str) -> None:
    first = (machine(name) / "README.md").read_text().splitlines()[0]
    assert first.startswith("Composed by hand" if name in MACHINES else "Recorded with")


def test_this_machine_can_be_recorded_and_nothing_but_what_is_read(tmp_path: Path) -> None:
    record(Path("/sys"), tmp_path / "here")
    assert read_host(tmp_path / "here").functions == read_host(Path("/sys")).functions
    below_devices = {path.name for path in (tmp_path / "here/devices").rglob("*") if not path.is_dir()}
    assert below_devices <= {
        *FILES,
        *LINKS,
        *details.DETAILS,
        *pcie.PCIE,
        *NODE_FILES,
        VFIO_DEV_NUMBER,
        SIBLINGS.rpartition("/")[2],
        *(pattern.rpartition("/")[2] for pattern in vgpus.PATTERNS),
    }
    assert read_transparent(tmp_path / "here") == read_transparent(Path("/sys"))


def test_what_is_not_on_pci_in_a_group_is_recorded_with_its_driver(copied_machine: Machine, tmp_path: Path) -> None:
    sys = copied_machine("rtx-2060")
    platform_device(sys, 1, "INTC1055:00", "intel-lpss")
    platform_device(sys, 1, "INTC1056:00", None)
    record(sys, tmp_path / "out")
    assert contents(tmp_path / "out") == contents(sys)
    assert read_host(tmp_path / "out") == read_host(sys)
    assert read_host(sys).others == {1: (OtherMember("INTC1055:00", "intel-lpss"), OtherMember("INTC1056:00", None))}


def test_a_broken_machine_is_recorded_as_far_as_it_can_be_read(copied_machine: Machine, tmp_path: Path) -> None:
    sys = copied_machine("rtx-2060")
    devices = sys / "bus/pci/devices"
    (devices / "0000:0a:00.0").symlink_to("0000:0a:00.0")
    (devices / "0000:0b:00.0").symlink_to("/")
    (devices / "0000:0c:00.0").mkdir()
    (sys / "kernel/iommu_groups/1/devices/file").touch()
    record(sys, tmp_path / "out")
    assert read_host(tmp_path / "out").functions == read_host(sys).functions


def test_what_cards_are_cut_into_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "node").mkdir()
    cards = (l40s(), a10(), b60())
    kernel = Kernel(tmp_path / "node", *cards)
    for card in cards:
        kernel.on(card)
    record(kernel.sys, tmp_path / "recorded")
    for address in (PCIAddress.parse(card.address) for card in cards):
        found = read_card(kernel.sys, address)
        assert found.functions
        assert found.places or found.quotas
        assert read_card(tmp_path / "recorded", address) == found


def test_a_directory_that_is_no_sysfs_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(NotSysfs, match="expected a sysfs tree"):
        record(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
