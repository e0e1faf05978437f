"""Where what hangs on a root complex goes, and the outlines of IOMMU groups around it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from drawing.boxes import LINE, OUTLINE, Block, Element, Line, box, boxed, group, written
from drawing.trees import Columns, Place, columns, every, lines, placed
from pci.topology import Node, Twig, leaves
from plugin.picture.cards import Card, shared_groups
from plugin.picture.cards import lines as said_of

_MARGIN = 6  # from a device to the outline of its group


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """What the root complexes of a picture share.

    `numbers` are those of the reasons; `shared` says of each IOMMU group with several cards how many it has.
    """

    numbers: Mapping[str, int]
    shared: Mapping[int, int]
    columns: Columns


def sheet(trees: Iterable[Sequence[Node[Card]]], numbers: Mapping[str, int]) -> Sheet:
    """Each column as wide as the widest in it."""
    trees = list(trees)
    shared = shared_groups(card for nodes in trees for card in leaves(nodes))
    return Sheet(
        numbers=numbers,
        shared=shared,
        columns=columns(trees, lambda card: _card(card, numbers), margin=_MARGIN if shared else 0),
    )


def laid_out(nodes: Sequence[Node[Card]], sheet: Sheet) -> Block:
    """What hangs on a root complex, to be framed: the first lines begin at the frame."""
    in_order = groupby(leaves(nodes), lambda card: card.group if card.group in sheet.shared else None)
    runs = [list(run) for shared, run in in_order if shared is not None]
    first, last = frozenset(run[0].ids for run in runs), frozenset(run[-1].ids for run in runs)
    places, height = placed(
        nodes,
        sheet.columns,
        lambda card, width: _card(card, sheet.numbers, width),
        lambda card: (LINE + _MARGIN if card.ids in first else 0, _MARGIN if card.ids in last else 0),
    )

    def draw(x: int, y: int) -> list[Element]:
        cards = {place.node.leaf.ids: place for place in every(places) if isinstance(place.node, Twig)}
        return [
            *lines(places, x, y),
            *(_outline(cards[run[0].ids], cards[run[-1].ids], _whose(run, sheet), x, y) for run in runs),
            *(element for place in every(places) for element in place.block.draw(x + place.x, y + place.y)),
        ]

    return Block(sheet.columns.width + (_MARGIN if sheet.shared else 0), height, draw)


def _outline(first: Place[Card], last: Place[Card], words: str, x: int, y: int) -> Element:
    left, top = x + first.x - _MARGIN, y + first.y - _MARGIN - LINE
    bottom = y + last.y + last.block.height + _MARGIN
    label = written([Line(words)])
    return group(
        "group",
        box(left, top, first.block.width + 2 * _MARGIN, bottom - top, OUTLINE),
        *label.draw(left + _MARGIN, top + 3),
    )


def _whose(run: Sequence[Card], sheet: Sheet) -> str:
    group = run[0].group
    assert group is not None
    return f"IOMMU group {group}" if len(run) == sheet.shared[group] else f"part of IOMMU group {group}"


def _card(card: Card, numbers: Mapping[str, int], width: int = 0) -> Block:
    return boxed("card", said_of(card, numbers), card.state.colours, width=width)
