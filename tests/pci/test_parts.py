"""Which functions are one card where functions have IOMMU groups of their own, on machines as listings."""

from pathlib import Path
from random import Random

import pytest

from pci.address import PCIAddress
from pci.cards import card_of, cards_of, groups_of, part_of, travels_alone
from pci.functions import is_gpu
from pci.host import Host
from pci.sysfs.functions import read_host
from pci.viability import left_behind, not_viable
from tests.listings import MACHINES, compose_listing

ROOT = "root pci0000:00\n0000:00:01.0 8086:a70d 060400 pcieport g2\n"
ARC = """
 0000:01:00.0 8086:4fa1 060400 pcieport g3
  0000:02:01.0 8086:4fa4 060400 pcieport g4
   0000:03:00.0 8086:56a1 030000 vfio-pci g5
  0000:02:04.0 8086:4fa4 060400 pcieport g6
   0000:04:00.0 8086:4f90 040300 vfio-pci g7
"""
#: By what they are: a listing below a root port, and its cards of several functions.
CARDS = {
    "a Radeon whose functions have groups of their own": (
        """
 0000:03:00.0 1002:73bf 030000 vfio-pci g5
 0000:03:00.1 1002:ab28 040300 vfio-pci g6
 0000:03:00.2 1002:73a6 0c0330 vfio-pci g7
 0000:03:00.3 1002:73a4 0c8000 vfio-pci g8
""",
        ["03:00.0 03:00.1 03:00.2 03:00.3"],
    ),
    "a Radeon with its audio and USB in a second group": (
        """
 0000:03:00.0 1002:73bf 030000 vfio-pci g5
 0000:03:00.1 1002:ab28 040300 vfio-pci g6
 0000:03:00.2 1002:73a6 0c0330 vfio-pci g6
""",
        ["03:00.0 03:00.1 03:00.2"],
    ),
    "a Ryzen, whose audio is in one group with the processor's USB": (
        """
 0000:03:00.0 1002:1900 030000 vfio-pci g5
 0000:03:00.1 1002:1640 040300 vfio-pci g6
 0000:03:00.4 1022:15ba 0c0330 xhci_hcd g6
""",
        ["03:00.1 03:00.4"],
    ),
    "two GPUs of one slot, with groups of their own, and the audio of the first": (
        """
 0000:03:00.0 10de:2204 030000 vfio-pci g5
 0000:03:00.1 10de:1aef 040300 vfio-pci g6
 0000:03:00.2 10de:2204 030000 vfio-pci g7
""",
        ["03:00.0 03:00.1"],
    ),
    "two ports of a network card, with groups of their own": (
        """
 0000:03:00.0 8086:1572 020000 vfio-pci g5
 0000:03:00.1 8086:1572 020000 vfio-pci g6
""",
        [],
    ),
    "an Arc, whose audio is behind another port of its switch": (ARC, ["03:00.0 04:00.0"]),
    "an Arc without ACS, all in one group": (
        ARC.replace("g5", "g2").replace("g7", "g2"),
        ["03:00.0 04:00.0"],
    ),
    "an Arc whose audio has a lower address": (
        ARC.replace("0000:04", "0000:x").replace("0000:03", "0000:04").replace("0000:x", "0000:03"),
        ["04:00.0 03:00.0"],
    ),
    "an Arc in an enclosure, behind a switch that has USB and sound, too": (
        """
 0000:10:00.0 8086:15ea 060400 pcieport g3
  0000:11:00.0 8086:15ea 060400 pcieport g4
   0000:12:00.0 8086:4fa1 060400 pcieport g5
    0000:13:01.0 8086:4fa4 060400 pcieport g6
     0000:14:00.0 8086:56a1 030000 vfio-pci g7
    0000:13:04.0 8086:4fa4 060400 pcieport g8
     0000:15:00.0 8086:4f90 040300 vfio-pci g9
  0000:11:01.0 8086:15ea 060400 pcieport g10
   0000:16:00.0 8086:15ec 0c0330 xhci_hcd g11
  0000:11:02.0 8086:15ea 060400 pcieport g12
   0000:17:00.0 8086:1111 040300 snd_hda_intel g13
""",
        ["14:00.0 15:00.0"],
    ),
    "two GPUs behind one switch, and sound of their vendor beside them": (
        """
 0000:01:00.0 10b5:8747 060400 pcieport g3
  0000:02:01.0 10b5:8747 060400 pcieport g4
   0000:03:00.0 10de:2204 030000 vfio-pci g5
  0000:02:02.0 10b5:8747 060400 pcieport g6
   0000:04:00.0 10de:2204 030000 vfio-pci g7
  0000:02:03.0 10b5:8747 060400 pcieport g8
   0000:05:00.0 10de:1aef 040300 vfio-pci g9
""",
        [],
    ),
    "a GPU behind a server's switch, beside network of its vendor and sound of another": (
        """
 0000:01:00.0 1000:c010 060400 pcieport g3
  0000:02:01.0 1000:c010 060400 pcieport g4
   0000:03:00.0 8086:56c0 038000 vfio-pci g5
  0000:02:02.0 1000:c010 060400 pcieport g6
   0000:04:00.0 8086:1572 020000 i40e g7
  0000:02:03.0 1000:c010 060400 pcieport g8
   0000:05:00.0 13f6:8788 040100 snd_virtuoso g9
""",
        [],
    ),
    "a Flex with virtual functions": (
        """
 0000:03:00.0 8086:56c0 038000 i915 g5
 0000:03:00.1 8086:56c0 038000 vfio-pci g6 physfn=0000:03:00.0
 0000:03:00.2 8086:56c0 038000 vfio-pci g7 physfn=0000:03:00.0
""",
        [],
    ),
}


