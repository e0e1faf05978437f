"""VMs whose cards DRA gives: entries by deviceName become requests of a claim that is made for the pod."""

import json
from typing import Any, NamedTuple

from launcher.choosing.claim import claim_for
from launcher.manifest.instancetypes.draft import Path, value_at, with_value
from launcher.manifest.parser import ParsedVM, reread
from launcher.pod.metadata import by_content
from launcher.vm.cards.annotations import refuse_unheard
from launcher.vm.plain import PodObject
from launcher.vm.spec import VirtualMachine
from program.errors import UserError

#: What the claim is called in spec.resourceClaims.
CLAIM = "gpu-launcher"


class ClaimTemplate(NamedTuple):
    """A ResourceClaimTemplate's name, and the spec of its claims."""

    name: str
    spec: PodObject


def by_claim(parsed: ParsedVM) -> tuple[ParsedVM, ClaimTemplate | None]:
    """Return the VM with each entry by deviceName turned into a request of a claim, as KubeVirt writes it by claimName;
    and the claim's ResourceClaimTemplate, None if no entry is by deviceName.

    UserError for annotations that choose a card if no entry is by deviceName.
    """
    spec = parsed.instance.spec
    entries = spec.domain.devices.entries
    selection = parsed.instance.metadata.annotations.selection
    refuse_unheard(selection, entries)
    claim = claim_for(entries, selection)
    if claim is None:
        return parsed, None
    if any(other.name == CLAIM for other in spec.resourceClaims):
        raise UserError(
            "spec.resourceClaims", f"has one called {CLAIM!r}, which is the name of the one to be made", "rename it"
        )
    template = ClaimTemplate(by_content(parsed.manifest.metadata.name, json.dumps(claim.spec())), claim.spec())
    # An entry's name is its own, in both lists.
    names = {request.entry.name: request.name for request in claim.requests}
    vm, *types = parsed.documents
    of_instance: Path = ("spec", "template", "spec") if isinstance(parsed.manifest, VirtualMachine) else ("spec",)
    changed = _by_request(vm, (*of_instance, "domain", "devices"), names)
    claims = (*of_instance, "resourceClaims")
    ours = {"name": CLAIM, "resourceClaimTemplateName": template.name}
    changed = with_value(changed, claims, [*(value_at(vm, claims) or ()), ours])
    return reread(parsed, (changed, *(_by_request(each, ("spec",), names) for each in types))), template


def _by_request(document: Any, lists: Path, names: dict[str, str]) -> Any:
    """Return the document with a request, named by `names`, in place of each entry by deviceName in the two lists below
    a path."""
    for key in ("gpus", "hostDevices"):
        for index, entry in enumerate(value_at(document, (*lists, key)) or ()):
            if entry.get("deviceName") is not None:
                kept = {name: value for name, value in entry.items() if name != "deviceName"}
                request = {**kept, "claimName": CLAIM, "requestName": names[entry["name"]]}
                document = with_value(document, (*lists, key, index), request)
    return document
