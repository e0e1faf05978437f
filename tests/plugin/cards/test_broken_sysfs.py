"""Whatever is broken in sysfs, the healthy rest of the node is offered."""

import os
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pci.address import PCIAddress
from pci.cards import card_of
from pci.sysfs import details
from pci.sysfs.attribute import Unreadable
from pci.sysfs.details import is_off_the_bus
from pci.sysfs.functions import DEVICES, EGMS, FILES, IOMMU_GROUPS, LINKS, MDEVS, read_host
from plugin.allocation import pick
from plugin.cards.config import Config, Groups, Rule
from plugin.cards.inventory import take_inventory
from plugin.cards.names import PCIIDs
from plugin.cards.nodes import read_nodes
from plugin.changes.users import Assignment
from program.errors import ProgramError
from tests.breaking import Break, breaks, broken
from tests.compose import RTX_3090, Function, bridge, card, compose
from tests.kernel import make_nodes, platform_device
from tests.snapshots import snapshot_of

HEALTHY = "0000:01:00.0"
RESOURCE = "nvidia.com/GA102_GEFORCE_RTX_3090"
CONFIGS = (
    Config(),
    Config(groups=Groups.TOGETHER),
    Config(
        offer=(
            Rule(vgpu_type="NVIDIA L40S-1B", resource="example.com/vgpu"),
            Rule(mdev_type="GRID T4-1Q", prefix="a.b"),
        )
    ),
)


def write_machine(sys: Path) -> None:
    """A card that stays as it is, and everything else that is read: a card below a bridge, and in its group what is not
    on PCI; two that share a group, a vGPU with its physical function, a mediated device, an extended GPU memory."""
    compose(
        sys,
        [
            bridge("0000:00:01.0", "1022:1483", path="pci0000:00", group=10),
            *card("0000:01:00", RTX_3090, path="pci0000:00/0000:00:01.0", group=11, numa=0),
            bridge("0000:40:01.0", "1022:1483", path="pci0000:40", group=40),
            *card("0000:41:00", RTX_3090, path="pci0000:40/0000:40:01.0", group=41, numa=1),
            *card("0000:42:00", RTX_3090[:1], path="pci0000:40", group=42),
            *card("0000:43:00", RTX_3090[:1], path="pci0000:40", group=42),
            Function(address="0000:44:00.0", id="10de:26b9", pci_class=0x030200, path="pci0000:40", driver="nvidia",
                     group=44),
            Function(address="0000:44:00.4", id="10de:26b9", pci_class=0x030200, path="pci0000:40", driver="nvidia",
                     group=45, physfn="0000:44:00.0"),
            Function(address="0000:45:00.0", id="10de:1eb8", pci_class=0x030200, path="pci0000:40", driver="nvidia",
                     group=46),
        ],
    )  # fmt: skip
    platform_device(sys, 41, "INTC1055:00", "vfio-platform")
    vgpu = sys / "devices/pci0000:40/0000:44:00.4"
    (vgpu / "nvidia").mkdir()
    (vgpu / "nvidia/current_vgpu_type").write_text("1145\n")
    (vgpu / "nvidia/creatable_vgpu_types").write_text("ID    : vGPU Name\n1145  : NVIDIA L40S-1B\n")
    (vgpu / "vfio-dev/vfio90").mkdir(parents=True)
    mdev = sys / f"devices/pci0000:40/0000:45:00.0/{UUID(int=1)}"
    kind = mdev.parent / "mdev_supported_types/nvidia-222"
    kind.mkdir(parents=True)
    (kind / "name").write_text("GRID T4-1Q\n")
    mdev.mkdir()
    (mdev / "mdev_type").symlink_to("../mdev_supported_types/nvidia-222")
    (sys / IOMMU_GROUPS / "90/devices").mkdir(parents=True)
    (sys / IOMMU_GROUPS / "90/devices" / mdev.name).symlink_to(f"../../../../{mdev.relative_to(sys)}")
    (mdev / "iommu_group").symlink_to(f"../../../../{IOMMU_GROUPS}/90")
    (sys / MDEVS).mkdir(parents=True)
    (sys / MDEVS / mdev.name).symlink_to(f"../../../{mdev.relative_to(sys)}")
    (sys / EGMS / "egm4").mkdir(parents=True)
    (sys / EGMS / "egm4/gpu_devices").write_text("0000:41:00.0 0000:42:00.0\n")
    for address in ("0000:41:00.0", "0000:44:00.0"):
        place = (sys / DEVICES / address).resolve()
        (place / "power_state").write_text("D0\n")
        (place / "config").write_bytes(b"\xde\x10\x04\x22")
        (place / "resource").write_text("0x00000000a1000000 0x00000000a1ffffff 0x0000000000040200\n" * 6)
        (place / "reset_method").write_text("flr bus\n")
        (place / "sriov_numvfs").write_text("1\n")


