"""`gpu-launcher fit`: the nodes that could take a VM, as text and as JSON.

The JSON's keys stay:

    {"vm": "NAMESPACE/NAME", "fits": true, "answer": null or {"subject": "NAMESPACE/NAME", "wrong": TEXT, "fix": TEXT},
     "notes": [TEXT], "nodes": [
        {"node": NAME, "fits": true, "reason": null, "obstacles": [
            {"kind": TEXT, "subject": NAME, "wrong": TEXT, "fix": TEXT}],
         "takes": [{"entry": "gpu 'gpu1'", "device": NAME, "pool": NAME, "address": ADDRESS or null, "product": TEXT or
                    null, "uuid": UUID or null}],
         "cards": [{"device": NAME, ..., "reason": TEXT or null}]}],
     "text": what is printed without --json, but for the answer}
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from launcher.choosing.claim import ANY_GPU, Rejection, claim_for
from launcher.choosing.cluster import Cluster, PublishedDevice
from launcher.choosing.limits import limits_of
from launcher.choosing.names import MOST_TOLD, instead_of, nobodys, offered_by_dra, offered_by_nodes, refuse_unknown_ids
from launcher.choosing.nodes import NodeState
from launcher.choosing.obstacles import (
    AskingPod,
    NodeDistance,
    Obstacle,
    Resources,
    amount_text,
    by_dra,
    obstacles,
)
from launcher.choosing.placement import TOO_MANY, NodeMatcher, Placement, Verdict
from launcher.choosing.remedies import remedies
from launcher.choosing.requirements import (
    AskedClaim,
    DeviceRequirements,
    NamedClaim,
    asked_claim,
    extended_claim,
    requirements_of,
)
from launcher.vm.cards.annotations import Selection, refuse_unheard
from launcher.vm.cards.claims import Entry
from pci import slices as words
from pci.resource import NODE_DEVICES
from program.output import aligned
from program.problem import Problem, one_line, summary

_MOST_NODES = 10  # that are told one by one, of each sort
_MOST_KINDS = 10
_DEFAULT = "default"  # the namespace
_CARDS = "no such cards"
_FIX_OF_CARDS = "no node has what it asks for, also if it waits: see the cards below, and docs/choosing.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What each node has for a VM. `pod`: what the VM's pod asks of a node; None if no Nodes were given. `obstacles`:
    by node, why it cannot take the pod, its cards first. `unknown`: resources that nobody offers, and what to do about
    each. `notes`: what fit did not judge, and oddities. `refused`: why the VM's namespace may not have it on any node,
    and what to do. `remedies`: what would give the VM its cards, if the nearest node lacks these."""

    vm: str
    requirements: DeviceRequirements
    placements: tuple[Placement, ...]
    pod: AskingPod | None
    states: Mapping[str, NodeState]
    obstacles: Mapping[str, tuple[Obstacle, ...]]
    unknown: Mapping[str, str]
    notes: tuple[str, ...]
    refused: tuple[str, str] | None = None
    remedies: tuple[str, ...] = ()

    @property
    def is_judged(self) -> bool:
        """Return whether there was anything to judge: a card by DRA, or Nodes."""
        return bool(self.requirements.devices or self.states)

    @property
    def fitting(self) -> tuple[Placement, ...]:
        """Return the nodes that could take the VM: none if a selector has no answer for any node's card, since the
        scheduler then gives up on the pod."""
        if self.refused is not None or any(placement.unknowable is not None for placement in self.placements):
            return ()
        return tuple(placement for placement in self.placements if not self.obstacles[placement.node])

    @property
    def answer(self) -> tuple[str, str] | None:
        """Return why no node takes the VM, and what to do; None if one does."""
        if self.refused is not None:
            return self.refused
        if self.fitting or not self.placements:
            return None
        if self.unknown:
            return f"no node offers {', '.join(self.unknown)}", ", ".join(self.unknown.values())
        for placement in self.placements:
            if placement.unknowable is not None:
                return str(placement.reason), "ask for an attribute with has(...), or .?NAME.orValue(...)"
        if self.requirements.devices and not any(placement.verdicts for placement in self.placements):
            return "no node has published a device by DRA", "see whether gpu-plugin serves DRA there: deploy/dra"
        nearest, of_it = self.nearest, self.obstacles[self.nearest.node]
        which = "the nearest" if len(self.placements) > 1 else "the only one"
        against = ", ".join(f"{each.text}{_tallied(nearest)}" if each.short == _CARDS else each.text for each in of_it)
        return f"no node takes it, and {nearest.node} is {which}: {against}", ", or ".join(self.remedies) or of_it[
            0
        ].fix

    @property
    def nearest(self) -> Placement:
        return min(self.placements, key=self.distance)

    @property
    def lacks_cards(self) -> bool:
        """Return whether the nearest node lacks the cards, and remedies can be tried."""
        given_up = any(each.unknowable is not None or each.reason == TOO_MANY for each in self.placements)
        if self.fitting or not self.placements or given_up or self.refused is not None:
            return False
        return any(each.short == _CARDS for each in self.obstacles[self.nearest.node])

    def distance(self, placement: Placement) -> tuple[int, int, int, int, int, str]:
        """Sort key: the nodes nearest to taking the VM first; among them those with the most suitable cards, then those
        with the most cards that nearly suit."""
        its = self.obstacles[placement.node]
        suitable = sum(verdict.reason is None for verdict in placement.verdicts)
        rejections = Counter(verdict.reason.rejection for verdict in placement.verdicts if verdict.reason)
        rejection, nearly = max(rejections.items(), default=(0, 0))
        return max((each.distance for each in its), default=0), len(its), -suitable, -rejection, -nearly, placement.node


