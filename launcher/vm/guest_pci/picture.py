"""The picture of `gpu-launcher explain --svg`: the host's PCI Express on the left, the guest's on the right, and a line
from each card to itself. The SVG is the same, byte for byte, for the same VM on the same host."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from drawing.boxes import PAD, Block, Colours, Element, Line, boxed, curve, framed, stacked, svg
from drawing.trees import Columns, columns, every, flipped, lines, placed
from launcher.vm.cards.guest import function_of, mediated
from launcher.vm.guest_pci.addresses import Layout
from launcher.vm.guest_pci.locations import LocatedCard, pairs, what
from pci.address import PCIAddress
from pci.cards import groups_of
from pci.distance import Location
from pci.host import Host
from pci.topology import TreeNode, Twig, tree
from program.problem import one_line

# Okabe and Ito's palette for the colour-blind, without yellow, which is hard to see on white.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#888888")
_BETWEEN, _FOR_A_LINE = 200, 20  # host and guest; wider where there are many lines


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """A card on one of the two sides. `location`: None if sysfs does not show it. `node`: the title of its NUMA node's
    frame. `at`: its order. `lines`: the text in its box."""

    name: str
    location: Location | None
    node: str
    at: PCIAddress | None
    lines: tuple[str, ...]
    colour: str


def picture(vm: str, cards: tuple[LocatedCard, ...], layout: Layout, host: Host | None) -> str:
    """Draw all cards with a seat as an SVG. `vm`: the VM's name. Nothing in the picture names the node."""
    pci_ids = {} if host is None else {address: function.pci_id for address, function in host.functions.items()}
    colours = {card.name: _COLOURS[number % len(_COLOURS)] for number, card in enumerate(cards)}
    left = _drawn("Host", [_on_host(card, host, colours[card.name]) for card in cards], pci_ids, cards_first=False)
    in_guest = [_in_guest(card, layout, host, colours[card.name]) for card in cards]
    right = _drawn("Guest", in_guest, {}, cards_first=True)
    return svg(_title(vm, cards), _joined(left, right, colours))


def _title(vm: str, cards: tuple[LocatedCard, ...]) -> str:
    every_two = pairs(cards)
    counted = one_line(f"{vm}: {len(cards)} card{'' if len(cards) == 1 else 's'}")
    if not every_two or any(pair.host is None for pair in every_two):
        return counted
    if differing := sum(pair.differs for pair in every_two):
        return f"{counted}; distances that are not the host's: {differing} of {len(every_two)}"
    return f"{counted}, as far apart in the guest as on the host"


def _on_host(card: LocatedCard, host: Host | None, colour: str) -> _Side:
    sources = [device.source for device in card.seat.hostdevs]
    function, mdev = function_of(sources[0], host), mediated(sources[0], host)
    if mdev is None:
        groups = groups_of(each for source in sources if (each := function_of(source, host)) is not None)
    else:
        groups = () if mdev.iommu_group is None else (mdev.iommu_group,)
    text = (
        *_functions([(source, what(source, host)) for source in sources if isinstance(source, PCIAddress)]),
        *(line for source in sources if isinstance(source, UUID) for line in (str(source), what(source, host) or "")),
        *((f"of {mdev.parent}",) if mdev is not None else ()),
        *((f"IOMMU group {', '.join(map(str, groups))}",) if groups else ()),
    )
    node = card.host.numa_node if card.host is not None else None
    return _Side(
        name=card.name,
        location=card.host,
        node="NUMA node unknown" if node is None else f"NUMA node {node}",
        at=None if function is None else function.address,
        lines=tuple(map(one_line, text)),
        colour=colour,
    )


def _in_guest(card: LocatedCard, layout: Layout, host: Host | None, colour: str) -> _Side:
    seen = layout.guest_addresses()
    functions = [(seen[device], what(device.source, host)) for device in card.seat.hostdevs]
    return _Side(
        name=card.name,
        location=card.guest,
        node=_cell(card.guest.numa_node, layout),
        at=functions[0][0],
        lines=tuple(map(one_line, _functions(functions))),
        colour=colour,
    )


def _cell(number: int | None, layout: Layout) -> str:
    if number is None:
        return "no NUMA cell"
    node = layout.cells[number].node if number < len(layout.cells) else None
    return f"NUMA cell {number}" + (f", of the host's node {node}" if node is not None else "")


