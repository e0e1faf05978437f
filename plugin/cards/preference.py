"""Which of the free devices a container would best get: the kubelet's GetPreferredAllocation.

A machine is read as a tree: NUMA node, root complex, bridges from the root port down, device. What makes a choice good
is a sum over the tree's vertices of what is taken below each, so the best choice of every size is put together from
the branches' best ones (a knapsack on a tree): exact, in about `available` x `size` steps, whatever the tree.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce
from operator import add

from pci.address import PCIAddress
from program.errors import Refusal


class Policy(StrEnum):
    """What a resource's devices are kept for, beyond a tight fit: see `preferred`."""

    PACK = "pack"
    SPREAD = "spread"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A device that could be chosen: its ID, and where it sits, as pci.host.Function has it."""

    id: str
    numa_node: int | None
    root: str
    bridges: tuple[PCIAddress, ...]


def preferred(
    available: Sequence[Candidate], must_include: Sequence[str], size: int, policy: Policy | None = None
) -> tuple[str, ...]:
    """The IDs of `size` devices: those that must be included, in their order, then the best others, by address.

    Without a policy the best set is the tightest, with those that must be included in it. It has
    1. the fewest NUMA nodes, since the guest's memory and CPUs have to be near every device;
    2. then the fewest root complexes;
    3. then the fewest switches: a switch is all that is below one root port, or a device on the root complex itself;
    4. then the fewest steps in the tree from device to device, all pairs together: this tells nested switches apart,
       and three devices with a fourth elsewhere from two and two.

    Counts stand before pairs, since pairs alone would rather have three cards apart on one node and a fourth on
    another than two pairs, each below its switch.

    Of equally tight sets, `pack` takes the one that leaves the most pairs of free devices on one node, then on one
    root complex, then with the most bridges in common: what is nearly used up goes first, whole nodes and switches
    stay whole. `spread` is the reverse of both: the set with the fewest pairs on one node, then on one root complex,
    then with the fewest bridges in common; of such sets, the one that leaves the fewest such pairs: from the emptiest.
    How much a node or switch holds when all is free is not known here; what is free now counts for it.

    What is left equal goes by address, shorter domains first. A root complex whose node the firmware doesn't tell
    counts as a node of its own: nothing is near by guess.

    An ID that must be included and is not available is included, since the kubelet has given it out already (to an
    init container, say), and nothing is near it. Where fewer are available than asked for, all of them are the answer.
    The kubelet counts before it asks, and fills up a short answer itself; what it has that this node has no more is
    for Allocate to refuse by name, where an error here would fail the pod without it (devicesToAllocate in
    pkg/kubelet/cm/devicemanager/manager.go). Refusal where more must be included than are asked for.
    """
    must = tuple(dict.fromkeys(must_include))
    if len(must) > size:
        raise Refusal(
            ", ".join(must) or "no device",
            f"number of must-include devices ({len(must)}) exceeds the allocation size ({size})",
            f"expected a size of at least {len(must)}",
        )
    ways = {each.id: _way(each) for each in sorted(available, key=lambda each: (len(each.id), each.id))}
    number = min(size - len(set(must) - set(ways)), len(ways))
    chosen = _best(ways, frozenset(must), number, _PRICES[policy])
    return (*must, *(device for device in chosen if device not in must))


_NODE, _ROOT, _BRIDGE = range(3)  # depths in the tree; a bridge below a bridge has a greater one

_Way = tuple[Hashable, ...]
#: What taking devices below a vertex costs. Lower is better; the first number that differs decides.
_Price = tuple[int, ...]


def _way(device: Candidate) -> _Way:
    """Return the way from the tree's top to the device. Devices share a vertex if they share the way to it."""
    return (device.root if device.numa_node is None else device.numa_node, device.root, *device.bridges, device.id)


def _steps(depth: int, taken: int, size: int) -> _Price:
    """Return whether this is one more node, root or switch; and how many pairs have one device below and one not."""
    touched = min(taken, 1)
    return (
        touched if depth == _NODE else 0,
        touched if depth == _ROOT else 0,
        touched if depth == _BRIDGE else 0,
        taken * (size - taken),
    )


def _pairs(depth: int, devices: int) -> _Price:
    """Return the pairs that have this node, root or bridge in common."""
    pairs = devices * (devices - 1) // 2
    return (
        pairs if depth == _NODE else 0,
        pairs if depth == _ROOT else 0,
        pairs if depth >= _BRIDGE else 0,
    )


def _tight_price(depth: int, taken: int, left: int, size: int) -> _Price:
    return _steps(depth, taken, size)


def _pack_price(depth: int, taken: int, left: int, size: int) -> _Price:
    return (*_steps(depth, taken, size), *(-pairs for pairs in _pairs(depth, left)))


def _spread_price(depth: int, taken: int, left: int, size: int) -> _Price:
    return (*_pairs(depth, taken), *_pairs(depth, left))


#: The price of a vertex, by its depth, the devices taken and left below it, and the number taken of the whole tree.
_PRICES: Mapping[Policy | None, Callable[[int, int, int, int], _Price]] = {
    None: _tight_price,
    Policy.PACK: _pack_price,
    Policy.SPREAD: _spread_price,
}


def _best(
    ways: Mapping[str, _Way], must: frozenset[str], size: int, price: Callable[[int, int, int, int], _Price]
) -> list[str]:
    """Return the cheapest `size` of these devices, with those of `must` among them; of equals those that come first."""
    # The last number of a total is the set itself, negative. An earlier device outweighs all later ones together, so of
    # two sets of one size the greater comes first in order.
    bits = {device: 1 << rank for rank, device in enumerate(reversed(list(ways)))}
    nothing = (*price(_NODE, 0, 0, size), 0)

    def below(devices: Sequence[str], depth: int) -> dict[int, _Price]:
        """The lowest total for every number taken of these devices, which share their way above `depth`."""
        branches: defaultdict[Hashable, list[str]] = defaultdict(list)
        for device in devices:
            branches[ways[device][depth]].append(device)
        return reduce(joined, (branch(each, depth) for each in branches.values()))

    def branch(devices: Sequence[str], depth: int) -> dict[int, _Price]:
        """The same for devices that share `depth` as well, with its own price."""
        if depth < len(ways[devices[0]]) - 1:
            totals = below(devices, depth + 1)
        else:
            (device,) = devices
            totals = {1: (*nothing[:-1], -bits[device])}
            if device not in must:
                totals[0] = nothing
        return {
            taken: _sum(total, (*price(depth, taken, len(devices) - taken, size), 0)) for taken, total in totals.items()
        }

    def joined(one: dict[int, _Price], other: dict[int, _Price]) -> dict[int, _Price]:
        totals: dict[int, _Price] = {}
        for taken, total in one.items():
            for more, price_of_more in other.items():
                count = taken + more
                if count <= size:
                    candidate = _sum(total, price_of_more)
                    if count not in totals or candidate < totals[count]:
                        totals[count] = candidate
        return totals

    if not size:
        return []
    chosen = -below(list(ways), _NODE)[size][-1]
    return [device for device in ways if chosen & bits[device]]


def _sum(one: _Price, other: _Price) -> _Price:
    return tuple(map(add, one, other))
