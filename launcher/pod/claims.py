"""A VM whose cards DRA gives: its entries by deviceName become requests of a claim that is made for its pod."""

from typing import Any

from launcher.choosing.claim import claim_for
from launcher.choosing.selection import refuse_unheard
from launcher.manifest.hostdevices import HostDevice, ResourceClaim
from launcher.manifest.reading import Given
from launcher.manifest.spec import Spec, VirtualMachine
from program.errors import UserError

#: What the claim is called in spec.resourceClaims.
CLAIM = "gpu-launcher"

Object = dict[str, Any]


def by_claim(given: Given, template: str) -> tuple[Given, Object | None]:
    """Return the VM with a request of a claim for each entry by deviceName, as KubeVirt has it by claimName, and the
    spec of the ResourceClaimTemplate `template`; None for that where no entry is by deviceName.

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
    # An entry's name is its own, in both lists.
    names = {request.entry.name: request.name for request in claim.requests}
    made = ResourceClaim(name=CLAIM, resourceClaimTemplateName=template)
    manifest = given.manifest
    if isinstance(manifest, VirtualMachine):
        inner = manifest.spec.template
        changed = inner.model_copy(update={"spec": _claiming(inner.spec, names, made)})
        whole = manifest.spec.model_copy(update={"template": changed})
        manifest = manifest.model_copy(update={"spec": whole})
    else:
        manifest = manifest.model_copy(update={"spec": _claiming(manifest.spec, names, made)})
    vm, *types = given.documents
    documents = (_document(vm, names, made), *(_type_document(each, names) for each in types))
    return given._replace(manifest=manifest, documents=documents, text=None), claim.spec()


def _claiming(spec: Spec, names: dict[str, str], made: ResourceClaim) -> Spec:
    devices = spec.domain.devices
    lists = {
        "gpus": tuple(_entry(entry, names) for entry in devices.gpus),
        "hostDevices": tuple(_entry(entry, names) for entry in devices.hostDevices),
    }
    domain = spec.domain.model_copy(update={"devices": devices.model_copy(update=lists)})
    return spec.model_copy(update={"domain": domain, "resourceClaims": (*spec.resourceClaims, made)})


def _entry(entry: HostDevice, names: dict[str, str]) -> HostDevice:
    if entry.name not in names:
        return entry
    return entry.model_copy(update={"deviceName": None, "claimName": CLAIM, "requestName": names[entry.name]})


def _document(vm: Any, names: dict[str, str], made: ResourceClaim) -> Object:
    """The VM as it was written, but for the entries, and with the claim."""
    if vm["kind"] == VirtualMachine.__name__:
        inner = vm["spec"]["template"]
        template = {**inner, "spec": _spec_document(inner["spec"], names, made)}
        return {**vm, "spec": {**vm["spec"], "template": template}}
    return {**vm, "spec": _spec_document(vm["spec"], names, made)}


def _spec_document(spec: Any, names: dict[str, str], made: ResourceClaim) -> Object:
    domain = spec["domain"]
    devices = {**(domain.get("devices") or {})}
    _rename(devices, names)
    ours = {"name": made.name, "resourceClaimTemplateName": made.resourceClaimTemplateName}
    return {
        **spec,
        "domain": {**domain, **({"devices": devices} if devices else {})},
        "resourceClaims": [*(spec.get("resourceClaims") or ()), ours],
    }


def _type_document(document: Any, names: dict[str, str]) -> Object:
    """An instance type, which may have the VM's devices, or a preference, which has none."""
    spec = {**(document.get("spec") or {})}
    _rename(spec, names)
    return {**document, "spec": spec}


def _rename(lists: Object, names: dict[str, str]) -> None:
    for key in ("gpus", "hostDevices"):
        if lists.get(key):
            lists[key] = [_entry_document(entry, names) for entry in lists[key]]


def _entry_document(entry: Any, names: dict[str, str]) -> Object:
    if entry.get("deviceName") is None:
        return {**entry}
    kept = {key: value for key, value in entry.items() if key != "deviceName"}
    return {**kept, "claimName": CLAIM, "requestName": names[entry["name"]]}