def _functions(functions: Sequence[tuple[PCIAddress, str | None]]) -> tuple[str, ...]:
    """Return the words for the functions: the first one's address, the others' numbers on its slot, and their kinds."""
    words = [f"{address if not number else f'.{address.function}'} {word or ''}".rstrip()
             for number, (address, word) in enumerate(functions)]  # fmt: skip
    return tuple(filter(None, (*words[:1], ", ".join(words[1:]))))


def _drawn(title: str, cards: Sequence[_Side], pci_ids: Mapping[PCIAddress, str], *, cards_first: bool) -> Block:
    """Draw a frame for each NUMA node, with one for each root complex in it; cards that are not in sysfs have their own
    frame."""
    seen = sorted((card for card in cards if card.location is not None), key=_order)
    nodes: dict[str, dict[str, list[_Side]]] = {}
    for card in seen:
        assert card.location is not None
        nodes.setdefault(card.node, {}).setdefault(one_line(f"root complex {card.location.root}"), []).append(card)
    trees = {name: {root: _tree(its, pci_ids) for root, its in roots.items()} for name, roots in nodes.items()}
    if lost := [card for card in cards if card.location is None]:
        trees["place unknown"] = {"not seen in sysfs": _tree(lost, {})}
    common = columns((nodes for roots in trees.values() for nodes in roots.values()), _box)
    titles = [title for name, roots in trees.items() for title in (name, *roots)]
    width = max((common.width, *(Line(title, strong=True).width for title in titles)))
    frames = [
        framed(
            "numa",
            name,
            stacked(
                *(
                    framed("root", root, _laid_out(nodes, common, width, cards_first), Colours())
                    for root, nodes in roots.items()
                )
            ),
            Colours(box="#f2f2f2"),
        )
        for name, roots in trees.items()
    ]
    return framed("machine", title, stacked(*frames), Colours(box="#fafafa"))


def _order(card: _Side) -> tuple[bool, int, str, str]:
    assert card.location is not None
    node = card.location.numa_node
    return node is None, node or 0, card.location.root, f"{card.at} {card.name}"


def _tree(cards: Iterable[_Side], pci_ids: Mapping[PCIAddress, str]) -> tuple[TreeNode[_Side], ...]:
    return tree(((() if card.location is None else card.location.bridges, card) for card in cards), pci_ids)


def _laid_out(nodes: Sequence[TreeNode[_Side]], common: Columns, width: int, cards_first: bool) -> Block:
    """Draw the tree of a root complex; return it with the end of each card's line, by the card's name."""
    places, height = placed(nodes, common, _box)
    if cards_first:
        places = flipped(places, width)

    hanging = [place for place in places if not isinstance(place.node, Twig) or place.node.leaf.location is not None]

    def draw(x: int, y: int) -> list[Element]:
        return [
            *lines(hanging, x, y, edge=width + PAD if cards_first else -PAD),
            *(element for place in every(places) for element in place.block.draw(x + place.x, y + place.y)),
        ]

    ends = {
        place.node.leaf.name: (place.x if cards_first else place.right, place.middle)
        for place in every(places)
        if isinstance(place.node, Twig)
    }
    return Block(width, height, draw, ends)


def _box(card: _Side, width: int = 0) -> Block:
    text = [Line(card.name, strong=True), *map(Line, card.lines)]
    return boxed("card", text, Colours(edge=card.colour, strip=True), width=width)


def _joined(left: Block, right: Block, colours: Mapping[str, str]) -> Block:
    """Put both side by side, the smaller one at half height, with a line for each card."""
    height = max(left.height, right.height)
    down, also_down = (height - left.height) // 2, (height - right.height) // 2
    start, end = left.width, left.width + max(_BETWEEN, _FOR_A_LINE * len(colours))
    from_cards, to_cards = left.ends_at(0, down), right.ends_at(end, also_down)

    def draw(x: int, y: int) -> list[Element]:
        return [
            *left.draw(x, y + down),
            *right.draw(x + end, y + also_down),
            *(
                curve(
                    (x + from_cards[name][0], y + from_cards[name][1]),
                    (x + to_cards[name][0], y + to_cards[name][1]),
                    colour,
                    between=(x + start, x + end),
                )
                for name, colour in colours.items()
            ),
        ]

    return Block(end + right.width, height, draw)
