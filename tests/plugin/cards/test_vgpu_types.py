"""vGPUs of one card exclude each other by counters as the driver excludes them: what the counters leave, a card of
tests.vgpu_kernel can make, and nothing else."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from plugin.cards.vgpu_types import SharedCounters, instance_of, plain, sharing, size_of, slug
from tests.plugin.counters import fitting
from tests.vgpu_kernel import DC, L40S, Kernel, dc, l40s

CARD = l40s()
MOST = {plain(name): most for name, _, most in L40S.values()}
NUMBERS = {plain(name): number for number, (name, *_) in L40S.items()}


class Card:
    """A card, and the scheduler's side of it: the vGPUs that claims have, by name of type and number, each with its
    virtual function; `theirs` are those that others made."""

    def __init__(self, root: Path, types: list[str], *, mixed: bool) -> None:
        self.kernel, self.mixed = Kernel(root, CARD), mixed
        self.types = {name: min(MOST[name], CARD.possible) for name in types}
        self.claimed: dict[tuple[str, int], str] = {}
        self.theirs: dict[str, str] = {}
        self.kernel.on(CARD)
        if mixed:
            self.kernel.nvidia_smi(["vgpu", "-shm", "1", "-i", CARD.address])

    def first_that_fit(self) -> dict[str, int]:
        others = [*self.theirs.values()]
        shared = sharing(self.types, mixed_sizes=self.mixed, memory=48, functions=CARD.possible, others=others)
        return first_that_fit(shared, self.claimed)

    def creatable(self) -> tuple[str, list[str]]:
        """A function without a vGPU, and the types that the card can make on it; ("", []) where none is left."""
        taken = self.kernel.types(CARD)
        function = next((one for one in CARD.functions if one not in taken), "")
        numbers = self.kernel.creatable(CARD) if function else ()
        return function, [name for name in sorted(MOST) if NUMBERS[name] in numbers]


def first_that_fit(shared: SharedCounters, claimed: Collection[tuple[str, int]]) -> dict[str, int]:
    """The vGPUs that would be allocated next: their numbers by the names of their types."""
    # The first of a type is the last that is put there.
    return dict(reversed(fitting(shared.left, shared.consumed, claimed)))


@settings(max_examples=25, deadline=None)
@given(some.data())
@pytest.mark.parametrize("mixed", [False, True])
def test_what_the_counters_leave_is_what_the_card_can_make(mixed: bool, data: some.DataObject) -> None:
    types = data.draw(some.lists(some.sampled_from(sorted(MOST)), min_size=1, unique=True))
    with TemporaryDirectory() as directory:
        card = Card(Path(directory), types, mixed=mixed)
        for _ in range(data.draw(some.integers(1, 14))):
            firsts, (function, can) = card.first_that_fit(), card.creatable()
            assert firsts.keys() == {*can} & {*types}, card.claimed
            if card.claimed and data.draw(some.integers(0, 2)) == 0:
                gone = data.draw(some.sampled_from(sorted(card.claimed)))
                card.kernel.write_type(card.claimed.pop(gone), 0)
            elif card.theirs and data.draw(some.integers(0, 2)) == 0:
                theirs = data.draw(some.sampled_from(sorted(card.theirs)))
                del card.theirs[theirs]
                card.kernel.write_type(theirs, 0)
            elif can:
                by_others = data.draw(some.integers(0, 3)) == 0
                choices = can if by_others else sorted(firsts)
                if not choices:
                    continue
                name = data.draw(some.sampled_from(choices))
                if by_others:
                    card.theirs[function] = name
                else:
                    card.claimed[name, firsts[name]] = function
                card.kernel.write_type(function, NUMBERS[name])
                assert card.kernel.types(CARD)[function] == f"NVIDIA {name}"


SHORT = {number: plain(name).removeprefix("RTX Pro 6000 Blackwell ") for number, (name, *_) in DC.items()}
INSTANCES = {"DC-1-12Q": 6, "DC-1-12A": 6, "DC-1-24Q": 3, "DC-2-48Q": 1}  # the most of each in 3 of 1g and 1 of 2g


@settings(max_examples=25, deadline=None)
@given(some.data())
@pytest.mark.parametrize("types", [["DC-1-12Q", "DC-1-12A", "DC-2-48Q"], ["DC-1-24Q", "DC-2-48Q"], ["DC-1-12A"]])
def test_what_the_counters_leave_of_gpu_instances_is_what_the_card_can_make(
    types: list[str], data: some.DataObject
) -> None:
    """With vGPUs of others that have another size in an instance, it may be less."""
    card = replace(dc(), possible=5)
    numbers = {name: number for number, name in SHORT.items()}
    most = {name: INSTANCES[name] for name in types}
    known = {(instance_of(name), size_of(name)) for name in types}
    with TemporaryDirectory() as directory:
        kernel = Kernel(Path(directory), card)
        kernel.on(card)
        kernel.make_instances(card, _1g=3, _2g=1)
        claimed: dict[tuple[str, int], str] = {}
        theirs: dict[str, str] = {}

        for _ in range(data.draw(some.integers(1, 14))):
            free = next((one for one in card.functions if one not in kernel.types(card)), None)
            can = [name for name in INSTANCES if free and kernel.instance_for(card, numbers[name]) is not None]
            others = [*theirs.values()]
            shared = sharing(most, mixed_sizes=False, memory=96, functions=card.possible, others=others)
            firsts = first_that_fit(shared, claimed)
            are_known = all((instance_of(one), size_of(one)) in known for one in others)
            assert firsts.keys() <= {*can}, (claimed, theirs)
            assert firsts.keys() == {*can} & {*types} or not are_known, (claimed, theirs)
            if claimed and data.draw(some.integers(0, 2)) == 0:
                kernel.write_type(claimed.pop(data.draw(some.sampled_from(sorted(claimed)))), 0)
            elif theirs and data.draw(some.integers(0, 2)) == 0:
                kernel.write_type(theirs.popitem()[0], 0)
            elif free and can:
                name = data.draw(some.sampled_from(can))
                if name in firsts and data.draw(some.booleans()):
                    claimed[name, firsts[name]] = free
                else:
                    theirs[free] = name
                kernel.write_type(free, numbers[name])
                assert free in kernel.types(card)


def test_beside_a_vgpu_without_an_instance_none_is_left_for_gpu_instances() -> None:
    for other in ("", "DC-24Q"):
        shared = sharing({"DC-1-24Q": 4}, mixed_sizes=False, memory=96, functions=8, others=[other])
        for consumed in shared.consumed.values():
            assert any(shared.left[name] < value for name, value in consumed.items())


def test_beside_a_vgpu_of_an_unknown_type_nothing_is_left() -> None:
    for mixed in (False, True):
        shared = sharing({"L40S-24Q": 2, "L40S-48Q": 1}, mixed_sizes=mixed, memory=48, functions=8, others=["", "x-1Q"])
        for consumed in shared.consumed.values():
            assert any(shared.left[name] < value for name, value in consumed.items())


def test_the_name_of_a_type_tells_its_size_and_is_a_part_of_a_devices_name() -> None:
    assert [size_of(name) for name in ("L40S-24Q", "A100-1-5CME", "L40S-0B", "T4-2B4", "i915-GVTg_V5_4")] == [
        24,
        5,
        None,
        None,
        None,
    ]
    assert [instance_of(name) for name in ("L40S-24Q", "A100-1-5C", "A100-1-5CME", "H200X-7-141C")] == [
        None,
        "1",
        "1me",
        "7",
    ]
    assert slug("NVIDIA RTX Pro 6000 Blackwell DC-24Q") == "rtx-pro-6000-blackwell-dc-24q"
    long = slug("NVIDIA " + "A very long name of a card " * 4 + "-24Q")
    assert len(long) == 36
    assert long != slug("NVIDIA " + "A very long name of a card " * 4 + "-48Q")
