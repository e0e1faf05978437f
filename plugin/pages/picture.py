"""A picture of a node for a bug report: NUMA nodes, root complexes, ports, switches, and every device in its place with
its state and the number of the reason.

Pure: from a snapshot to the text of an SVG, the same bytes for the same node. A state has a colour and a word.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from drawing.boxes import (
    LINE,
    OUTLINE,
    Block,
    Colours,
    Element,
    Line,
    beside,
    box,
    boxed,
    flowed,
    framed,
    group,
    stacked,
    svg,
    written,
)
from drawing.trees import Columns, PlacedNode, columns, every, lines, placed
from pci.topology import TreeNode, Twig, leaves, tree
from plugin.fabric import status as fabric
from plugin.node.snapshot import Snapshot
from plugin.pages.boxes import Box, Style, by, node_boxes, shared_groups, title, wrapped
from plugin.pages.boxes import lines as text_of
from plugin.pages.paths import Mark, marks_of
from program.problem import one_line

_NOTE_LETTERS = 110  # of the longest line of a reason
_MARGIN = 6  # from a device to the outline of its group


def picture(snapshot: Snapshot) -> str:
    """Return the node as an SVG. Its title counts the devices; no name, date or serial number is in it."""
    return svg(title(snapshot), layout(snapshot))


def layout(snapshot: Snapshot) -> Block:
    """Return the picture below its title."""
    host, sight = snapshot.host, snapshot.partitions
    boxes = node_boxes(snapshot)
    notes = () if sight is None else fabric.notes(sight, snapshot.inventory)
    pci_ids = {address: function.pci_id for address, function in host.functions.items()}
    by_complex = by(boxes, lambda box: (box.at.numa_node, box.at.root))
    complexes = sorted(by_complex, key=lambda at: (at[0] is None, at[0] or 0, at[1]))
    trees = {at: tree(((box.at.bridges, box) for box in by_complex[at]), pci_ids) for at in complexes}
    reasons = dict.fromkeys(box.reason for nodes in trees.values() for box in leaves(nodes) if box.reason)
    numbers = {reason: number for number, reason in enumerate(reasons, start=1)}
    shared = shared_groups(boxes)
    marks = marks_of(snapshot, boxes)
    widths = columns(
        [*trees.values()],
        lambda item: _block(item, numbers),
        margin=_MARGIN if shared else 0,
        marks={port: mark.word for port, mark in marks.items()},
    )
    sheet = _Sheet(numbers, shared, widths)
    numa_nodes = [
        framed(
            "numa",
            "NUMA node unknown: the firmware names none" if numa_node is None else f"NUMA node {numa_node}",
            flowed(
                [
                    framed("root", f"root complex {one_line(at[1])}", _laid_out(trees[at], sheet), Colours())
                    for at in its
                ]
            ),
            Colours(box="#f2f2f2"),
        )
        for numa_node, its in by(complexes, lambda at: at[0]).items()
    ]
    parts = [
        flowed(numa_nodes),
        _notes(numbers, map(str, snapshot.not_read), notes),
        _legend({box.style for box in boxes}, {*marks.values()}, outlines=bool(shared)),
    ]
    return stacked(*(part for part in parts if part.height))


def _notes(numbers: Mapping[str, int], not_read: Iterable[str], others: Iterable[str]) -> Block:
    """Return the reasons by their numbers, a line for each unread source, and the notes on partitions."""
    notes = [(f"({number})", f"It {reason}.") for reason, number in numbers.items()]
    notes += [("not read", each) for each in not_read]
    notes += [("partitions", other) for other in others]
    width = max((Line(head).width for head, _ in notes), default=0)
    return stacked(
        *(
            beside(written([Line(head)], width=width), written(list(map(Line, wrapped(words, _NOTE_LETTERS)))))
            for head, words in notes
        ),
        gap=4,
    )


def _legend(styles: set[Style], marks: set[Mark], *, outlines: bool) -> Block:
    """Return the meaning of the colours, outlines and marks that occur."""
    rows = [([Line(f"{style.word}: {style.meaning}")], style.colours) for style in Style if style in styles]
    if outlines:
        rows.append(([Line("IOMMU group: a guest gets all of one, or nothing")], OUTLINE))
    rows += [([Line(f"{mark.word}: {mark.meaning}")], Colours()) for mark in Mark if mark in marks]
    width = max((boxed("", *row).width for row in rows), default=0)
    return stacked(*(boxed("legend", *row, width=width) for row in rows), gap=4)


@dataclass(frozen=True, slots=True)
class _Sheet:
    """Values common to all root complexes of a picture: the `numbers` of the reasons, the number of boxes of each IOMMU
    group that several share, and the columns, each as wide as its widest box."""

    numbers: Mapping[str, int]
    shared: Mapping[int, int]
    columns: Columns


def _laid_out(nodes: Sequence[TreeNode[Box]], sheet: _Sheet) -> Block:
    """Return the tree below a root complex, to be framed: the first lines begin at the frame."""
    in_order = groupby(leaves(nodes), lambda item: item.group if item.group in sheet.shared else None)
    runs = [list(run) for shared, run in in_order if shared is not None]
    first, last = frozenset(run[0].ids for run in runs), frozenset(run[-1].ids for run in runs)
    places, height = placed(
        nodes,
        sheet.columns,
        lambda item, width: _block(item, sheet.numbers, width),
        lambda item: (LINE + _MARGIN if item.ids in first else 0, _MARGIN if item.ids in last else 0),
    )

    def draw(x: int, y: int) -> list[Element]:
        items = {place.node.leaf.ids: place for place in every(places) if isinstance(place.node, Twig)}
        return [
            *lines(places, x, y),
            *(_outline(items[run[0].ids], items[run[-1].ids], _whose(run, sheet), x, y) for run in runs),
            *(element for place in every(places) for element in place.block.draw(x + place.x, y + place.y)),
        ]

    return Block(sheet.columns.width + (_MARGIN if sheet.shared else 0), height, draw)


def _outline(first: PlacedNode[Box], last: PlacedNode[Box], words: str, x: int, y: int) -> Element:
    left, top = x + first.x - _MARGIN, y + first.y - _MARGIN - LINE
    bottom = y + last.y + last.block.height + _MARGIN
    label = written([Line(words)])
    return group(
        "group",
        box(left, top, first.block.width + 2 * _MARGIN, bottom - top, OUTLINE),
        *label.draw(left + _MARGIN, top + 3),
    )


def _whose(run: Sequence[Box], sheet: _Sheet) -> str:
    group = run[0].group
    assert group is not None
    return f"IOMMU group {group}" if len(run) == sheet.shared[group] else f"part of IOMMU group {group}"


def _block(item: Box, numbers: Mapping[str, int], width: int = 0) -> Block:
    return boxed("card", text_of(item, numbers), item.style.colours, width=width)
