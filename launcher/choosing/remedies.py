"""What would help a VM if no node has its cards: to wait, or to leave out one of its own conditions.

Each remedy is tried: the nodes are judged for the VM as it would be then. A remedy without effect is not shown.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce

from launcher.choosing.claim import NVLINK, OFF_BOARDS, Rejection, partition_of, place_name
from launcher.choosing.cluster import Cluster, Node
from launcher.choosing.placement import TOO_MANY, NodeMatcher, Placement
from launcher.choosing.requirements import DeviceRequirements, Sharing, WantedDevice
from launcher.vm.cards.annotations import Word
from pci import slices as words
from program.problem import summary

_MOST_WORDS = 10  # that are tried; a claim of somebody's own may have hundreds of selectors


def remedies(
    matcher: NodeMatcher, cluster: Cluster, nodes: Sequence[Node], before: Sequence[Placement]
) -> Iterator[str]:
    """Yield each remedy as a clause. `nodes`: all of them, first the one whose cards are to be shown; `before`: what
    they have for the VM, by this `matcher`."""
    requirements = matcher.requirements
    free_first = [
        replace(node, devices=tuple(sorted(node.devices, key=lambda each: each.id in cluster.taken))) for node in nodes
    ]
    idle = _first(NodeMatcher(requirements, cluster.idle, matcher), free_first)
    if idle is not None:
        held = [
            f"{device.attribute(words.PCI_BUS_ID) or device.id.name} of {idle.node} ({cluster.taken[device.id]})"
            for device in idle.devices or ()
            if device.id in cluster.taken
        ]
        yield f"wait for {summary(held) if held else f'room on a card of {idle.node}'}"
    own = list(dict.fromkeys(_words(requirements)))[:_MOST_WORDS]
    several = [way for way in ([word for word in own if word != OFF_BOARDS.source], own) if len(way) > 1]
    for ways in ([[word] for word in own], *([way] for way in several)):
        lines = [
            text for way in ways if (text := _without(way, requirements, cluster, nodes, before, matcher)) is not None
        ]
        if lines:
            yield from lines
            break


def _words(requirements: DeviceRequirements) -> Iterator[str]:
    """Yield the VM's own conditions on its cards: annotations, and lines of CEL."""
    for wanted in requirements.devices:
        for alternative in wanted.alternatives:
            yield from (each.source for each in alternative.selectors if each.rejection is Rejection.EXCLUDED)
    yield from (sharing.source for sharing in requirements.sharings)


def _first(matcher: NodeMatcher, nodes: Sequence[Node]) -> Placement | None:
    """Return the first node that has the cards; None if none has, or if finding out takes too long."""
    tried = (each for node in nodes if (each := matcher.placement(node)).devices is not None or each.reason == TOO_MANY)
    placement = next(tried, None)
    return None if placement is None or placement.devices is None else placement


def _without(
    way: Sequence[str],
    requirements: DeviceRequirements,
    cluster: Cluster,
    nodes: Sequence[Node],
    before: Sequence[Placement],
    matcher: NodeMatcher,
) -> str | None:
    """Return what the VM gets without these conditions; None if no node has the cards even then."""
    changed = NodeMatcher(reduce(_less, way, requirements), cluster, matcher)
    placement = _first(changed, nodes)
    if placement is None:
        return None
    excluded = {
        verdict.device.id
        for placement in before
        for verdict in placement.verdicts
        if verdict.reason is not None and verdict.reason.source in way
    }
    of_nodes = {
        placement.node for placement in before if any(each.device.id in excluded for each in placement.verdicts)
    }
    free = sum(
        verdict.reason is None and verdict.device.id in excluded
        for node in nodes
        if node.name in of_nodes
        for verdict in changed.placement(node).verdicts
    )
    cost = f" (excludes {len(excluded)} cards, {free} of them free)" if excluded else ""
    models = Counter(device.product or device.id.name for device in placement.devices or ())
    cards = ", ".join(f"{count} {model}" for model, count in sorted(models.items()))
    return f"{' and '.join(map(_done, way))}{cost}: {placement.node} then has {cards}"


def _done(word: str) -> str:
    if word == OFF_BOARDS.source:
        return f"write {NVLINK}"
    if word.startswith(Word.DRIVER):
        return f"give the guest the driver of a node's Fabric Manager, and not {word}"
    return f"leave out {word}"


def _less(requirements: DeviceRequirements, word: str) -> DeviceRequirements:
    """Return the requirements without this condition. One that keeps GPUs off boards is replaced by one partition."""

    def less(wanted: WantedDevice) -> WantedDevice:
        alternatives = (
            replace(each, selectors=tuple(selector for selector in each.selectors if selector.source != word))
            for each in wanted.alternatives
        )
        return replace(wanted, alternatives=tuple(alternatives))

    sharings = [each for each in requirements.sharings if each.source != word]
    if word == OFF_BOARDS.source:
        of_gpus = {
            (number, at)
            for number, wanted in enumerate(requirements.devices)
            for at, alternative in enumerate(wanted.alternatives)
            if OFF_BOARDS in alternative.selectors
        }
        partition = partition_of(len({number for number, _ in of_gpus}))
        sharings.append(Sharing(partition, place_name(partition), frozenset(of_gpus), NVLINK))
    return DeviceRequirements(tuple(map(less, requirements.devices)), tuple(sharings))
