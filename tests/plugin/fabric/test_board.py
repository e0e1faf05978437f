from dataclasses import replace
from itertools import combinations

import pytest

from pci.address import PCIAddress
from plugin.cards.config import Config, Groups, Rule
from plugin.cards.inventory import Device
from plugin.fabric.board import Board, ids_of
from plugin.fabric.modules import ModuleIDs
from plugin.fabric.partitions import Partition
from program.errors import Refusal
from tests.fabric.standin import A100_16, B200, H100, Sets
from tests.plugin.fabric.boards import ADDRESSES, MODULE_OF, board, inventory, table
from tests.processes import FIXTURES

BY_ID = inventory().by_id


def cards(*modules: int) -> list[Device]:
    return [BY_ID[ADDRESSES[module]] for module in modules]


def modules(ids: tuple[str, ...] | None) -> tuple[int, ...] | None:
    return None if ids is None else tuple(sorted(MODULE_OF[each] for each in ids))


def best_by_trying(sets: Sets, free: tuple[int, ...], size: int) -> tuple[str, ...] | None:
    """Every set of free cards is tried: of those that are a partition, the one after which the most partitions of
    eight are whole, then of four, then of two, then of one."""

    def whole(of: int, left: set[int]) -> int:
        return sum(1 for each in combinations(sorted(left), of) if each in sets)

    tried = []
    for chosen in combinations(free, size):
        if tuple(sorted(chosen)) in sets:
            left = set(free) - set(chosen)
            ids = tuple(sorted(ADDRESSES[module] for module in chosen))
            tried.append(([-whole(of, left) for of in (8, 4, 2, 1)], ids))
    return min(tried)[1] if tried else None


@pytest.mark.parametrize("of", [H100, B200], ids=["H100", "B200"])
@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_every_set_of_free_cards(of: tuple[int, Sets], size: int) -> None:
    tried = 0
    for number in range(1, 9):
        for free in combinations(range(1, 9), number):
            expected = best_by_trying(of[1], free, size)
            assert board(of).preferred(cards(*free), (), size, frozenset()) == expected, free
            tried += 1
    assert tried == 255


def test_larger_partitions_are_kept_whole() -> None:
    # Of {1,3}, {2,4} and {5,7} with all of 1 to 4 free, the pair whose half is broken already.
    assert modules(board(H100).preferred(cards(1, 2, 3, 4, 5, 7), (), 2, frozenset())) == (5, 7)


def test_no_partition_is_preferred_to_none_that_is_free() -> None:
    assert board(H100).preferred(cards(1, 2, 5, 6), (), 2, frozenset()) is None
    assert board(H100).preferred(cards(1, 2, 3, 4), (), 3, frozenset()) is None


def test_what_must_be_included_is() -> None:
    assert modules(board(H100).preferred(cards(*range(1, 9)), [ADDRESSES[6]], 2, frozenset())) == (6, 8)
    assert board(H100).preferred(cards(*range(1, 9)), [ADDRESSES[1], ADDRESSES[2]], 2, frozenset()) is None


def test_what_another_has_active_is_not_preferred() -> None:
    assert modules(board(H100).preferred(cards(*range(1, 9)), (), 4, frozenset({3}))) == (5, 6, 7, 8)


def test_a_card_of_unknown_id_is_never_part_of_a_preferred_set() -> None:
    assert modules(board(H100, 1).preferred(cards(*range(1, 9)), (), 2, frozenset())) == (2, 4)
    assert board(H100, 1).preferred(cards(1, 3), (), 2, frozenset()) is None


def test_a_set_that_is_a_partition() -> None:
    found = board(H100).partition(cards(3, 1))
    assert found is not None
    assert (found.id, found.modules) == (3, (1, 3))
    found = board(B200).partition(cards(*range(1, 9)))
    assert found is not None
    assert found.id == 1


def test_sixteen_gpus_have_several_partitions_of_a_size_each() -> None:
    """By size and GPU one would find {1-8} for module 1; this machine has the first half of the board."""
    found = board(A100_16).partition(cards(1, 2, 3, 4))
    assert found is not None
    assert (found.id, found.modules) == (7, (1, 2, 3, 4))