def breakable(sys: Path) -> set[str]:
    """Everything below `sys` but what the healthy card is made of, and what could be there besides."""
    own = (f"{DEVICES}/{HEALTHY[:-1]}", f"{IOMMU_GROUPS}/11", "devices/pci0000:00/0000:00:01.0/0000:01:00")
    ways_to_it = {DEVICES, IOMMU_GROUPS, "bus", "bus/pci", "kernel", "devices"}
    ways_to_it |= {"devices/pci0000:00", "devices/pci0000:00/0000:00:01.0"}
    found = {
        str((Path(at) / name).relative_to(sys))
        for at, directories, files in os.walk(sys)
        for name in (*directories, *files)
    }
    names = (*FILES, *LINKS, *details.DETAILS, "vfio-dev")
    found |= {f"{DEVICES}/{name}" for name in ("0000:41:00.7", "0000:41:00.9", "x", "10000:e1:00.0")}
    found |= {f"{DEVICES}/0000:4{slot}:00.0/{name}" for slot in range(1, 6) for name in names}
    found |= {f"{IOMMU_GROUPS}/{name}" for name in ("x", "²", "41/devices/x", "41/devices/0000:41:00.5", "42/name")}
    found |= {f"{MDEVS}/{name}" for name in ("x", f"{UUID(int=2)}")} | {f"{EGMS}/x", f"{EGMS}/x/gpu_devices"}
    return {path for path in found - ways_to_it if not path.startswith(own)}


def test_whatever_is_broken_the_healthy_rest_is_offered(
    tmp_path: Path, pci_ids: PCIIDs, pytestconfig: pytest.Config
) -> None:
    sys = tmp_path / "sys"
    write_machine(sys)
    nodes = read_nodes(make_nodes(sys, tmp_path / "dev"))
    as_made = read_host(sys)
    assert as_made.faults == ()
    assigned = [
        Assignment("default/pod", "example.com/x", device)
        for device in ("0000:41:00.1", "42", "", "x", f"{UUID(int=1)}")
    ]

    @settings(max_examples=10_000 if pytestconfig.getoption("--thorough") else 500)
    @given(found=breaks(breakable(sys)), config=st.sampled_from(CONFIGS))
    def holds(found: list[Break], config: Config) -> None:
        with broken(sys, found):
            host = read_host(sys)
            assert card_of(host, PCIAddress.parse(HEALTHY)) == card_of(as_made, PCIAddress.parse(HEALTHY))
            assert host.groups[11] == as_made.groups[11]
            for address in as_made.functions:
                if address not in host.functions and os.path.lexists(sys / DEVICES / str(address)):
                    assert any(str(address) in fault.path for fault in host.faults), f"nobody tells of {address}"
                with suppress(Unreadable):
                    details.read_details(sys, address)
                is_off_the_bus(sys, address)
        inventory = take_inventory(host, config, pci_ids)
        snapshot = snapshot_of(host, pci_ids, config, nodes=nodes)
        assert (HEALTHY, True, 0) in snapshot.listing(RESOURCE)
        assert [device.id for device in pick(snapshot, [HEALTHY])] == [HEALTHY]
        assert HEALTHY not in snapshot_of(host, pci_ids, config, assignments=frozenset(assigned)).holders
        for resource in inventory.by_resource:
            for device_id, healthy, _ in snapshot.listing(resource):
                try:
                    (device,) = pick(snapshot, [device_id])
                except ProgramError:
                    assert not healthy
                    continue
                # Two broken places can hide a function of a group; one cannot.
                if len(found) == 1 and device.mdev is None:
                    members = {function.address for function in device.members}
                    assert members >= set(as_made.groups[device.iommu_group or 0])

    holds()
    assert read_host(sys) == as_made
