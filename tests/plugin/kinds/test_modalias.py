from pathlib import Path

import pytest

from pci.address import PCIAddress
from pci.host import Function
from pci.sysfs.functions import read_host
from plugin.kinds.modalias import Alias, best_module, parse_aliases, read_aliases
from program.errors import Refusal
from tests.conftest import Machine

_ANY = "vfio_pci:v*d*sv*sd*bc*sc*i*"


@pytest.fixture
def gpu(machine: Machine) -> Function:
    return read_host(machine("rtx-2060")).functions[PCIAddress.parse("0000:01:00.0")]


def test_a_kernel_without_vfio_aliases_has_no_variants(tmp_path: Path) -> None:
    assert read_aliases(tmp_path) == ()
    (tmp_path / "modules.alias").write_text("# Aliases extracted from modules themselves.\nalias pci:v*d* nouveau\n")
    assert read_aliases(tmp_path) == ()


def test_variants_are_the_modules_with_a_vfio_alias(tmp_path: Path) -> None:
    (tmp_path / "modules.alias").write_text(
        "alias vfio_pci:v000015B3d0000101Esv*sd*bc*sc*i* mlx5_vfio_pci\n"
        f"alias {_ANY} vfio_pci\n"
        "alias vfio_pci: \n"
        "alias fs-ext4 ext4\n"
    )
    assert read_aliases(tmp_path) == (
        Alias("vfio_pci:v000015B3d0000101Esv*sd*bc*sc*i*", "mlx5_vfio_pci"),
        Alias(_ANY, "vfio_pci"),
    )


def test_a_list_that_cannot_be_read_is_no_empty_list(tmp_path: Path) -> None:
    (tmp_path / "modules.alias").mkdir()
    with pytest.raises(Refusal, match=r"modules\.alias: cannot read which variants of vfio-pci there are"):
        read_aliases(tmp_path)


@pytest.mark.parametrize(
    ("aliases", "module"),
    [
        ([], "vfio_pci"),
        (["vfio_pci:v000015B3d0000101Esv*sd*bc*sc*i* mlx5_vfio_pci"], "vfio_pci"),
        ([f"{_ANY} vfio_pci", "vfio_pci:v000010DEd00001F08sv*sd*bc*sc*i* one"], "one"),
        (["vfio_pci:v000010DEd00001F08sv*sd*bc*sc*i* one", f"{_ANY} vfio_pci"], "one"),
        (["vfio_pci:v000010DEd*sv*sd*bc03sc*i* one", "vfio_pci:v000010DEd00001F08sv*sd*bc03sc*i* two"], "two"),
        (["vfio_pci:v000010DEd00001F08sv00001462sd00003756bc03sc00i00 board"], "board"),
        (["vfio_pci:v000010DEd00001F08sv00001462sd00003757bc03sc00i00 other_board"], "vfio_pci"),
        (["pci:v000010DEd00001F08sv*sd*bc*sc*i* nouveau"], "vfio_pci"),
    ],
)
def test_the_alias_with_the_fewest_wildcards_that_fits_is_meant(gpu: Function, aliases: list[str], module: str) -> None:
    assert best_module(gpu, tuple(parse_aliases(f"alias {alias}" for alias in aliases))) == module