def fit_of(
    vm: str,
    namespace: str | None,
    entries: Sequence[Entry],
    selection: Selection,
    claims: Sequence[NamedClaim],
    cluster: Cluster,
    *,
    dra: bool = True,
    pod: AskingPod | None = None,
) -> Fit:
    """Judge each node for a VM with these entries: with `dra` by the claim that `pod --dra` writes; by the VM's own
    `claims`; and by its pod, for a cluster with Nodes.

    UserError for a claim that is not in the cluster, or that fit does not judge.
    """
    claims_asked: list[AskedClaim] = []
    if dra:
        refuse_unheard(selection, entries)
        refuse_unknown_ids(selection, cluster)
        if (own := claim_for(entries, selection)) is not None:
            owner = {"kind": "ResourceClaimTemplate", "metadata": {"name": vm}}
            claims_asked.append(AskedClaim(owner, own.spec(), {each.name: str(each.entry) for each in own.requests}))
    claims_asked += (asked_claim(claim, entries, namespace, cluster) for claim in claims)
    states = cluster.states
    of_dra = {} if pod is None else {name: by_dra(pod, states[name], cluster.extended) for name in states}
    matchers: dict[Resources, NodeMatcher] = {}
    for its in dict.fromkeys([(), *of_dra.values()]):
        every = [*claims_asked, extended_claim(vm, its, cluster)] if its else claims_asked
        matchers[its] = NodeMatcher(requirements_of(every, selection, cluster), cluster, matchers.get(()))
    wants_devices = any(matcher.requirements.devices for matcher in matchers.values())
    nodes = [node for node in cluster.nodes if wants_devices or node.name in states]
    placements = tuple(matchers[of_dra.get(node.name, ())].placement(node) for node in nodes)
    fit = Fit(
        vm=vm,
        requirements=matchers[()].requirements,
        placements=placements,
        pod=pod,
        states=states,
        obstacles={each.node: tuple(_obstacles(each, pod, cluster)) for each in placements},
        unknown=_unknown(entries if dra else (), pod, cluster),
        notes=(),
        refused=limits_of(cluster.limits).refusal(
            namespace or _DEFAULT,
            # A pod that is there was taken, and its claims that are there.
            pod.requests if pod is not None and vm not in cluster.waiting else {},
            [each for each in claims_asked if each.owner.get("kind") == "ResourceClaimTemplate"],
        ),
    )
    fit = replace(fit, notes=(*_notes(pod, cluster), *_refused(fit), *nobodys(selection, cluster)))
    if not fit.lacks_cards or fit.unknown:
        return fit
    its = of_dra.get(fit.nearest.node, ())
    alike = [node for node in nodes if of_dra.get(node.name, ()) == its]
    alike.sort(key=lambda node: sum(each.short != _CARDS for each in fit.obstacles[node.name]))
    return replace(fit, remedies=tuple(remedies(matchers[its], cluster, alike, placements)))


def _obstacles(placement: Placement, pod: AskingPod | None, cluster: Cluster) -> Iterator[Obstacle]:
    states = cluster.states
    if placement.devices is None:
        is_near = any(
            each.reason is None or each.reason.rejection >= Rejection.UNHEALTHY for each in placement.verdicts
        )
        distance = NodeDistance.TAKEN if is_near else NodeDistance.WITHOUT
        yield Obstacle(distance, _CARDS, str(placement.reason), _FIX_OF_CARDS)
    if pod is not None and placement.node in states:
        yield from obstacles(pod, states[placement.node], cluster.extended)
    elif states and placement.node not in states:
        yield Obstacle(
            NodeDistance.ELSEWHERE, "no Node", "has slices, and there is no such Node", "get nodes with them"
        )


