"""Where each card is on the host, and so in the guest: the annotation gpu-launcher.dev/topology.

`numa` puts the card into the cell of its NUMA node, `mirror` also behind copies of the host's switches. A card whose
node is unknown stays on bus 0, or is refused (gpu-launcher.dev/topology-policy: strict).
"""

from launcher.vm.cards.guest import GuestCard, function_of
from launcher.vm.cpu.guest import Cell, Pinning, cells_of_nodes, guest_cells
from launcher.vm.facts import Facts
from launcher.vm.guest import TOPOLOGY, TOPOLOGY_POLICY, Guest
from launcher.vm.guest_pci.addresses import Layout, Upstream, layout, with_seats
from pci.host import Function, Host
from program.errors import UserError


def laid_out(
    guest: Guest,
    cards: tuple[GuestCard, ...],
    host: Host | None,
    facts: Facts,
    pinned: Pinning | None,
    fixed: tuple[Cell, ...] = (),
) -> Layout:
    """Return the layout that the guest asks for, with its NUMA cells. `pinned`: the guest's own CPUs. `fixed`: the
    cells that the guest has in any case; empty if they follow from its cards.

    UserError if there are too few seats, if a topology needs an unknown host, and if a strict topology cannot be had.
    """
    seated = with_seats(cards)
    if guest.topology == "none" or not seated:
        return layout(cards, guest.seats, cells=guest_cells(guest, pinned, facts))
    if host is None:
        raise UserError(
            "metadata.annotations",
            f"{TOPOLOGY}: where the node has its cards is not known here",
            "expected --sysfs, with bus/pci/devices and devices/system/node",
        )
    functions = {card: function_of(card.device, host) for card in seated}
    nodes = {
        card: facts.processors.node_of(function.numa_node) if function is not None else None
        for card, function in functions.items()
    }
    wanted = tuple(sorted({node for node in nodes.values() if node is not None}))
    cells = fixed or cells_of_nodes(guest, pinned, facts, wanted)
    cell_of = {cell.node: number for number, cell in enumerate(cells)}
    upstream = {}
    for card, function in functions.items():
        node = nodes[card]
        cell = cell_of.get(node) if node is not None else None
        mirrored = function if guest.topology == "mirror" else None
        why = None if cell is not None else _why(card, function, node, tuple(cell_of))
        if why is not None and guest.is_strict:
            raise UserError(
                card.claim.entry,
                f"{why}, and {TOPOLOGY_POLICY} is 'strict'",
                "expected a card of a node that the guest has a cell of, or 'prefer'",
            )
        upstream[card] = Upstream(
            cell=cell,
            root=mirrored.root if mirrored else None,
            bridges=mirrored.bridges if mirrored else (),
            misplaced=why and f"{why}: it is {'behind its switches, and' if mirrored else 'on bus 0,'} in no NUMA cell",
        )
    return layout(cards, guest.seats, upstream, cells or guest_cells(guest, pinned, facts))


def _why(card: GuestCard, function: Function | None, node: int | None, cells: tuple[int | None, ...]) -> str:
    """Return why the card is in no cell of the guest."""
    if function is None:
        return f"{card.device} is not in sysfs, and so its place is not known"
    if node is None:
        return f"{function.address} is on a NUMA node that the host's firmware does not tell"
    return f"{function.address} is on NUMA node {node}, and the guest's CPUs are on {', '.join(map(str, cells))}"
