"""Where what hangs on a root complex goes: ports and switches in columns from the left, devices in the last column."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from drawing.boxes import (
    GAP,
    LINE,
    OUTLINE,
    PAD,
    Block,
    Colours,
    Element,
    Line,
    box,
    boxed,
    group,
    path,
    text,
    written,
)
from pci.topology import Branch, Node, Twig, leaves
from plugin.picture.cards import Card, lines, shared_groups

_MARGIN = 6  # from a device to the outline of its group


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """What the root complexes of a picture share.

    `numbers` are those of the reasons; `shared` says of each IOMMU group with several cards how many it has. `ports`
    are the columns of root ports and what is below them, left and right edge of each; `cards` are those of the devices.
    """

    numbers: Mapping[str, int]
    shared: Mapping[int, int]
    ports: tuple[tuple[int, int], ...]
    cards: tuple[int, int]


def sheet(trees: Iterable[Iterable[Node[Card]]], numbers: Mapping[str, int]) -> Sheet:
    """Each column as wide as the widest in it."""
    nodes = [node for tree in trees for node in tree]
    cards = leaves(nodes)
    shared = shared_groups(cards)
    left = GAP
    ports: list[tuple[int, int]] = []
    while branches := [node for node in nodes if isinstance(node, Branch)]:
        nodes = [node for branch in branches for node in branch.below]
        right = left + max(_port(branch).width for branch in branches)
        ports.append((left, right))
        left = right + 2 * GAP + max(_on_line(node).width for node in nodes)
    left += _MARGIN if shared else 0
    width = max((_card(card, numbers).width for card in cards), default=0)
    return Sheet(numbers=numbers, shared=shared, ports=tuple(ports), cards=(left, left + width))


def laid_out(nodes: Sequence[Node[Card]], sheet: Sheet) -> Block:
    """What hangs on a root complex, to be framed: the first lines begin at the frame."""
    in_order = groupby(leaves(nodes), lambda card: card.group if card.group in sheet.shared else None)
    runs = [list(run) for shared, run in in_order if shared is not None]
    outlined = _Outlined(frozenset(run[0].ids for run in runs), frozenset(run[-1].ids for run in runs))
    placed, bottom = _placed(nodes, sheet, outlined, 0, 0)

    def draw(x: int, y: int) -> list[Element]:
        every = list(_every(placed))
        cards = {place.node.leaf.ids: place for place in every if isinstance(place.node, Twig)}
        return [
            *_lines_to(placed, None, x, y),
            *(_outline(cards[run[0].ids], cards[run[-1].ids], _whose(run, sheet), x, y) for run in runs),
            *(element for place in every for element in place.block.draw(x + place.x, y + place.y)),
        ]

    return Block(sheet.cards[1] + (_MARGIN if sheet.shared else 0), bottom - GAP, draw)


@dataclass(frozen=True, slots=True)
class _Place:
    """A node, its box and where that is, and the places of what hangs on it."""

    node: Node[Card]
    block: Block
    x: int
    y: int
    below: tuple["_Place", ...] = ()

    @property
    def right(self) -> int:
        return self.x + self.block.width

    @property
    def middle(self) -> int:
        return self.y + self.block.height // 2


@dataclass(frozen=True, slots=True)
class _Outlined:
    """The cards that the outlines of groups begin and end with, by their IDs."""

    first: frozenset[tuple[tuple[str, int | None], ...]]
    last: frozenset[tuple[tuple[str, int | None], ...]]


def _placed(
    nodes: Iterable[Node[Card]], sheet: Sheet, outlined: _Outlined, column: int, y: int
) -> tuple[tuple[_Place, ...], int]:
    """The nodes below each other from y on, and where the next one would begin."""
    placed: list[_Place] = []
    for node in nodes:
        if isinstance(node, Twig):
            left, right = sheet.cards
            block = _card(node.leaf, sheet.numbers, right - left)
            y += LINE + _MARGIN if node.leaf.ids in outlined.first else 0
            placed.append(_Place(node, block, left, y))
            y += block.height + GAP + (_MARGIN if node.leaf.ids in outlined.last else 0)
        else:
            below, bottom = _placed(node.below, sheet, outlined, column + 1, y)
            left, right = sheet.ports[column]
            block = _port(node, right - left)
            top = max(y, (below[0].middle + below[-1].middle - block.height) // 2)
            placed.append(_Place(node, block, left, top, below))
            y = max(bottom, top + block.height + GAP)
    return tuple(placed), y


def _every(placed: Iterable[_Place]) -> Iterator[_Place]:
    for place in placed:
        yield place
        yield from _every(place.below)


def _lines_to(placed: Iterable[_Place], parent: _Place | None, x: int, y: int) -> Iterator[Element]:
    """A line to each from its parent, or from the frame; on it the switch's port that it comes out of."""
    for place in placed:
        end = (x + place.x, y + place.middle)
        if parent is None:
            yield group("line", path((x - PAD, end[1]), end))
        else:
            start = (x + parent.right, y + parent.middle)
            bend = start[0] + GAP
            label = text(bend + _MARGIN, end[1] - 4, _on_line(place.node))
            yield group("line", path(start, (bend, start[1]), (bend, end[1]), end), label)
        yield from _lines_to(place.below, place, x, y)


def _outline(first: _Place, last: _Place, words: str, x: int, y: int) -> Element:
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
    return boxed("card", lines(card, numbers), card.state.colours, width=width)


def _port(branch: Branch[Card], width: int = 0) -> Block:
    head = branch.kind if branch.pci_id is None else f"{branch.kind} {branch.pci_id}"
    ports = (Line(str(port), indent=2 * level) for level, port in branch.ports)
    return boxed("port", [Line(head, strong=True), *ports], Colours(), width=width)


def _on_line(node: Node[Card]) -> Line:
    return Line("" if node.port is None else str(node.port))