def _unknown(entries: Iterable[Entry], pod: AskingPod | None, cluster: Cluster) -> dict[str, str]:
    """Return the resources that nobody offers, each with what to do. `entries` ask DRA for devices by deviceName."""
    by_dra, by_nodes = offered_by_dra(cluster), offered_by_nodes(cluster)
    wanted = {entry.wants for entry in entries if isinstance(entry.wants, str)} - ANY_GPU.keys()
    requested = {name for name in pod.requests if "/" in name} if pod is not None else set()
    return {
        **{name: instead_of(name, by_dra) for name in sorted(wanted) if by_dra and words.fitted(name) not in by_dra},
        **{name: instead_of(name, by_nodes) for name in sorted(requested - by_nodes.keys() - cluster.extended.keys())},
    }


def _notes(pod: AskingPod | None, cluster: Cluster) -> Iterator[str]:
    yield from cluster.gaps
    if pod is not None and pod.unjudged:
        yield f"not looked at: {', '.join(pod.unjudged)}"


def _refused(fit: Fit) -> Iterator[str]:
    """Yield a note for each reason why the scheduler may take nodes other than the fitting ones, where gpu-plugin would
    refuse the VM for good."""
    if not fit.fitting:
        return
    reasons: dict[str, list[str]] = {}
    for each in fit.placements:
        if each.is_refused and len(fit.obstacles[each.node]) == 1:
            reasons.setdefault(str(each.reason), []).append(each.node)
    for reason, nodes in list(reasons.items())[:MOST_TOLD]:
        yield f"the scheduler may take {summary(nodes, MOST_TOLD)} instead, where the VM would never start: {reason}"


def _tallied(placement: Placement) -> str:
    """Return the number of a node's cards for each reason."""
    counts = Counter(each.reason.short for each in placement.verdicts if each.reason is not None)
    return f" ({summary((f'{count} {short}' for short, count in counts.most_common()), MOST_TOLD)})" if counts else ""


def as_json(fit: Fit) -> str:
    fits = bool(fit.fitting)
    document = {
        "vm": fit.vm,
        "fits": fits,
        "answer": None if fit.answer is None else Problem(fit.vm, *fit.answer).as_json(),
        "notes": list(fit.notes),
        "nodes": [
            {
                "node": placement.node,
                "fits": fits and not fit.obstacles[placement.node],
                "reason": placement.reason,
                "obstacles": [
                    {"kind": each.distance.name.lower(), **Problem(placement.node, each.text, each.fix).as_json()}
                    for each in fit.obstacles[placement.node]
                ],
                "takes": [
                    {"entry": wanted.name, **_described(device)}
                    for wanted, device in zip(placement.wanted, placement.devices or (), strict=True)
                ],
                "cards": [
                    {
                        **_described(verdict.device),
                        "reason": None if verdict.reason is None else verdict.reason.text,
                    }
                    for verdict in placement.verdicts
                ],
            }
            for placement in fit.placements
        ],
        "text": as_text(fit, with_answer=False),
    }
    return json.dumps(document, indent=2) + "\n"


def _described(device: PublishedDevice) -> dict[str, Any]:
    return {
        "device": device.id.name,
        "pool": device.id.pool,
        "address": device.attribute(words.PCI_BUS_ID),
        "product": device.product,
        "uuid": _uuid(device),
    }


def as_text(fit: Fit, *, with_answer: bool = True) -> str:
    """Return the nodes that fit, with what the VM would get on each, then the others with all their obstacles. Of many
    others show the nearest misses, and the number of nodes and cards for each reason."""
    fitting = fit.fitting
    others = sorted((each for each in fit.placements if not fitting or fit.obstacles[each.node]), key=fit.distance)
    lines = [_headline(fit, len(fitting))]
    if with_answer and fit.answer is not None and (fit.unknown or fit.states or fit.remedies or fit.refused):
        wrong, fix = fit.answer
        lines.append(f"{wrong}; {fix}")
    if fitting:
        rows_of = _taken_rows if any(each.wanted for each in fitting) else _free_rows
        rows = rows_of(fit, fitting[:_MOST_NODES])
        lines += ["", *aligned(rows), *_more(len(fitting))]
    alike: dict[tuple[str, ...], list[str]] = {}
    for placement in others:
        if reasons := tuple(_against(fit, placement)):
            alike.setdefault(reasons, []).append(placement.node)
    for (first, *more), nodes in list(alike.items())[:_MOST_NODES]:
        lines += ["", f"{summary(nodes, MOST_TOLD)}: {first}", *(f"  {line}" for line in more)]
    lines += _more(len(alike), "kinds of nodes")
    if len(alike) > _MOST_NODES:
        lines += ["", *_tally(fit, others)]
    lines += [f"note: {note}" for note in fit.notes]
    return "".join(f"{one_line(line)}\n" for line in lines)


