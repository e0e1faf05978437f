"""A picture of a node for a bug report: NUMA nodes, root complexes, ports, switches, and every device in its place with
its state and, by number, the reason.

Pure: from what was seen to the text of an SVG, the same bytes for the same node. A state has a colour, and says itself
in words.
"""

from collections.abc import Iterable, Mapping

from drawing.boxes import (
    OUTLINE,
    Block,
    Colours,
    Line,
    beside,
    boxed,
    flowed,
    framed,
    stacked,
    svg,
    written,
)
from pci.topology import leaves, tree
from plugin.fabric import status as fabric
from plugin.node.snapshot import Snapshot
from plugin.picture.boxes import Style, by, node_boxes, title, wrapped
from plugin.picture.layout import laid_out, sheet
from program.problem import one_line

_NOTE_LETTERS = 110  # of the longest line of a reason


def picture(snapshot: Snapshot) -> str:
    """Return the node as an SVG. Its title counts the devices; no name, date or serial number is in it."""
    host, sight = snapshot.host, snapshot.partitions
    boxes = node_boxes(snapshot)
    notes = () if sight is None else fabric.notes(sight, snapshot.inventory)
    pci_ids = {address: function.pci_id for address, function in host.functions.items()}
    by_complex = by(boxes, lambda box: (box.at.numa_node, box.at.root))
    complexes = sorted(by_complex, key=lambda at: (at[0] is None, at[0] or 0, at[1]))
    trees = {at: tree(((box.at.bridges, box) for box in by_complex[at]), pci_ids) for at in complexes}
    reasons = dict.fromkeys(box.reason for nodes in trees.values() for box in leaves(nodes) if box.reason)
    numbers = {reason: number for number, reason in enumerate(reasons, start=1)}
    common = sheet(trees.values(), numbers)
    numa_nodes = [
        framed(
            "numa",
            "NUMA node unknown: the firmware names none" if numa_node is None else f"NUMA node {numa_node}",
            flowed(
                [
                    framed("root", f"root complex {one_line(at[1])}", laid_out(trees[at], common), Colours())
                    for at in its
                ]
            ),
            Colours(box="#f2f2f2"),
        )
        for numa_node, its in by(complexes, lambda at: at[0]).items()
    ]
    parts = [
        flowed(numa_nodes),
        _notes(numbers, map(str, snapshot.inventory.faults), notes),
        _legend({box.style for box in boxes}, outlines=bool(common.shared)),
    ]
    return svg(title(snapshot), stacked(*(part for part in parts if part.height)))


def _notes(numbers: Mapping[str, int], faults: Iterable[str], others: Iterable[str]) -> Block:
    """Return the reasons by their numbers, what of sysfs could not be read, and what is to be known of partitions."""
    notes = [(f"({number})", f"It {reason}.") for reason, number in numbers.items()]
    notes += [("not read", fault) for fault in faults]
    notes += [("partitions", other) for other in others]
    width = max((Line(head).width for head, _ in notes), default=0)
    return stacked(
        *(
            beside(written([Line(head)], width=width), written(list(map(Line, wrapped(words, _NOTE_LETTERS)))))
            for head, words in notes
        ),
        gap=4,
    )


def _legend(styles: set[Style], *, outlines: bool) -> Block:
    """Return what the colours and the outlines mean, as far as there are any."""
    rows = [([Line(f"{style.word}: {style.meaning}")], style.colours) for style in Style if style in styles]
    if outlines:
        rows.append(([Line("IOMMU group: a guest gets all of one, or nothing")], OUTLINE))
    width = max((boxed("", *row).width for row in rows), default=0)
    return stacked(*(boxed("legend", *row, width=width) for row in rows), gap=4)
