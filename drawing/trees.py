"""A tree of bridges in columns: root ports first, then what is behind them, the leaves in the last column."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from drawing.boxes import GAP, PAD, Block, Colours, Element, Line, boxed, group, path, text
from pci.topology import Branch, TreeNode, Twig, leaves

_FROM_BEND = 6  # to the text on a line

Leaf = TypeVar("Leaf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """What several trees of a picture share: `ports` are the columns of root ports and of what is below them, left and
    right edge of each; `leaves` that of the leaves."""

    ports: tuple[tuple[int, int], ...]
    leaves: tuple[int, int]

    @property
    def width(self) -> int:
        return self.leaves[1]


@dataclass(frozen=True, slots=True)
class Place(Generic[Leaf]):
    """A node, its box and where that is, and the places of what hangs on it."""

    node: TreeNode[Leaf]
    block: Block
    x: int
    y: int
    below: tuple["Place[Leaf]", ...] = ()

    @property
    def right(self) -> int:
        return self.x + self.block.width

    @property
    def middle(self) -> int:
        return self.y + self.block.height // 2


def columns(trees: Iterable[Iterable[TreeNode[Leaf]]], box: Callable[[Leaf], Block], *, margin: int = 0) -> Columns:
    """Each column as wide as the widest in it, with a margin before that of the leaves."""
    nodes = [node for tree in trees for node in tree]
    last = max((box(leaf).width for leaf in leaves(nodes)), default=0)
    left = GAP
    ports: list[tuple[int, int]] = []
    while branches := [node for node in nodes if isinstance(node, Branch)]:
        nodes = [node for branch in branches for node in branch.below]
        right = left + max(_port(branch).width for branch in branches)
        ports.append((left, right))
        left = right + 2 * GAP + max(_on_line(node).width for node in nodes)
    left += margin
    return Columns(ports=tuple(ports), leaves=(left, left + last))


def placed(
    nodes: Iterable[TreeNode[Leaf]],
    columns: Columns,
    box: Callable[[Leaf, int], Block],
    room: Callable[[Leaf], tuple[int, int]] = lambda _: (0, 0),
) -> tuple[tuple[Place[Leaf], ...], int]:
    """The nodes below each other, and the height of all.

    `box` is that of a leaf, at least so wide; `room` is what it needs above and below.
    """

    def down(nodes: Iterable[TreeNode[Leaf]], column: int, y: int) -> tuple[tuple[Place[Leaf], ...], int]:
        found: list[Place[Leaf]] = []
        for node in nodes:
            if isinstance(node, Twig):
                left, right = columns.leaves
                above, under = room(node.leaf)
                place = Place(node, box(node.leaf, right - left), left, y + above)
                y = place.y + place.block.height + GAP + under
            else:
                below, bottom = down(node.below, column + 1, y)
                left, right = columns.ports[column]
                block = _port(node, right - left)
                top = max(y, (below[0].middle + below[-1].middle - block.height) // 2)
                place = Place(node, block, left, top, below)
                y = max(bottom, top + block.height + GAP)
            found.append(place)
        return tuple(found), y

    places, bottom = down(nodes, 0, 0)
    return places, bottom - GAP


def flipped(places: Iterable[Place[Leaf]], width: int) -> tuple[Place[Leaf], ...]:
    """The same with the leaves in the first column, of all that is so wide."""
    return tuple(replace(place, x=width - place.right, below=flipped(place.below, width)) for place in places)


def every(places: Iterable[Place[Leaf]]) -> Iterator[Place[Leaf]]:
    for place in places:
        yield place
        yield from every(place.below)


def lines(places: Iterable[Place[Leaf]], x: int, y: int, *, edge: int = -PAD) -> Iterator[Element]:
    """A line to each from what it hangs on, and from the frame, whose edge is there, to the first; on it the switch's
    port that it comes out of."""
    for place in places:
        is_right = edge < place.x
        end = (x + (place.x if is_right else place.right), y + place.middle)
        yield group("line", path((x + edge, end[1]), end))
        yield from _lines_below(place, x, y)


def _lines_below(parent: Place[Leaf], x: int, y: int) -> Iterator[Element]:
    for place in parent.below:
        is_right = parent.x < place.x
        start = (x + (parent.right if is_right else parent.x), y + parent.middle)
        end = (x + (place.x if is_right else place.right), y + place.middle)
        bend = start[0] + (GAP if is_right else -GAP)
        label = text(min(bend, end[0]) + _FROM_BEND, end[1] - 4, _on_line(place.node))
        yield group("line", path(start, (bend, start[1]), (bend, end[1]), end), label)
        yield from _lines_below(place, x, y)


def _port(branch: Branch[Leaf], width: int = 0) -> Block:
    head = branch.kind if branch.pci_id is None else f"{branch.kind} {branch.pci_id}"
    ports = (Line(str(port), indent=2 * level) for level, port in branch.ports)
    return boxed("port", [Line(head, strong=True), *ports], Colours(), width=width)


def _on_line(node: TreeNode[Leaf]) -> Line:
    return Line("" if node.port is None else str(node.port))
