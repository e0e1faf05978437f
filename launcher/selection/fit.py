"""`gpu-launcher fit`: where a VM could be, in words and as JSON.

The JSON's keys stay:

    {"vm": "NAMESPACE/NAME", "fits": true, "notes": [TEXT], "nodes": [
        {"node": NAME, "fits": true, "reason": null,
         "takes": [{"entry": "gpu 'gpu1'", "device": NAME, "pool": NAME, "address": ADDRESS or null, "product": TEXT or
                    null, "uuid": UUID or null}],
         "cards": [{"device": NAME, ..., "reason": TEXT or null}]}]}
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from launcher.claims import Entry, Request
from launcher.selection.annotations import Selection, refuse_unheard
from launcher.selection.claim import VMClaim, claim_for
from launcher.selection.cluster import Cluster, PublishedDevice, part_of
from launcher.selection.placement import Judge, Placement, Verdict
from launcher.selection.wishes import Wish, together, wish_of_claim
from pci import slices as words
from program.errors import UserError
from program.output import aligned
from program.problem import one_line

_MOST_NODES = 10  # that are told one by one, of each sort
_MOST_KINDS = 10


@dataclass(frozen=True, slots=True)
class Fit:
    """What a VM would find on each node that has devices. `notes`: what was not looked at."""

    vm: str
    wish: Wish
    placements: tuple[Placement, ...]
    notes: tuple[str, ...]

    @property
    def fitting(self) -> tuple[Placement, ...]:
        """Return the nodes that could take it. Where a selector has no answer for a card of any node, the scheduler
        gives up on the pod, so that there is none."""
        if any(placement.unknowable is not None for placement in self.placements):
            return ()
        return tuple(placement for placement in self.placements if placement.devices is not None)


class NamedClaim(NamedTuple):
    """An entry of spec.resourceClaims: a ResourceClaim, or a ResourceClaimTemplate, and its name."""

    name: str
    kind: str
    object_name: str


def fit_of(
    vm: str,
    namespace: str | None,
    entries: Sequence[Entry],
    selection: Selection,
    claims: Sequence[NamedClaim],
    cluster: Cluster,
) -> Fit:
    """Return where a VM with these entries could be: what `pod --dra` claims for it, and what it names by claimName.

    UserError for a claim that is not there, and for what is not judged here.
    """
    refuse_unheard(selection, entries)
    own = claim_for(entries, selection)
    wishes = [] if own is None else [wish_of_own(own, vm, cluster)]
    for claim in claims:
        owner = _object(claim, namespace, cluster)
        spec = part_of(owner, "spec", owner)
        if claim.kind == "ResourceClaimTemplate":
            spec = part_of(spec, "spec", owner)
        asking = {
            entry.wants.name: str(entry)
            for entry in entries
            if isinstance(entry.wants, Request) and entry.wants.claim == claim.name
        }
        wishes.append(wish_of_claim(owner, spec, asking, cluster))
    wish = together(wishes)
    judge = Judge(wish, cluster)
    notes = []
    if cluster.others:
        notes.append(f"{cluster.others} ResourceSlices are for nodes by label, and were not looked at")
    placements = tuple(map(judge.placement, cluster.nodes)) if wish.devices else ()
    return Fit(vm, wish, placements, tuple(notes))


def wish_of_own(claim: VMClaim, vm: str, cluster: Cluster) -> Wish:
    """Return what the claim asks for that `pod --dra` makes for a VM."""
    owner = {"kind": "ResourceClaimTemplate", "metadata": {"name": vm}}
    entries = {request.name: str(request.entry) for request in claim.requests}
    known = (selector for request in claim.requests for selector in request.selectors)
    return wish_of_claim(owner, claim.spec(), entries, cluster, known)


def _object(claim: NamedClaim, namespace: str | None, cluster: Cluster) -> Mapping[str, Any]:
    """Return the object that a VM names, of its namespace where it says one."""
    objects = cluster.claims if claim.kind == "ResourceClaim" else cluster.templates
    named = [
        each for (where, name), each in objects.items() if name == claim.object_name and namespace in (None, where)
    ]
    if len(named) == 1:
        return named[0]
    what = f"spec.resourceClaims: {claim.kind} {claim.object_name}"
    if named:
        raise UserError(what, "is in several namespaces", "say the VM's with -n, or write its metadata.namespace")
    raise UserError(what, "is not among the slices and claims", f"get {claim.kind.lower()}s -A with them")


def as_json(fit: Fit) -> str:
    fitting = set(map(id, fit.fitting))
    document = {
        "vm": fit.vm,
        "fits": bool(fitting),
        "notes": list(fit.notes),
        "nodes": [
            {
                "node": placement.node,
                "fits": id(placement) in fitting,
                "reason": placement.reason,
                "takes": [
                    {"entry": wanted.name, **_described(device)}
                    for wanted, device in zip(fit.wish.devices, placement.devices or (), strict=False)
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
    }
    return json.dumps(document, indent=2) + "\n"


def _described(device: PublishedDevice) -> dict[str, Any]:
    return {
        "device": device.id.name,
        "pool": device.id.pool,
        "address": device.attribute(words.PCI_BUS_ID),
        "product": device.attribute(words.PRODUCT),
        "uuid": device.attribute(words.UUID),
    }


def as_text(fit: Fit) -> str:
    """Return the nodes that fit with the cards that would be taken, the others with the reason of each card, of many
    those that are nearest to it; and of many cards how many there are for each reason."""
    fitting = fit.fitting
    chosen = set(map(id, fitting))
    others = sorted((each for each in fit.placements if id(each) not in chosen), key=_how_far)
    lines = [_headline(fit, len(fitting))]
    if fitting and fit.wish.devices:
        rows: list[tuple[str, ...]] = [("NODE", "ENTRY", "CARD", "PRODUCT", "UUID")]
        for placement in fitting[:_MOST_NODES]:
            rows += _taken_rows(fit.wish, placement)
        lines += ["", *aligned(rows), *_more(fitting)]
    for placement in others[:_MOST_NODES]:
        reason = placement.reason or "the scheduler gives up before it gets here"
        lines += ["", f"{placement.node}: {reason}", *(f"  {line}" for line in _cards(placement.verdicts))]
    lines += _more(others)
    if len(others) > _MOST_NODES:
        lines += ["", *_tally(others)]
    lines += [f"note: {note}" for note in fit.notes]
    return "".join(f"{one_line(line)}\n" for line in lines)


def _how_far(placement: Placement) -> int:
    """Return what puts the node first that has the most cards which could be the VM's."""
    return -sum(verdict.reason is None for verdict in placement.verdicts)


