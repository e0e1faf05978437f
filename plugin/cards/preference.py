"""The best of the free devices for a container: the kubelet's GetPreferredAllocation.

A machine is a tree: NUMA node, root complex, bridges from the root port down, device. The price of a set of devices is
a sum over the tree's vertices, so the best set of every size follows from the best sets of the branches (a knapsack on
a tree): exact, in about `available` x `size` steps for any tree.
"""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce
from operator import add

from pci.address import PCIAddress
from program.errors import Refusal


class Policy(StrEnum):
    """Which of equally tight sets of a resource's devices is preferred: see `preferred`."""

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
    """Return the IDs of `size` devices: those that must be included, in their order, then the best others, by address.

    Without a policy the best set is the tightest, with those that must be included in it. It has
    1. the fewest NUMA nodes, since the guest's memory and CPUs have to be near every device;
    2. then the fewest root complexes;
    3. then the fewest switches: a switch is all that is below one root port, or a device on the root complex itself;
    4. then the fewest steps in the tree from device to device, all pairs together: this tells nested switches apart,
       and three devices with a fourth elsewhere from two and two.

    Counts stand before pairs, since pairs alone would prefer three cards apart on one node and a fourth on another
    to two pairs, each below its switch.

    Of equally tight sets, `pack` takes the one that leaves the most pairs of free devices on one node, then on one
    root complex, then with the most bridges in common, so that whole nodes and switches stay free. `spread` takes the
    set with the fewest pairs on one node, then on one root complex, then with the fewest bridges in common; of such
    sets, the one that leaves the fewest such pairs. Only free devices are known here, so they stand for the size of a
    node or switch.

    Sets that are still equal go by address, shorter domains first. A root complex whose NUMA node is unknown counts as
    a node of its own.

    An ID that must be included and is not available is included too: the kubelet has given it out already (to an init
    container, say). If fewer devices are available than `size`, all of them are returned: the kubelet counts before it
    asks, and fills up a short answer itself. An error here would fail the pod without naming the device that is gone;
    Allocate names it (devicesToAllocate in pkg/kubelet/cm/devicemanager/manager.go). Refusal if more devices must be
    included than `size`.
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
    chosen = _best(ways, frozenset(must), number, policy)
    return (*must, *(device for device in chosen if device not in must))


_NODE, _ROOT, _BRIDGE = range(3)  # depths in the tree; a bridge below a bridge is deeper

_Way = tuple[Hashable, ...]
#: The price of taking devices below a vertex. Lower is better; the first number that differs decides.
_Price = tuple[int, ...]


def _way(device: Candidate) -> _Way:
    """Return the vertices from the tree's top to the device. Devices share a vertex if they share all above."""
    return (device.root if device.numa_node is None else device.numa_node, device.root, *device.bridges, device.id)


def _steps(depth: int, taken: int, size: int) -> _Price:
    """Return 1 in the place of node, root or switch if devices below it are taken; and the number of pairs with one
    device below the vertex and one not."""
    touched = min(taken, 1)
    return (
        touched if depth == _NODE else 0,
        touched if depth == _ROOT else 0,
        touched if depth == _BRIDGE else 0,
        taken * (size - taken),
    )


def _pairs(depth: int, devices: int) -> _Price:
    """Return the number of pairs of devices that have this node, root or bridge in common."""
    pairs = devices * (devices - 1) // 2
    return (
        pairs if depth == _NODE else 0,
        pairs if depth == _ROOT else 0,
        pairs if depth >= _BRIDGE else 0,
    )


def _price(policy: Policy | None, depth: int, taken: int, left: int, size: int) -> _Price:
    """Return the price of a vertex, by its depth, the devices taken and left below it, and the `size` of the set."""
    if policy is Policy.SPREAD:
        return (*_pairs(depth, taken), *_pairs(depth, left))
    tight = _steps(depth, taken, size)
    return tight if policy is None else (*tight, *(-pairs for pairs in _pairs(depth, left)))


def _best(ways: Mapping[str, _Way], must: frozenset[str], size: int, policy: Policy | None) -> list[str]:
    """Return the cheapest `size` of these devices, including all of `must`; of equal sets the one that comes first."""
    # The last number of a total is the set itself, negative. An earlier device outweighs all later ones together, so of
    # two sets of one size the greater comes first in order.
    bits = {device: 1 << rank for rank, device in enumerate(reversed(list(ways)))}
    nothing = (*_price(policy, _NODE, 0, 0, size), 0)

    def below(devices: Sequence[str], depth: int) -> dict[int, _Price]:
        """Return the lowest total price by the number of devices taken; all share their vertices above `depth`."""
        branches: defaultdict[Hashable, list[str]] = defaultdict(list)
        for device in devices:
            branches[ways[device][depth]].append(device)
        return reduce(joined, (branch(each, depth) for each in branches.values()))

    def branch(devices: Sequence[str], depth: int) -> dict[int, _Price]:
        """Return the lowest totals for devices that share the vertex at `depth` too, including that vertex's price."""
        if depth < len(ways[devices[0]]) - 1:
            totals = below(devices, depth + 1)
        else:
            (device,) = devices
            totals = {1: (*nothing[:-1], -bits[device])}
            if device not in must:
                totals[0] = nothing
        return {
            taken: _sum(total, (*_price(policy, depth, taken, len(devices) - taken, size), 0))
            for taken, total in totals.items()
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
