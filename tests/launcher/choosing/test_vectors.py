"""Words as people write them, where a cluster has a card of each of 44 models: each chooses, is refused, or is noted.

Each line of tests/fixtures/choosing/vectors.tsv: a word, its text as JSON, and what it gives. That is the models, by
NVML's names, that `use-` chooses and `nouse-` excludes, `all`, or `-` for none, with `noted` before them if fit has a
note; `refused`; or `>= ` and bytes. What `nouse-` gives comes behind it where that is something else. PLACE15 is the
UUID of the place of card 15.
"""

import json
import re
from typing import NamedTuple

import pytest

from launcher.choosing.fit import fit_of
from launcher.vm.cards.annotations import read_selection
from pci.nvml_names import NAMES
from plugin.nvml import Identity
from program.errors import Nonsense, UserError
from tests.launcher.choosing.hami import entries
from tests.launcher.choosing.test_nvml import MODELS, as_hami_has_it, card, cluster, uuid
from tests.processes import FIXTURES

CARDS = [
    card(number, Identity(uuid(number), None), f"10de:{device}", board, name)
    for number, (device, board, name, _) in enumerate(MODELS)
]
CLUSTER = cluster(*CARDS)
EVERY = frozenset(range(len(CARDS)))
LINES = (FIXTURES / "choosing/vectors.tsv").read_text().splitlines()
OF_NVIDIA = ("gputype", "gpuuuid")


class Outcome(NamedTuple):
    """What a text gives: the numbers of the cards, None if it is refused; and whether fit has a note of it."""

    cards: frozenset[int] | None
    is_noted: bool = False

    def __str__(self) -> str:
        if self.cards is None:
            return "refused"
        names = "; ".join(dict.fromkeys(MODELS[number][3] for number in sorted(self.cards)))
        return f"{'noted ' * self.is_noted}{'all' if self.cards == EVERY else names or '-'}"


def outcome(word: str, text: str) -> Outcome:
    try:
        fit = fit_of("d/vm", None, entries(1), read_selection({word: text}), (), CLUSTER)
    except (Nonsense, UserError):
        return Outcome(None)
    cards = frozenset(int(each.node.removeprefix("card-")) for each in fit.fitting)
    return Outcome(cards, any(note.startswith(f"{word}: ") for note in fit.notes))


def with_places(text: str) -> str:
    return re.sub(r"PLACE(\d+)", lambda match: str(CARDS[int(match[1])]["attributes"]["uuid"]["string"]), text)


def with_memory(least: int) -> str:
    """The cards that are published with so many bytes."""
    published = {number: each["capacity"]["memory"]["value"] for number, each in enumerate(CARDS) if each["capacity"]}
    sizes = {number: int(value.removesuffix("Gi")) << 30 for number, value in published.items()}
    return str(Outcome(frozenset(number for number, size in sizes.items() if size >= least)))


def by_hami(text: str) -> frozenset[int]:
    """The cards of which a list of types has a part of the name, in HAMi's own way: hyphens and blanks differ."""
    items = [item.strip().upper() for item in text.split(",") if item.strip()]
    names = [as_hami_has_it(name).upper() for *_, name in MODELS]
    return frozenset(number for number, name in enumerate(names) if any(item in name for item in items))


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.split("\t")[1])
def test_a_text_gives_what_is_written_there(line: str) -> None:
    word, written, *wanted = line.split("\t")
    text = with_places(json.loads(written))
    if word not in OF_NVIDIA:
        (said,) = wanted
        found = outcome(f"gpu-launcher.dev/{word}", text)
        assert str(found) == (with_memory(int(said[3:])) if said.startswith(">= ") else said)
        return
    chosen, kept = outcome(f"nvidia.com/use-{word}", text), outcome(f"nvidia.com/nouse-{word}", text)
    excluded = Outcome(None if kept.cards is None else EVERY - kept.cards, kept.is_noted)
    assert [str(chosen), str(excluded)] == [wanted[0], wanted[-1]]


@pytest.mark.parametrize("written", [line.split("\t")[1] for line in LINES if line.startswith("gputype")])
def test_what_a_name_chooses_or_excludes_in_hami_it_does_here_and_else_that_is_said(written: str) -> None:
    text = json.loads(written)
    chosen, kept = outcome("nvidia.com/use-gputype", text), outcome("nvidia.com/nouse-gputype", text)
    if chosen.cards is None or kept.cards is None or not text.strip():
        return
    assert by_hami(text) <= chosen.cards
    assert by_hami(text) <= EVERY - kept.cards
    known = any(text.upper() in name.upper() for name in NAMES.values())
    assert chosen.cards or chosen.is_noted or known or text == ","


def test_there_are_vectors_of_each_kind() -> None:
    kinds = (*OF_NVIDIA, "memory-at-least", "first-available")
    counts = [sum(line.startswith(f"{word}\t") for line in LINES) for word in kinds]
    assert len(LINES) == sum(counts) == len({*LINES})
    assert counts[0] > 139
    assert min(counts) >= 9