def _headline(fit: Fit, fitting: int) -> str:
    nodes = len(fit.placements)
    if not fit.wish.devices:
        return f"{fit.vm} wants no card by DRA."
    if not nodes:
        return f"{fit.vm} fits nowhere: no node has published a device."
    if fitting == 0:
        return f"{fit.vm} fits on none of {nodes} {_plural('node', nodes)}."
    return f"{fit.vm} fits on {fitting} of {nodes} {_plural('node', nodes)}, as far as its cards are concerned."


def _plural(word: str, number: int) -> str:
    return word if number == 1 else f"{word}s"


def _taken_rows(wish: Wish, placement: Placement) -> Iterator[tuple[str, ...]]:
    node = placement.node
    for wanted, device in zip(wish.devices, placement.devices or (), strict=True):
        yield (node, wanted.name, _address(device), *(str(device.attribute(word) or "-") for word in _SHOWN))
        node = ""


_SHOWN = (words.PRODUCT, words.UUID)


def _address(device: PublishedDevice) -> str:
    return str(device.attribute(words.PCI_BUS_ID) or device.id.name)


def _cards(verdicts: Sequence[Verdict]) -> list[str]:
    rows = [
        (
            _address(verdict.device),
            str(verdict.device.attribute(words.PRODUCT) or "-"),
            "could be" if verdict.reason is None else verdict.reason.text,
        )
        for verdict in verdicts
    ]
    return aligned(rows) if rows else ["it has no devices"]


def _more(placements: Sequence[Placement]) -> list[str]:
    left = len(placements) - _MOST_NODES
    return [f"and {left} more; --json has all"] if left > 0 else []


def _tally(placements: Iterable[Placement]) -> Iterator[str]:
    reasons = [
        verdict.reason.short if verdict.reason is not None else "could be one, but not with the others"
        for placement in placements
        for verdict in placement.verdicts
    ]
    yield f"Of the {len(reasons)} cards of nodes that it does not fit on:"
    yield from aligned([(f"  {count}", kind) for kind, count in Counter(reasons).most_common(_MOST_KINDS)])