def host_of(root: Path, listing: str) -> Host:
    return read_host(compose_listing(root, listing).sys)


def short(addresses: object) -> str:
    return str(addresses).removeprefix("0000:")


@pytest.mark.parametrize("what", CARDS)
def test_the_functions_of_a_card_are_told_by_class_vendor_and_place(tmp_path: Path, what: str) -> None:
    listing, expected = CARDS[what]
    cards = cards_of(host_of(tmp_path, ROOT + listing.strip("\n")))
    assert [" ".join(short(one.address) for one in card) for card in cards if len(card) > 1] == expected


def check(host: Host) -> None:
    """Each function is in one card, and all of a card's functions agree on it."""
    cards = cards_of(host)
    assert sorted(function.address for card in cards for function in card) == sorted(host.functions)
    for card in cards:
        assert {card_of(host, function.address) for function in card} == {card}
        parts = list(dict.fromkeys(part_of(host, function.address) for function in card))
        others = [function.address for function in card[len(parts[0]) :]]
        assert (card[: len(parts[0])], others) == (parts[0], sorted(others))
        assert len(parts) == 1 or sum(any(map(is_gpu, part)) for part in parts) == 1
        assert len(parts) == 1 or len({function.vendor_id for part in parts[1:] for function in part}) == 1
        left = [function for each in left_behind(host, card) for function in each.functions]
        assert len(left) == len(set(left))
        assert not set(part_of(host, card[0].address)) & set(left)
        # What comes along is viable wherever the GPU's own group is, and in a group that nobody else has.
        come = [function for function in card if function not in left]
        if not travels_alone(card[0]) and not_viable(host, parts[0]) is None:
            assert not_viable(host, tuple(come)) is None
        for group in groups_of(come)[1:]:
            members = (host.functions[address] for address in host.groups[group])
            assert all(member in card or member.is_bridge for member in members) or card[0].driver != "vfio-pci"


@pytest.mark.parametrize("name", sorted(path.stem for path in MACHINES.glob("*.lst")))
def test_each_function_of_a_listed_machine_is_in_one_card(tmp_path: Path, name: str) -> None:
    check(host_of(tmp_path, (MACHINES / f"{name}.lst").read_text()))


