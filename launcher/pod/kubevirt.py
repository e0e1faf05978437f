"""ResourceClaimTemplates for VMs that KubeVirt runs: by deploy/hook/claims-policy.yaml each gets the template for its
annotations and resources.

Nothing else is read of a VM, since KubeVirt has fields that gpu-launcher refuses.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from launcher.choosing.claim import claim_for
from launcher.choosing.cluster import Cluster
from launcher.choosing.names import refuse_unknown_ids
from launcher.manifest.inputs import names_of
from launcher.manifest.instancetypes.draft import value_at
from launcher.pod.metadata import by_content
from launcher.vm.cards.annotations import Word, read_selection, refuse_unheard
from launcher.vm.cards.claims import Entry, EntryKind, Request
from launcher.vm.plain import PodObject
from program.document import JSONObject
from program.errors import Nonsense, UserError

#: The label of a template by which the policy finds it.
LABEL, LABEL_VALUE = "gpu-launcher.dev/claims-of", "kubevirt"
#: The deviceNames of the VMs that a template is for, as the policy writes them: of gpus, `|`, of hostDevices.
DEVICE_NAMES = "gpu-launcher.dev/device-names"

_INSTANCE_OF: Mapping[str, tuple[str, ...]] = {
    "VirtualMachine": ("spec", "template"),
    "VirtualMachineInstance": (),
    "VirtualMachineInstanceReplicaSet": ("spec", "template"),
    "VirtualMachinePool": ("spec", "virtualMachineTemplate", "spec", "template"),
}
_LISTS = {"gpus": EntryKind.GPU, "hostDevices": EntryKind.HOST_DEVICE}


def claim_template(vm: JSONObject, cluster: Cluster | None = None) -> PodObject:
    """Return the template for this VM and each other VM of its namespace with the same annotations and resources.

    `vm` is of one of launcher.manifest.inputs.VM_KINDS; NVML's UUIDs are looked up in the `cluster`. UserError for a VM
    without an annotation that chooses a card, without an entry that it could choose for, or with an unknown UUID.
    """
    instance = _INSTANCE_OF[vm["kind"]]
    annotations = _object(vm, (*instance, "metadata", "annotations"))
    devices = _object(vm, (*instance, "spec", "domain", "devices"))
    lists = {name: tuple(_entries(devices.get(name), kind)) for name, kind in _LISTS.items()}
    entries = [entry for each in lists.values() for entry in each]
    try:
        selection = read_selection(annotations)
    except Nonsense as error:
        raise UserError("metadata.annotations", error.wrong, error.fix) from error
    words = {word.value: annotations[word] for word in Word if annotations.get(word)}
    if not words:
        fix = "by resource alone DRA serves a VM with the DeviceClasses of gpu-plugin inventory --device-classes"
        raise UserError("metadata.annotations", "has none that chooses a card", fix)
    claim = claim_for(entries, selection)
    if claim is None:
        fix = "list a card there; if the VM's instance type has it, give the instance: kubectl get vmi -o yaml"
        raise UserError("spec.domain.devices", "has no entry by deviceName", fix)
    refuse_unheard(selection, entries)
    refuse_unknown_ids(selection, cluster)
    names = "|".join(",".join(_device_name(entry) for entry in each) for each in lists.values())
    namespace, _ = names_of(vm)
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {
            "name": by_content(LABEL_VALUE, json.dumps([words, names, claim.spec()])),
            **({} if namespace is None else {"namespace": namespace}),
            "labels": {LABEL: LABEL_VALUE},
            "annotations": {**words, DEVICE_NAMES: names},
        },
        "spec": {"spec": claim.spec()},
    }


def _entries(listed: Any, kind: EntryKind) -> Iterator[Entry]:
    """Yield each entry of a list; an entry without a deviceName has a claim of its own, and gets an empty Request."""
    for entry in listed if isinstance(listed, list) else ():
        name, resource = value_at(entry, ("name",)), value_at(entry, ("deviceName",))
        yield Entry(kind=kind, name=str(name), wants=resource if isinstance(resource, str) else Request("", ""))


def _device_name(entry: Entry) -> str:
    return entry.wants if isinstance(entry.wants, str) else ""


def _object(vm: Any, path: tuple[str, ...]) -> Mapping[str, Any]:
    """Return the object at a path; empty if anything else is there, which KubeVirt's API refuses."""
    value = value_at(vm, path)
    return value if isinstance(value, dict) else {}
