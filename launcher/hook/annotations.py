"""What the VM asks for, by the object that KubeVirt sends along with its domain: annotations and names of entries."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from launcher.guest import ROM_OF, SEATS_OF, TOPOLOGY
from launcher.manifest.annotations import Annotations, read_annotations
from program.errors import Nonsense, UserError

#: KubeVirt's own: all PCI devices on bus 0.
ON_ROOT_COMPLEX = "kubevirt.io/placePCIDevicesOnRootComplex"
_NOTHING = Annotations()
_LISTS: Mapping[str, Literal["gpu", "hostdevice"]] = {"gpus": "gpu", "hostDevices": "hostdevice"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """`resources`: by list and name of an entry, in the order in which entries have their seats, its resource; empty
    for one that DRA serves. `on_root_complex`: KubeVirt is asked to have all PCI devices on bus 0."""

    annotations: Annotations = _NOTHING
    resources: Mapping[tuple[str, str], str] = field(default_factory=dict)
    on_root_complex: bool = False


def read_asked(vmi: bytes) -> Asked:
    """Of the VirtualMachineInstance as JSON; UserError for what is none, and for annotations that ask for nonsense."""
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
    on_root_complex = written.get(ON_ROOT_COMPLEX) == "true"
    ours = [SEATS_OF] * bool(annotations.seats) + [TOPOLOGY] * (annotations.topology != "none")
    if on_root_complex and ours:
        raise UserError(
            "metadata.annotations",
            f"{ours[0]} and {ON_ROOT_COMPLEX} both say where cards are",
            "leave out one of them",
        )
    devices = _object(_object(_object(given, "spec"), "domain"), "devices")
    return Asked(
        annotations=annotations,
        resources=dict(_entries(devices)),
        on_root_complex=on_root_complex,
    )


def _entries(devices: Mapping[str, Any]) -> Iterable[tuple[tuple[str, str], str]]:
    for listed, kind in _LISTS.items():
        entries = devices.get(listed)
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict) and isinstance(name := entry.get("name"), str):
                resource = entry.get("deviceName")
                yield (kind, name), resource if isinstance(resource, str) else ""


def _object(parent: Any, field: str) -> Mapping[str, Any]:
    """Return an object that is a field of another; empty where it is none, which KubeVirt's API has checked."""
    value = parent.get(field) if isinstance(parent, dict) else None
    return value if isinstance(value, dict) else {}
