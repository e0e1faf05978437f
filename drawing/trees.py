"""A tree of bridges in columns: root ports in the first, leaves in the last."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from drawing.boxes import GAP, PAD, Block, Colours, Element, Line, boxed, group, path, text
from pci.address import PCIAddress
from pci.topology import Branch, TreeNode, Twig, leaves

_FROM_BEND = 6  # to the text on a line

Leaf = TypeVar("Leaf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The left and right edges of the columns that the trees of a picture share: `ports` of the bridges, from the root
    ports down, and `leaves`. `marks` are written after a port's address."""

    ports: tuple[tuple[int, int], ...]
    leaves: tuple[int, int]
    marks: Mapping[PCIAddress, str] = field(default_factory=dict)

    @property
    def width(self) -> int:
        return self.leaves[1]


@dataclass(frozen=True, slots=True)
class PlacedNode(Generic[Leaf]):
    """A node, its box at x, y, what is written on the line to it, and the places of the nodes below it."""

    node: TreeNode[Leaf]
    block: Block
    x: int
    y: int
    label: Line
    below: tuple["PlacedNode[Leaf]", ...] = ()

    @property
    def right(self) -> int:
        return self.x + self.block.width

    @property
    def middle(self) -> int:
        return self.y + self.block.height // 2


def columns(
    trees: Iterable[Iterable[TreeNode[Leaf]]],
    box: Callable[[Leaf], Block],
    *,
    margin: int = 0,
    marks: Mapping[PCIAddress, str] | None = None,
) -> Columns:
    """Return columns as wide as their widest box, with a margin before the leaves."""
    marks = marks or {}
    nodes = [node for tree in trees for node in tree]
    last = max((box(leaf).width for leaf in leaves(nodes)), default=0)
    left = GAP
    ports: list[tuple[int, int]] = []
    while branches := [node for node in nodes if isinstance(node, Branch)]:
        nodes = [node for branch in branches for node in branch.below]
        right = left + max(_port(branch, marks).width for branch in branches)
        ports.append((left, right))
        left = right + 2 * GAP + max(_on_line(node, marks).width for node in nodes)
    left += margin
    return Columns(ports=tuple(ports), leaves=(left, left + last), marks=marks)


def placed(
    nodes: Iterable[TreeNode[Leaf]],
    columns: Columns,
    box: Callable[[Leaf, int], Block],
    room: Callable[[Leaf], tuple[int, int]] = lambda _: (0, 0),
) -> tuple[tuple[PlacedNode[Leaf], ...], int]:
    """Return the nodes below each other, and their height.

    `box` returns a leaf's box of at least the given width; `room` the space that a leaf needs above and below.
    """

    def down(nodes: Iterable[TreeNode[Leaf]], column: int, y: int) -> tuple[tuple[PlacedNode[Leaf], ...], int]:
        places: list[PlacedNode[Leaf]] = []
        for node in nodes:
            label = _on_line(node, columns.marks)
            if isinstance(node, Twig):
                left, right = columns.leaves
                above, under = room(node.leaf)
                place = PlacedNode(node, box(node.leaf, right - left), left, y + above, label)
                y = place.y + place.block.height + GAP + under
            else:
                below, bottom = down(node.below, column + 1, y)
                left, right = columns.ports[column]
                block = _port(node, columns.marks, right - left)
                top = max(y, (below[0].middle + below[-1].middle - block.height) // 2)
                place = PlacedNode(node, block, left, top, label, below)
                y = max(bottom, top + block.height + GAP)
            places.append(place)
        return tuple(places), y

    places, bottom = down(nodes, 0, 0)
    return places, bottom - GAP


def flipped(places: Iterable[PlacedNode[Leaf]], width: int) -> tuple[PlacedNode[Leaf], ...]:
    """Mirror the tree horizontally within `width`, so that the leaves come first."""
    return tuple(replace(place, x=width - place.right, below=flipped(place.below, width)) for place in places)


def every(places: Iterable[PlacedNode[Leaf]]) -> Iterator[PlacedNode[Leaf]]:
    for place in places:
        yield place
        yield from every(place.below)


def lines(places: Iterable[PlacedNode[Leaf]], x: int, y: int, *, edge: int = -PAD) -> Iterator[Element]:
    """Yield a line to each place from its parent, with the switch's port on it; without a parent from the frame, whose
    edge is at `edge`."""
    for place in places:
        is_right = edge < place.x
        end = (x + (place.x if is_right else place.right), y + place.middle)
        yield group("line", path((x + edge, end[1]), end))
        yield from _lines_below(place, x, y)


def _lines_below(parent: PlacedNode[Leaf], x: int, y: int) -> Iterator[Element]:
    for place in parent.below:
        is_right = parent.x < place.x
        start = (x + (parent.right if is_right else parent.x), y + parent.middle)
        end = (x + (place.x if is_right else place.right), y + place.middle)
        bend = start[0] + (GAP if is_right else -GAP)
        label = text(min(bend, end[0]) + _FROM_BEND, end[1] - 4, place.label)
        yield group("line", path(start, (bend, start[1]), (bend, end[1]), end), label)
        yield from _lines_below(place, x, y)


def _port(branch: Branch[Leaf], marks: Mapping[PCIAddress, str], width: int = 0) -> Block:
    head = branch.kind if branch.pci_id is None else f"{branch.kind} {branch.pci_id}"
    ports = (Line(_marked(port, marks), indent=2 * level) for level, port in branch.ports)
    return boxed("port", [Line(head, strong=True), *ports], Colours(), width=width)


def _on_line(node: TreeNode[Leaf], marks: Mapping[PCIAddress, str]) -> Line:
    return Line("" if node.port is None else _marked(node.port, marks))


def _marked(port: PCIAddress, marks: Mapping[PCIAddress, str]) -> str:
    return f"{port} {marks.get(port, '')}".rstrip()
