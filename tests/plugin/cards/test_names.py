import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pci.vendors import PREFIXES
from plugin.cards.names import PCIIDs, is_resource_name, read_pci_ids, resource_name, sanitised, type_resource_name
from program.errors import UserError


@pytest.mark.parametrize(
    ("vendor_id", "device_id", "expected"),
    [
        # As NVIDIA's kubevirt-gpu-device-plugin calls them.
        (0x10DE, 0x1F08, "nvidia.com/TU106_GEFORCE_RTX_2060_REV__A"),
        (0x10DE, 0x2204, "nvidia.com/GA102_GEFORCE_RTX_3090"),
        (0x10DE, 0x118A, "nvidia.com/GK104GL_GRID_K520"),
        (0x10DE, 0x1EB8, "nvidia.com/TU104GL_TESLA_T4"),
        (0x10DE, 0x2331, "nvidia.com/GH100_H100_PCIE"),  # 8086 has a 2331 too
        (0x10DE, 0x1AEF, "nvidia.com/GA102_HIGH_DEFINITION_AUDIO_CONTROLLER"),
        # Where NVIDIA's name is no resource name the kubelet refuses it; ours is mended.
        (0x10DE, 0x24FA, "nvidia.com/GA104_RTX_A4500_EMBEDDED_GPU"),
        (0x10DE, 0x05BE, "nvidia.com/NF200_PCIE_2_0_SWITCH_FOR_QUADRO_PLEX_S4___TESLA_S870___TESLA_S"),
        # Not in the file: the device ID.
        (0x10DE, 0x1B80, "nvidia.com/1b80"),
        (0x1002, 0x744C, "amd.com/NAVI_31_RADEON_RX_7900_XT_7900_XTX"),
        (0x8086, 0x56C0, "intel.com/DATA_CENTER_GPU_FLEX_170"),
    ],
)
def test_a_gpu_is_called_what_pci_ids_calls_it(pci_ids: PCIIDs, vendor_id: int, device_id: int, expected: str) -> None:
    assert resource_name(pci_ids, PREFIXES[vendor_id], vendor_id, device_id) == expected
    assert is_resource_name(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gk104gl [grid k520]", "GK104GL_GRID_K520"),
        ("gk104.gl [grid/k./520]", "GK104_GL_GRID_K__520"),
        ("GH100 [GH200 120GB / 480GB]", "GH100_GH200_120GB___480GB"),
        ("TU106M [GeForce RTX 2060 Max-Q]", "TU106M_GEFORCE_RTX_2060_MAXQ"),
        ("  blanks\t and  more ", "BLANKS_AND_MORE"),
        ("!!!", ""),
    ],
)
def test_a_name_is_sanitised_in_nvidias_order(text: str, expected: str) -> None:
    assert sanitised(text) == expected


@given(st.text())
def test_whatever_pci_ids_says_the_name_is_valid_or_empty(text: str) -> None:
    name = sanitised(text)
    assert name == "" or is_resource_name(f"nvidia.com/{name}")


def test_a_subsystem_line_is_not_a_device(pci_ids: PCIIDs) -> None:
    # 10de:2484 has the subsystem 10de:146b, which is no device of its own.
    assert pci_ids.device(0x10DE, 0x146B) is None


def test_the_file_says_how_old_its_names_are(pci_ids: PCIIDs) -> None:
    assert pci_ids.date == "2023-04-10"


def test_another_file_gives_other_names(tmp_path: Path) -> None:
    path = tmp_path / "pci.ids"
    path.write_text("#\tDate:    2030-01-01 00:00:00\n10de  NVIDIA\n\t1f08  Renamed [Card]\nffff  Last\n")
    newer = read_pci_ids(path)
    assert (newer.date, resource_name(newer, "nvidia.com", 0x10DE, 0x1F08)) == ("2030-01-01", "nvidia.com/RENAMED_CARD")


def test_a_missing_file_is_named_with_the_package_that_has_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=re.escape(f"{tmp_path}/x: cannot be read: No such file or directory")) as error:
        read_pci_ids(tmp_path / "x")
    assert "install the package pci.ids" in str(error.value)


@pytest.mark.parametrize(
    "resource",
    [
        *("nvidia.com/", "/x", "x", "nvidia.com/_X", "nvidia.com/X_", "nvidia.com/X Y", "NVIDIA.com/X", "a/b/c"),
        *(
            "kubernetes.io/gpu",
            "x.kubernetes.io/gpu",
            "requests.nvidia.com/gpu",
            "nvidia.com/" + "x" * 64,
            "x" * 245 + "/gpu",
        ),
    ],
)
def test_what_the_kubelet_would_refuse_is_no_resource_name(resource: str) -> None:
    assert not is_resource_name(resource)


@pytest.mark.parametrize("text", ["", "root:x:0:0:root:/root:/bin/bash\n"])
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "pci.ids"
    path.write_text(text)
    with pytest.raises(UserError, match=r"is no pci\.ids file; expected lines like"):
        read_pci_ids(path)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("118e gk104.gl [grid/k./520]", "nvidia.com/GK104_GL_GRID_K__520"),  # a single blank after the ID
        ("118e  _GPU [trailing] _ ", "nvidia.com/GPU_TRAILING"),
        ("118e  !!!", "nvidia.com/118e"),
        ("118e  ___", "nvidia.com/118e"),
        ("118e", "nvidia.com/118e"),
        ("118e  " + "x" * 62 + " y", "nvidia.com/" + "X" * 62),
        ("118f  another", "nvidia.com/118e"),
    ],
)
def test_whatever_the_line_the_name_is_valid(tmp_path: Path, line: str, expected: str) -> None:
    path = tmp_path / "pci.ids"
    path.write_text(f"10de  NVIDIA\n\t{line}\n")
    assert resource_name(read_pci_ids(path), "nvidia.com", 0x10DE, 0x118E) == expected
    assert is_resource_name(expected)


@pytest.mark.parametrize(
    ("type_name", "expected"),
    [
        ("NVIDIA A2-4C", "nvidia.com/NVIDIA_A2-4C"),  # hyphens stay in the names of types
        ("GRID T4-1Q", "nvidia.com/GRID_T4-1Q"),
        ("", None),
        ("a/b", None),
    ],
)
def test_a_type_keeps_its_name_where_that_is_valid(type_name: str, expected: str | None) -> None:
    assert type_resource_name("nvidia.com", type_name) == expected


def test_a_last_line_without_its_end_counts(tmp_path: Path) -> None:
    path = tmp_path / "pci.ids"
    path.write_text("10de  NVIDIA\n\t1f08  Last [Card]")
    assert read_pci_ids(path).device(0x10DE, 0x1F08) == "Last [Card]"