def test_a_set_that_is_none_is_refused_with_the_nearest_that_are() -> None:
    with pytest.raises(Refusal) as error:
        board(H100).partition(cards(1, 2))
    assert error.value.problem.wrong == "are modules 1, 2, which are no partition of the Fabric Manager"
    assert error.value.problem.fix == (
        f"the nearest that are: {ADDRESSES[1]}, {ADDRESSES[3]} or {ADDRESSES[2]}, {ADDRESSES[4]} or "
        + ", ".join(ADDRESSES[module] for module in (1, 2, 3, 4))
    )


def test_what_has_a_module_id_is_on_the_board_whatever_it_is() -> None:
    """As the lab's cards are, which nobody takes for NVIDIA's."""
    rule = Rule(device="1234:1111", resource="example.com/card")
    lab = inventory(FIXTURES / "sysfs" / "lab-modern", Config(offer=(rule,), groups=Groups.TOGETHER))
    slots = ("0000:01:00.0", "0000:04:00.0", "0000:05:00.0", "0000:41:00.0")
    ids = ids_of(lab, ModuleIDs({PCIAddress.parse(slot): module for module, slot in enumerate(slots, start=1)}))
    devices = [lab.by_id[slot] for slot in (slots[0], slots[1], slots[3])]  # the second has the third with it
    of = Board(table(H100), ids)
    partition = of.partition(devices)
    assert partition is not None
    assert partition.modules == (1, 2, 3, 4)
    assert of.variables(partition) == {"FABRIC_PARTITION_1": ",".join(slots)}
    versioned = replace(of, version="580.126.09")
    told = {"FABRIC_PARTITION_1": ",".join(slots), "FABRIC_MANAGER_VERSION": "580.126.09"}
    assert versioned.variables(partition) == told
    assert list(versioned.variables(Partition(7, (1,)))) == ["FABRIC_PARTITION_7"]  # one GPU needs no NVLink
    assert of.preferred([*lab.devices], (), 3, frozenset()) == tuple(device.id for device in devices)
    with pytest.raises(Refusal, match="are modules 1, 4, which are no partition"):
        of.partition([devices[0], devices[2]])
    assert Board(table(H100), ModuleIDs({})).partition(devices) is None


@pytest.mark.parametrize("size", [3, 5, 6, 7])
def test_no_board_has_partitions_of_that_size(size: int) -> None:
    for of in (H100, B200):
        for chosen in combinations(range(1, 9), size):
            with pytest.raises(Refusal, match="no partition of the Fabric Manager; the nearest that are: 0000:"):
                board(of).partition(cards(*chosen))


def test_a_card_of_unknown_id_works_alone_only() -> None:
    assert board(H100, 1).partition(cards(1)) is None
    with pytest.raises(Refusal, match=f"the module ID of {ADDRESSES[1]} is not known; let gpu-plugin bind"):
        board(H100, 1).partition(cards(1, 3))


def test_attributes_by_which_a_scheduler_finds_partitions() -> None:
    of = board(H100)
    assert of.attributes(*cards(3)) == {
        "moduleID": 3,
        "partition1": 9,
        "partition2": 3,
        "partition4": 1,
        "partition8": 0,
    }
    for size in (1, 2, 4, 8):
        for chosen in combinations(range(1, 9), size):
            alike = {of.attributes(each)[f"partition{size}"] for each in cards(*chosen)}
            assert (len(alike) == 1) == (chosen in H100[1])
    # Of eight GPUs, module 3 of sixteen is in three partitions: {1-8}, and two more that have names of their own.
    assert board(A100_16).attributes(*cards(3)) == {
        "moduleID": 3, "partition1": 21, "partition2": 12, "partition4": 7,
        "partition8": 1, "partition8_3": 3, "partition8_5": 5, "partition16": 0,
    }  # fmt: skip
    assert board(H100, 3).attributes(*cards(3)) == {"moduleID": 0}


def test_a_card_that_is_not_on_the_board_needs_no_partition() -> None:
    """All eight modules of the table have an address, and this card is none of them."""
    half = A100_16[0], tuple(each for each in A100_16[1] if set(each) <= {1, 2})
    assert board(half, 7, 8).partition(cards(7, 8)) is None
