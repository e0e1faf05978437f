"""Whatever is broken in sysfs, what is not broken stays on offer: files missing, empty, binary, huge, directories in
their place, links to nowhere, in circles, to somewhere else.

One tree is broken and mended again, some hundred times; ten thousand with `--thorough`.
"""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pci.attribute import Unreadable
from pci.details import read_details
from pci.platform import read_platform
from pci.sysfs import Host, read_host
from plugin.config import Config, Rule
from plugin.inventory import take_inventory
from plugin.naming import PCIIDs
from plugin.nodes import read_nodes
from plugin.snapshot import Snapshot
from tests.compose import RTX_3090, Function, bridge, card, compose, look_closely
from tests.kernel import make_nodes

HEALTHY = "0000:e1:00.0"
BROKEN = "0000:01:00"
MDEV = "b0c9d7f4-8d30-4d0f-9d6c-0a4d1c2f9f10"
CONFIG = Config(offer=(Rule(vgpu_type="NVIDIA L40S-1B", resource="example.com/vgpu"),))


@pytest.fixture(scope="module")
def sys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A machine with one of everything that is read, and a card that nobody touches."""
    sys = tmp_path_factory.mktemp("broken") / "sys"
    port = "pci0000:00/0000:00:01.1"
    physical = Function(address=f"{BROKEN}.2", id="10de:26b9", pci_class=0x030200, path=port, driver="nvidia", group=12)
    virtual = Function(
        address=f"{BROKEN}.4", id="10de:26b9", pci_class=0x030200, path=port, driver="nvidia", group=13,
        physfn=physical.address,
    )  # fmt: skip
    compose(
        sys,
        [
            bridge("0000:00:01.1", "1022:1483", path="pci0000:00", group=10),
            *card(BROKEN, RTX_3090, path=port, group=11),
            physical,
            virtual,
            *card("0000:e1:00", RTX_3090, path="pci0000:e0/0000:e0:01.1", group=71),
        ],
    )
    make_nodes(sys, sys.parent / "dev", cdevs=True)
    gpu, vf = ((sys / "bus/pci/devices" / f"{BROKEN}.{number}").resolve() for number in (0, 4))
    look_closely(sys, f"{BROKEN}.0", power_state="D0", reset_method="flr bus", boot_vga="0", sriov_numvfs="0")
    (vf / "nvidia").mkdir()
    (vf / "nvidia/current_vgpu_type").write_text("1145\n")
    (vf / "nvidia/creatable_vgpu_types").write_text("ID    : vGPU Name\n1145  : NVIDIA L40S-1B\n")
    (gpu / "mdev_supported_types/nvidia-231").mkdir(parents=True)
    (gpu / "mdev_supported_types/nvidia-231/name").write_text("GRID T4-1Q\n")
    (gpu / MDEV).mkdir()
    (gpu / MDEV / "mdev_type").symlink_to("../mdev_supported_types/nvidia-231")
    (gpu / MDEV / "iommu_group").symlink_to("../../../../../kernel/iommu_groups/40")
    (sys / "bus/mdev/devices").mkdir(parents=True)
    (sys / "bus/mdev/devices" / MDEV).symlink_to(Path("../../..") / (gpu / MDEV).relative_to(sys))
    (sys / "class/egm/egm4").mkdir(parents=True)
    (sys / "class/egm/egm4/gpu_devices").write_text(f"{BROKEN}.0\n")
    return sys


def look(sys: Path, pci_ids: PCIIDs) -> tuple[Host, Snapshot]:
    """All that any command reads; an error that is none of ours is what this is about."""
    host = read_host(sys)
    snapshot = Snapshot(take_inventory(host, CONFIG, pci_ids), read_nodes(sys.parent / "dev"))
    for address in host.functions:
        with contextlib.suppress(Unreadable):
            read_details(sys, address)
    read_platform(sys, None)
    return host, snapshot


def everything(sys: Path) -> list[str]:
    """The paths that can be broken: all but those of the healthy card, and the directories that all share."""
    places = [
        sys / "class/egm",
        sys / "bus/mdev",
        *(sys / "kernel/iommu_groups" / group for group in ("10", "11", "12")),
    ]
    places.append(sys / "devices/pci0000:00")
    found = [path for place in places for path in [place, *place.rglob("*")]]
    found += [path for path in (sys / "bus/pci/devices").iterdir() if "e1:00" not in path.name]
    return sorted({str(path.relative_to(sys)) for path in found})


@contextmanager
def broken(path: Path, spare: Path, break_it: Callable[[Path], object]) -> Iterator[None]:
    """Something else in the path's place, as long as the block."""
    path.rename(spare)
    try:
        break_it(path)
        yield
    finally:
        if path.is_symlink() or path.is_file():
            path.unlink()
        elif path.exists():
            shutil.rmtree(path)
        spare.rename(path)


CONTENTS = st.one_of(
    st.binary(max_size=60),
    st.sampled_from([b"", b"\n", b"0x10de\n", b"-1\n", b"9" * 5000, b"\x00" * 70_000, b"DRIVER=" * 9000, b"1145\n"]),
    st.text("0123456789abcdef:x.- \n=PCI_DRVE", max_size=40).map(str.encode),
)
TARGETS = st.one_of(
    st.sampled_from([".", "..", "nowhere", "/", "/proc/self", "../../bus/pci/drivers/vfio-pci", "a" * 300]),
    # To say that it is in the healthy card's group is to break that one.
    st.text("abc/.0123456789:", min_size=1, max_size=20).filter(lambda text: not text.endswith("71")),
)
BREAKS: st.SearchStrategy[Callable[[Path], object]] = st.one_of(
    st.just(lambda path: None),
    st.just(lambda path: path.mkdir()),
    st.just(lambda path: path.symlink_to(path.name)),
    CONTENTS.map(lambda content: lambda path: path.write_bytes(content)),
    TARGETS.map(lambda target: lambda path: path.symlink_to(target)),
)


def test_the_machine_is_whole_to_begin_with(sys: Path, pci_ids: PCIIDs) -> None:
    host, snapshot = look(sys, pci_ids)
    assert host.faults == ()
    assert snapshot.troubles.keys() == {MDEV, f"{BROKEN}.4"}, "these have no node here"
    assert {device.id for devices in snapshot.inventory.listed.values() for device in devices} == {
        f"{BROKEN}.0",
        f"{BROKEN}.4",
        HEALTHY,
        MDEV,
    }


def test_whatever_is_broken_the_healthy_card_stays_on_offer(
    sys: Path, pci_ids: PCIIDs, pytestconfig: pytest.Config
) -> None:
    paths = everything(sys)
    assert len(paths) > 60

    @settings(
        max_examples=10_000 if pytestconfig.getoption("--thorough") else 1_000,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(path=st.sampled_from(paths), break_it=BREAKS)
    def check(path: str, break_it: Callable[[Path], object]) -> None:
        with broken(sys / path, sys.parent / "spare", break_it):
            host, snapshot = look(sys, pci_ids)
            healthy = snapshot.inventory.by_id[HEALTHY]
            assert snapshot.reason(healthy) is None
            assert [function.address.function for function in healthy.functions] == [0, 1]
            assert all(str(fault).count("\n") == 0 for fault in host.faults)

    check()
    assert read_host(sys).faults == (), "and it was mended"
