"""Where what hangs on a root complex goes, and the outlines of IOMMU groups around it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from drawing.boxes import LINE, OUTLINE, Block, Element, Line, box, boxed, group, written
from drawing.trees import Columns, Place, columns, every, lines, placed
from pci.topology import TreeNode, Twig, leaves
from plugin.picture.boxes import Box, shared_groups
from plugin.picture.boxes import lines as text_of

_MARGIN = 6  # from a device to the outline of its group


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """What the root complexes of a picture share.

    `numbers` are those of the reasons; `shared` says of each IOMMU group with several boxes how many it has.
    """

    numbers: Mapping[str, int]
    shared: Mapping[int, int]
    columns: Columns


def sheet(trees: Iterable[Sequence[TreeNode[Box]]], numbers: Mapping[str, int]) -> Sheet:
    """Return the sheet for these trees: each column is as wide as the widest box in it."""
    trees = list(trees)
    shared = shared_groups(item for nodes in trees for item in leaves(nodes))
    return Sheet(
        numbers=numbers,
        shared=shared,
        columns=columns(trees, lambda item: _block(item, numbers), margin=_MARGIN if shared else 0),
    )


def laid_out(nodes: Sequence[TreeNode[Box]], sheet: Sheet) -> Block:
    """Return what hangs on a root complex, to be framed: the first lines begin at the frame."""
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


def _outline(first: Place[Box], last: Place[Box], words: str, x: int, y: int) -> Element:
    left, top = x + first.x - _MARGIN, y + first.y - _MARGIN - LINE
    bottom = y + last.y + last.block.height + _MARGIN
    label = written([Line(words)])
    return group(
        "group",
        box(left, top, first.block.width + 2 * _MARGIN, bottom - top, OUTLINE),
        *label.draw(left + _MARGIN, top + 3),
    )


def _whose(run: Sequence[Box], sheet: Sheet) -> str:
    group = run[0].group
    assert group is not None
    return f"IOMMU group {group}" if len(run) == sheet.shared[group] else f"part of IOMMU group {group}"


def _block(item: Box, numbers: Mapping[str, int], width: int = 0) -> Block:
    return boxed("card", text_of(item, numbers), item.style.colours, width=width)