def generated(random: Random) -> str:
    """A machine of random slots below root ports and switches: random vendors, classes, drivers and groups."""
    lines, bus = ["root pci0000:00"], 1
    for port in range(random.randint(1, 3)):
        lines.append(f"0000:00:{port + 1:02x}.0 8086:a70d 060400 pcieport g{port}")
        downstream = random.choice((0, 0, 1, 2, 3))
        if downstream:
            lines.append(f" 0000:{bus:02x}:00.0 8086:4fa1 060400 pcieport g{port}")
        switch, bus = bus, bus + (2 if downstream else 0)
        for number in range(max(1, downstream)):
            indent = " " if not downstream else "   "
            if downstream:
                lines.append(f"  0000:{switch + 1:02x}:{number:02x}.0 8086:4fa4 060400 pcieport g{port}")
            for function in random.sample(range(8), k=random.randint(1, 4)):
                ids = random.choice(("1002:73bf", "1002:ab28", "1022:15ba", "8086:56a1", "8086:4f90"))
                kind = random.choice(("030000", "030000", "040300", "0c0330", "020000"))
                driver = random.choice(("vfio-pci", "vfio-pci", "vfio-pci", "snd_hda_intel", "-"))
                group = random.choice(("-", *(f"g{10 * bus + each}" for each in range(4))))
                lines.append(f"{indent}0000:{bus:02x}:00.{function} {ids} {kind} {driver} {group}")
            bus += 1
    return "\n".join(lines)


@pytest.mark.parametrize("part", range(10))
def test_each_function_of_any_machine_is_in_one_card(tmp_path: Path, part: int, request: pytest.FixtureRequest) -> None:
    random = Random(part)
    for number in range(200 if request.config.getoption("--thorough") else 10):
        check(host_of(tmp_path / str(number), generated(random)))


def left(host: Host, address: str) -> list[str]:
    return list(map(str, left_behind(host, card_of(host, PCIAddress.parse(f"0000:{address}")))))


def test_what_vfio_does_not_have_of_a_card_is_left_behind_with_why(tmp_path: Path) -> None:
    host = host_of(tmp_path, ROOT + ARC.strip("\n").replace("040300 vfio-pci", "040300 snd_hda_intel"))
    assert left(host, "03:00.0") == [
        "leaves 0000:04:00.0 (audio) behind: that is bound to snd_hda_intel; bind the whole card to vfio-pci"
    ]


def test_a_part_in_a_group_with_anything_else_is_left_behind(tmp_path: Path) -> None:
    """Another guest may get that: it would find the group in use."""
    beside = "0000:00:1f.3 8086:7ad0 040300 {} g7\n"
    strange = host_of(tmp_path / "strange", ROOT + ARC.strip("\n") + "\n" + beside.format("snd_hda_intel"))
    assert left(strange, "03:00.0")[0].startswith(
        "leaves 0000:04:00.0 (audio) behind: that is in group 7, which is not viable: 0000:00:1f.3 (audio) is bound to"
    )
    shared = host_of(tmp_path / "shared", ROOT + ARC.strip("\n") + "\n" + beside.format("vfio-pci"))
    assert left(shared, "03:00.0")[0].startswith(
        "leaves 0000:04:00.0 (audio) behind: that shares group 7 with 0000:00:1f.3 (audio); put the card into another"
    )


def test_audio_of_the_gpus_group_that_no_driver_has_is_left_behind_and_one_in_use_keeps_the_group(
    tmp_path: Path,
) -> None:
    one_group = ROOT + ARC.strip("\n").replace("g5", "g2").replace("g7", "g2")
    free = host_of(tmp_path / "free", one_group.replace("040300 vfio-pci", "040300 -"))
    assert left(free, "03:00.0") == [
        "leaves 0000:04:00.0 (audio) behind: that is bound to no driver; bind the whole card to vfio-pci"
    ]
    used = host_of(tmp_path / "used", one_group.replace("040300 vfio-pci", "040300 snd_hda_intel"))
    assert left(used, "03:00.0") == []
    assert "0000:04:00.0 (audio) is bound to snd_hda_intel" in str(
        not_viable(used, card_of(used, PCIAddress.parse("0000:03:00.0")))
    )


def test_what_shares_a_ryzens_slot_is_the_processors_and_said_with_the_vendor(tmp_path: Path) -> None:
    host = host_of(tmp_path, (MACHINES / "split-groups-apu.lst").read_text())
    (others,) = left(host, "c5:00.0")
    assert others.startswith("leaves 0000:c5:00.2 (encryption), 0000:c5:00.3 (USB), 0000:c5:00.4 (USB), ")
    why = "only on its slot, and the processor's (vendor 1022, the GPU's is 1002); leave them to the node"
    assert others.endswith(f" behind: {why}")


def test_a_card_that_nobody_bound_leaves_nothing_of_it_behind(tmp_path: Path) -> None:
    """All of it is bound together."""
    assert left(host_of(tmp_path, ROOT + ARC.strip("\n").replace("vfio-pci", "i915")), "03:00.0") == []
