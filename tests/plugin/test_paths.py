"""What the doctor says of the paths between cards, by their switches' ACS, ATS, or by groups alone."""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from pci.address import PCIAddress
from pci.host import PeerToPeer
from pci.sysfs.functions import read_host
from pci.sysfs.pcie import read_peer_to_peer
from plugin.cards.names import PCIIDs
from plugin.doctor.finding import Check
from plugin.doctor.paths import of_paths
from tests.compose import config_space, look_closely
from tests.conftest import Machine
from tests.snapshots import look_at

#: Of the first switch.
GPU, OTHER, CARDS = "0000:07:00.0", "0000:0f:00.0", ("0000:0c:00.0", "0000:12:00.0")


@pytest.fixture
def says(pci_ids: PCIIDs) -> Callable[[Path], list[str]]:
    def says(sys: Path) -> list[str]:
        found = list(of_paths(look_at(sys, pci_ids)))
        assert {finding.check for finding in found} <= {Check.PEER_TO_PEER}
        return [finding.problem.wrong for finding in found]

    return says


def ports_of_the_first_switch(sys: Path) -> list[str]:
    functions = read_host(sys).functions
    peers = (functions[PCIAddress.parse(each)] for each in (GPU, OTHER, *CARDS))
    return sorted({str(bridge) for peer in peers for bridge in peer.bridges[2:]})


@pytest.fixture
def hgx(copied_machine: Machine) -> Path:
    return copied_machine("hgx-a100-8-gpu")


def test_of_a_switch_it_says_what_its_ports_do(hgx: Path, says: Callable[[Path], list[str]]) -> None:
    slow = "redirect requests to the root complex (ACS 0x{:02x}): works, and is slow, since {}"
    for acs, ats, expected in (
        (0x1D, False, slow.format(0x1D, "their ACS has no DirectTrans")),
        (0x5D, False, slow.format(0x5D, "ATS is off")),
        (0x5D, True, "but those that ATS has translated (ACS 0x5d): ATS is on for 0000:0c:00.0"),
        (0x11, False, "pass requests on without redirection (ACS): fast, and past the IOMMU"),
        (None, False, "pass requests on without redirection (ACS): fast, and past the IOMMU"),
    ):
        for port in ports_of_the_first_switch(hgx):
            config_space(hgx, port, acs=acs)
        config_space(hgx, CARDS[0], ats=ats)
        first, *_ = says(hgx)
        assert first.startswith(f"{GPU} (3D controller), 0000:0c:00.0 (InfiniBand), {OTHER} (3D controller), ")
        assert expected in first


def test_who_is_not_root_hears_what_the_groups_tell(hgx: Path, says: Callable[[Path], list[str]]) -> None:
    for port in ports_of_the_first_switch(hgx):
        config_space(hgx, port, acs=0x1D, most=64)
    first, *others = says(hgx)
    assert "each in an IOMMU group of its own" in first
    assert others[-1] == (
        "GPUs behind different switches reach each other through root complexes and the IOMMU, whatever ACS and ATS say"
    )
    assert len(others) == 4


def test_cards_without_a_switch_go_through_the_root_complex(
    machine: Machine, says: Callable[[Path], list[str]]
) -> None:
    (both,) = says(machine("two-h100"))
    assert both == (
        "0000:41:00.0 (3D controller), 0000:c1:00.0 (3D controller): no two are behind one switch, and they reach each "
        "other through root complexes and the IOMMU, whatever ACS and ATS say"
    )
    assert says(machine("rtx-2060")) == []


def test_config_space_is_walked_once_and_no_sleeping_function_is_woken(hgx: Path) -> None:
    gpu = PCIAddress.parse(GPU)
    assert read_peer_to_peer(hgx, gpu) is None
    config_space(hgx, GPU, acs=0x1D, ats=True)
    assert read_peer_to_peer(hgx, gpu) == PeerToPeer(acs=0x1D, ats=True)
    look_closely(hgx, GPU, power_state="D3hot")
    assert read_peer_to_peer(hgx, gpu) is None
    look_closely(hgx, GPU, power_state="D0")
    for space in (b"\xff" * 4096, struct.pack("<I", 0x100 << 20 | 0x1) * 1024):
        (hgx / f"bus/pci/devices/{GPU}/config").write_bytes(space)
        assert read_peer_to_peer(hgx, gpu) == PeerToPeer(None, None)
