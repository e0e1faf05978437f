"""`gpu-launcher fit`: the nodes that could take a VM, as text and as JSON.

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
    """What a VM would find on each node that has devices. `notes`: what fit did not look at."""

    vm: str
    wish: Wish
    placements: tuple[Placement, ...]
    notes: tuple[str, ...]

    @property
    def fitting(self) -> tuple[Placement, ...]:
        """Return the nodes that could take the VM. If a selector has no answer for a card of any node, there is none:
        the scheduler gives up on the pod."""
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
    """Judge each node for a VM with these entries: by the claim that `pod --dra` writes, and by `claims`, the VM's own.

    UserError for a claim that is not in the cluster, or of a kind that fit does not judge.
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
    others = f"{cluster.others} ResourceSlices are for nodes by label, and were not looked at"
    placements = tuple(map(judge.placement, cluster.nodes)) if wish.devices else ()
    return Fit(vm, wish, placements, notes=(others,) if cluster.others else ())


def wish_of_own(claim: VMClaim, vm: str, cluster: Cluster) -> Wish:
    """Return the wish of the claim that `pod --dra` writes for a VM."""
    owner = {"kind": "ResourceClaimTemplate", "metadata": {"name": vm}}
    entries = {request.name: str(request.entry) for request in claim.requests}
    known = (selector for request in claim.requests for selector in request.selectors)
    return wish_of_claim(owner, claim.spec(), entries, cluster, known)


def _object(claim: NamedClaim, namespace: str | None, cluster: Cluster) -> Mapping[str, Any]:
    """Return the object that a VM names, from the VM's namespace if that is known."""
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
    fits = bool(fit.fitting)
    document = {
        "vm": fit.vm,
        "fits": fits,
        "notes": list(fit.notes),
        "nodes": [
            {
                "node": placement.node,
                "fits": fits and placement.devices is not None,
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
    """Return the nodes that fit with the cards that the VM would get, then the others with the reason of each card. Of
    many others come the nearest misses, and the number of cards for each reason."""
    fitting = fit.fitting
    others = [each for each in fit.placements if not fitting or each.devices is None]
    # Nodes with the most suitable cards first.
    others.sort(key=lambda each: -sum(verdict.reason is None for verdict in each.verdicts))
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


def _headline(fit: Fit, fitting: int) -> str:
    nodes = f"{len(fit.placements)} node{'' if len(fit.placements) == 1 else 's'}"
    if not fit.wish.devices:
        return f"{fit.vm} wants no card by DRA."
    if not fit.placements:
        return f"{fit.vm} fits nowhere: no node has published a device."
    if fitting == 0:
        return f"{fit.vm} fits on none of {nodes}."
    return f"{fit.vm} fits on {fitting} of {nodes}, as far as its cards are concerned."


def _taken_rows(wish: Wish, placement: Placement) -> Iterator[tuple[str, ...]]:
    node = placement.node
    for wanted, device in zip(wish.devices, placement.devices or (), strict=True):
        shown = (str(device.attribute(word) or "-") for word in (words.PRODUCT, words.UUID))
        yield (node, wanted.name, _address(device), *shown)
        node = ""


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
