"""What the VM asks for: annotations and entries of the VMI, which KubeVirt sends with the domain."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from launcher.vm.annotations import Annotations, read_annotations
from launcher.vm.cards.claims import EntryKind
from launcher.vm.guest import NO_MMAP, P2P, ROM_OF, SEATS_OF, TOPOLOGY, VFIO
from program.errors import Nonsense, UserError

#: KubeVirt's annotation that puts all PCI devices on bus 0.
ON_ROOT_COMPLEX = "kubevirt.io/placePCIDevicesOnRootComplex"
_LISTS = {"gpus": EntryKind.GPU, "hostDevices": EntryKind.HOST_DEVICE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """`resources`: the resource of each entry, by list and name, in the order of the entries' seats; empty for an entry
    that DRA serves."""

    annotations: Annotations = field(default_factory=Annotations)
    resources: Mapping[tuple[EntryKind, str], str] = field(default_factory=dict)


def read_asked(vmi: bytes) -> Asked:
    """Read a VirtualMachineInstance as JSON; UserError for anything else, and for annotations that make no sense."""
    try:
        given = json.loads(vmi)
    except (ValueError, RecursionError) as error:
        raise UserError("the VMI", f"is no JSON: {error}", "expected the VirtualMachineInstance as JSON") from error
    written = _object(_object(given, "metadata"), "annotations")
    try:
        annotations = read_annotations(written)
    except Nonsense as error:
        raise UserError("metadata.annotations", error.wrong, error.fix) from error
    if files := sorted(name for name, rom in annotations.roms.items() if rom is not None):
        raise UserError(
            "metadata.annotations",
            f"{ROM_OF}: {files[0]!r} has a file, and KubeVirt's launcher mounts volumes in its own way",
            "expected 'off', or leave it out",
        )
    if unset := [P2P] * annotations.in_cliques + [NO_MMAP] * (not annotations.maps_bars):
        raise UserError(
            "metadata.annotations",
            f"{unset[0]} needs <qemu:override>, which KubeVirt's domain cannot have",
            "leave it out, or run the VM with gpu-launcher",
        )
    if annotations.by_iommufd:
        raise UserError(
            "metadata.annotations",
            f"{VFIO}: KubeVirt's launcher opens VFIO, and chooses by which way",
            "leave it out, or run the VM with gpu-launcher",
        )
    ours = [SEATS_OF] * bool(annotations.seats) + [TOPOLOGY] * (annotations.topology != "none")
    if ours and written.get(ON_ROOT_COMPLEX) == "true":
        raise UserError(
            "metadata.annotations",
            f"{ours[0]} and {ON_ROOT_COMPLEX} both say where cards are",
            "leave out one of them",
        )
    devices = _object(_object(_object(given, "spec"), "domain"), "devices")
    return Asked(annotations=annotations, resources=dict(_entries(devices)))


def _entries(devices: Mapping[str, Any]) -> Iterable[tuple[tuple[EntryKind, str], str]]:
    for listed, kind in _LISTS.items():
        entries = devices.get(listed)
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict) and isinstance(name := entry.get("name"), str):
                resource = entry.get("deviceName")
                yield (kind, name), resource if isinstance(resource, str) else ""


def _object(parent: Any, field: str) -> Mapping[str, Any]:
    """Return an object that is a field of another; empty if it is anything else, which KubeVirt's API has refused."""
    value = parent.get(field) if isinstance(parent, dict) else None
    return value if isinstance(value, dict) else {}
