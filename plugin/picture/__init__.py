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
from pci.host import Host
from pci.topology import leaves, tree
from plugin.picture.cards import State, by, node_cards, title, wrapped
from plugin.picture.layout import laid_out, sheet
from plugin.snapshot import Snapshot
from program.problem import one_line

_NOTE_LETTERS = 110  # of the longest line of a reason


def picture(snapshot: Snapshot, host: Host) -> str:
    """The node as an SVG. Its title counts the devices; no name, date or serial number is in it."""
    cards = node_cards(snapshot, host)
    pci_ids = {address: function.pci_id for address, function in host.functions.items()}
    by_place = by(cards, lambda card: (card.at.numa_node, card.at.root))
    places = sorted(by_place, key=lambda place: (place[0] is None, place[0] or 0, place[1]))
    trees = {place: tree(((card.at.bridges, card) for card in by_place[place]), pci_ids) for place in places}
    reasons = dict.fromkeys(card.reason for nodes in trees.values() for card in leaves(nodes) if card.reason)
    numbers = {reason: number for number, reason in enumerate(reasons, start=1)}
    common = sheet(trees.values(), numbers)
    numa_nodes = [
        framed(
            "numa",
            "NUMA node unknown: the firmware names none" if numa_node is None else f"NUMA node {numa_node}",
            flowed(
                [
                    framed("root", f"root complex {one_line(place[1])}", laid_out(trees[place], common), Colours())
                    for place in its
                ]
            ),
            Colours(box="#f2f2f2"),
        )
        for numa_node, its in by(places, lambda place: place[0]).items()
    ]
    parts = [
        flowed(numa_nodes),
        _notes(numbers, map(str, snapshot.inventory.faults)),
        _legend({card.state for card in cards}, outlines=bool(common.shared)),
    ]
    return svg(title(snapshot), stacked(*(part for part in parts if part.height)))


def _notes(numbers: Mapping[str, int], faults: Iterable[str]) -> Block:
    """The reasons by their numbers, and what of sysfs could not be read."""
    notes = [(f"({number})", f"It {reason}.") for reason, number in numbers.items()]
    notes += [("not read", fault) for fault in faults]
    width = max((Line(head).width for head, _ in notes), default=0)
    return stacked(
        *(
            beside(written([Line(head)], width=width), written(list(map(Line, wrapped(words, _NOTE_LETTERS)))))
            for head, words in notes
        ),
        gap=4,
    )


def _legend(states: set[State], *, outlines: bool) -> Block:
    """What the colours and the outlines mean, as far as there are any."""
    rows = [([Line(f"{state.word}: {state.meaning}")], state.colours) for state in State if state in states]
    if outlines:
        rows.append(([Line("IOMMU group: a guest gets all of one, or nothing")], OUTLINE))
    width = max((boxed("", *row).width for row in rows), default=0)
    return stacked(*(boxed("legend", *row, width=width) for row in rows), gap=4)