def _headline(fit: Fit, fitting: int) -> str:
    nodes = f"{len(fit.placements)} node{'' if len(fit.placements) == 1 else 's'}"
    if not fit.is_judged:
        return f"{fit.vm} wants no card by DRA."
    if not fit.placements:
        return f"{fit.vm} fits nowhere: neither a Node nor a device of one is among the objects."
    if fitting == 0:
        return f"{fit.vm} fits on none of {nodes}."
    return f"{fit.vm} fits on {fitting} of {nodes}{'' if fit.states else ', as far as its cards are concerned'}."


def _taken_rows(fit: Fit, placements: Iterable[Placement]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("NODE", "ENTRY", "CARD", "PRODUCT", "UUID")]
    for placement in placements:
        node = placement.node
        for wanted, device in zip(placement.wanted, placement.devices or (), strict=True):
            rows.append((node, wanted.name, _address(device), device.product or "-", _uuid(device) or "-"))
            node = ""
        if not placement.wanted:
            rows.append((node, "of its device plugin", "-", "-", "-"))
    return rows


def _free_rows(fit: Fit, placements: Iterable[Placement]) -> list[tuple[str, ...]]:
    """Return a table: what each node has free of each resource that the pod asks for."""
    resources = [
        name for name in (fit.pod.requests if fit.pod is not None else ()) if not name.startswith(NODE_DEVICES)
    ]
    rows: list[tuple[str, ...]] = [("NODE", *resources)]
    for placement in placements:
        node = fit.states[placement.node]
        free = (
            f"{amount_text(name, node.free(name))} of {amount_text(name, node.allocatable[name])} free"
            for name in resources
        )
        rows.append((node.name, *free))
    return rows


def _against(fit: Fit, placement: Placement) -> Iterator[str]:
    """Yield a node's obstacles, except resources that nobody offers: the answer says that of all nodes."""
    requests = fit.pod.requests if fit.pod is not None else {}
    no_cards = any(name not in requests for name in fit.unknown)
    its = [
        each.text
        for each in fit.obstacles[placement.node]
        if each.resource not in fit.unknown and not (no_cards and each.short == _CARDS)
    ]
    if its or not fit.unknown:
        yield from its or ["the scheduler gives up before it gets here"]
        yield from () if no_cards else _cards(placement.verdicts)


def _address(device: PublishedDevice) -> str:
    return str(device.attribute(words.PCI_BUS_ID) or device.id.name)


def _uuid(device: PublishedDevice) -> str | None:
    """Return a UUID by which an annotation may name the device: NVML's if it is known."""
    return _text(device, words.NVML_UUID) or _text(device, words.UUID)


def _text(device: PublishedDevice, name: str) -> str | None:
    return None if (value := device.attribute(name)) is None else str(value)


def _cards(verdicts: Sequence[Verdict]) -> list[str]:
    rows = [
        (
            _address(verdict.device),
            verdict.device.product or "-",
            "could be" if verdict.reason is None else verdict.reason.text,
        )
        for verdict in verdicts
    ]
    return aligned(rows)


def _more(number: int, of: str = "") -> list[str]:
    left = number - _MOST_NODES
    return [f"and {left} more {of}".rstrip() + "; --json has all"] if left > 0 else []


def _tally(fit: Fit, placements: Sequence[Placement]) -> Iterator[str]:
    kinds = [each.short for placement in placements for each in fit.obstacles[placement.node]]
    if fit.states:
        yield f"Of the {len(placements)} nodes that it does not fit on:"
        yield from _counted(kinds)
    reasons = [
        verdict.reason.short if verdict.reason is not None else "could be one, but not with the others"
        for placement in placements
        for verdict in placement.verdicts
    ]
    if reasons:
        yield f"Of the {len(reasons)} cards of nodes that it does not fit on:"
        yield from _counted(reasons)


def _counted(kinds: Iterable[str]) -> list[str]:
    return aligned([(f"  {count}", kind) for kind, count in Counter(kinds).most_common(_MOST_KINDS)])
