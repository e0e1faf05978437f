"""The picture is read back; golden ones are in fixtures/pictures."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.vm.guest_pci.addresses import Layout
from launcher.vm.guest_pci.locations import LocatedCard, located_cards
from launcher.vm.guest_pci.picture import picture
from pci.address import PCIAddress
from pci.distance import Location
from tests.conftest import Command
from tests.launcher.cases import case
from tests.launcher.vm.guest_pci.test_locations import MIRROR, seated
from tests.launcher.vms import RTX_2060, RTX_2060_VARIABLE, entries, laid_out
from tests.pictures import Box, Drawn, assert_nothing_overlaps, curves, read_back
from tests.processes import FIXTURES

PICTURES = FIXTURES / "pictures"
DRAWN = ("hgx-a100-8-gpu", "topology-mirror", "topology-numa", "unit-of-two-cards")


def drawn(cards: tuple[LocatedCard, ...], layout: Layout) -> Drawn:
    """A picture, after a look at it: nothing is over anything else, each card is there twice, and joined to itself."""
    svg = picture("lab/vm", cards, layout, None)
    found = read_back(svg)
    assert_joined(found, [card.name for card in cards])
    return found


def assert_joined(drawn: Drawn, names: list[str]) -> None:
    assert_nothing_overlaps(drawn)
    boxes = [(card.findtext("{*}text", ""), box) for card, box in drawn.boxes["card"]]
    left, right = boxes[: len(names)], boxes[len(names) :]
    assert sorted(name for name, _ in left) == sorted(name for name, _ in right) == sorted(names)

    def end(name: str, box: Box, *, is_left: bool) -> tuple[str, float, float]:
        return name, box.right if is_left else box.left, (box.top + box.bottom) // 2

    found = {(x1, y1): (x2, y2) for x1, y1, x2, y2 in curves(drawn)}
    there = {name: end(name, box, is_left=False)[1:] for name, box in right}
    assert found == {end(name, box, is_left=True)[1:]: there[name] for name, box in left}


@pytest.mark.parametrize("name", DRAWN)
def test_a_picture_is_its_golden_file(
    gpu_launcher: Command, name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    file, golden = tmp_path / "vm.svg", PICTURES / f"{name}.svg"
    result = gpu_launcher("explain", *case(name).arguments(), "--svg", file)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("ENTRY"), "the table is printed too"
    if request.config.getoption("--regenerate"):
        golden.write_text(file.read_text())
    assert golden.exists(), "missing: run make test ARGS=--regenerate, and look at what it drew"
    assert file.read_text() == golden.read_text()


def test_a_card_on_the_host_has_the_groups_of_all_its_functions(gpu_launcher: Command, tmp_path: Path) -> None:
    gpu_launcher("explain", *case("functions-in-groups-of-their-own").arguments(), "--svg", tmp_path / "vm.svg")
    found = read_back((tmp_path / "vm.svg").read_text())
    texts = [text.text or "" for card, _ in found.boxes["card"] for text in card.iter("{*}text")]
    assert [text for text in texts if "group" in text] == ["IOMMU group 13, 14", "IOMMU group 24", "IOMMU group 25"]


def test_every_golden_picture_is_drawn() -> None:
    assert {path.stem for path in PICTURES.iterdir()} == set(DRAWN)


def test_eight_gpus_are_readable() -> None:
    found = read_back((PICTURES / "hgx-a100-8-gpu.svg").read_text())
    assert_joined(found, [f"gpu{number}" for number in range(8)])
    page = Box.of(found.root)
    assert (page.right, page.bottom) < (1920, 1200), "it fits a screen"
    assert found.title == "lab/eight-gpus: 8 cards; distances that are not the host's: 28 of 28"
    frames = [frame.findtext("{*}text") for kind in ("numa", "root") for frame, _ in found.boxes[kind]]
    nodes, roots = [f"NUMA node {node}" for node in (1, 3, 5, 7)], ("40", "00", "b0", "80", "00")
    assert frames == [*nodes, "no NUMA cell", *(f"root complex pci0000:{root}" for root in roots)]


def test_a_guests_switch_and_cells_are_drawn_as_the_hosts() -> None:
    layout = seated(MIRROR, 5, 6)
    found = drawn(located_cards(layout, None), layout)
    ports = [[text.text for text in port.iter("{*}text")] for port, _ in found.boxes["port"]]
    assert ports == [["root port", "0000:40:00.0"], ["switch", "0000:41:00.0"]]
    assert "NUMAcell1" in found.words
    assert "0000:42:00.0" in found.words
    assert found.title == "lab/vm: 2 cards"


def test_a_card_that_is_not_in_sysfs_is_drawn_apart() -> None:
    layout = seated(MIRROR, 5, 7)
    assert "placeunknownnotseeninsysfs" in drawn(located_cards(layout, None), layout).words


def test_a_vm_without_cards_has_a_picture_too() -> None:
    assert drawn((), Layout()).title == "lab/vm: 0 cards"


# Any two machines: cards anywhere below bridges of any depth, here and there.


@st.composite
def machines(draw: st.DrawFn, cards: int) -> list[Location]:
    buses: dict[tuple[int, ...], int] = {}
    places = []
    for _ in range(cards):
        root, *turns = draw(st.lists(st.integers(0, 1), min_size=1, max_size=6))
        chain = (
            PCIAddress(0, buses.setdefault((root, *turns[:depth]), len(buses)), turn, 0)
            for depth, turn in enumerate(turns)
        )
        node = draw(st.sampled_from([None, 0, 1]))
        places.append(Location(numa_node=node, root=f"pci0000:0{root}", bridges=tuple(chain)))
    return places


@settings(max_examples=60)
@given(data=st.data(), cards=st.integers(1, 32))
def test_any_cards_can_be_drawn(data: st.DataObject, cards: int) -> None:
    wanted = entries(gpus=[(f"gpu{number}", RTX_2060) for number in range(cards)])
    environ = {RTX_2060_VARIABLE: ",".join(f"0000:{number:02x}:00.0" for number in range(cards))}
    layout = laid_out(wanted, environ)
    host, guest = data.draw(machines(cards)), data.draw(machines(cards))
    known = data.draw(st.lists(st.booleans(), min_size=cards, max_size=cards))
    drawn(
        tuple(
            LocatedCard(name=card.name, seat=card.seat, host=here if is_known else None, guest=there)
            for card, here, there, is_known in zip(located_cards(layout, None), host, guest, known, strict=True)
        ),
        layout,
    )


def test_a_file_that_cannot_be_written_is_an_error_of_one_line(gpu_launcher: Command, tmp_path: Path) -> None:
    result = gpu_launcher("explain", *case("hgx-a100-8-gpu").arguments(), "--svg", tmp_path / "no/vm.svg")
    assert result.stderr == (
        f"gpu-launcher: {tmp_path}/no/vm.svg: cannot write the picture: No such file or directory; "
        "expected a file in a directory that can be written\n"
    )
    assert (result.returncode, result.stdout) == (2, "")
