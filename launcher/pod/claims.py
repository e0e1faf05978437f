"""A VM whose cards DRA gives: its entries by deviceName become requests of a claim that is made for its pod."""

import json
from typing import Any, NamedTuple

from launcher.manifest.parser import Given, reread
from launcher.manifest.spec import VirtualMachine
from launcher.pod.names import by_content
from launcher.pod.plain import PodObject
from launcher.selection.annotations import refuse_unheard
from launcher.selection.claim import claim_for
from program.errors import UserError

#: What the claim is called in spec.resourceClaims.
CLAIM = "gpu-launcher"


class Template(NamedTuple):
    """A ResourceClaimTemplate's name, and the spec of its claims."""

    name: str
    spec: PodObject


def by_claim(given: Given) -> tuple[Given, Template | None]:
    """Return the VM with a request of a claim for each entry by deviceName, as KubeVirt has it by claimName, and the
    ResourceClaimTemplate; None for that where no entry is by deviceName.

    UserError for annotations that choose a card for no such entry.
    """
    spec = given.instance.spec
    entries = spec.domain.devices.entries
    selection = given.instance.metadata.annotations.selection
    refuse_unheard(selection, entries)
    claim = claim_for(entries, selection)
    if claim is None:
        return given, None
    if any(other.name == CLAIM for other in spec.resourceClaims):
        raise UserError(
            "spec.resourceClaims", f"has one called {CLAIM!r}, which is the name of the one to be made", "rename it"
        )
    template = Template(by_content(given.manifest.metadata.name, json.dumps(claim.spec())), claim.spec())
    # An entry's name is its own, in both lists.
    names = {request.entry.name: request.name for request in claim.requests}
    vm, *types = given.documents
    documents = (_document(vm, names, template.name), *(_type_document(each, names) for each in types))
    return reread(given, documents), template


def _document(vm: Any, names: dict[str, str], template: str) -> PodObject:
    """The VM as it was written, but for the entries, and with the claim."""
    if vm["kind"] == VirtualMachine.__name__:
        inner = vm["spec"]["template"]
        inner = {**inner, "spec": _spec_document(inner["spec"], names, template)}
        return {**vm, "spec": {**vm["spec"], "template": inner}}
    return {**vm, "spec": _spec_document(vm["spec"], names, template)}


def _spec_document(spec: Any, names: dict[str, str], template: str) -> PodObject:
    domain = spec["domain"]
    devices = {**(domain.get("devices") or {})}
    _rename(devices, names)
    return {
        **spec,
        "domain": {**domain, **({"devices": devices} if devices else {})},
        "resourceClaims": [
            *(spec.get("resourceClaims") or ()),
            {"name": CLAIM, "resourceClaimTemplateName": template},
        ],
    }


def _type_document(document: Any, names: dict[str, str]) -> PodObject:
    """An instance type, which may have the VM's devices, or a preference, which has none."""
    spec = {**(document.get("spec") or {})}
    _rename(spec, names)
    return {**document, "spec": spec}


def _rename(lists: PodObject, names: dict[str, str]) -> None:
    for key in ("gpus", "hostDevices"):
        if lists.get(key):
            lists[key] = [_entry_document(entry, names) for entry in lists[key]]


def _entry_document(entry: Any, names: dict[str, str]) -> PodObject:
    if entry.get("deviceName") is None:
        return {**entry}
    kept = {key: value for key, value in entry.items() if key != "deviceName"}
    return {**kept, "claimName": CLAIM, "requestName": names[entry["name"]]}
