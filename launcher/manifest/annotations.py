"""metadata.annotations: what KubeVirt's manifests have no field for.

Ours begin with gpu-launcher.dev/; one that is not known is refused, since it is misspelt or of a newer gpu-launcher.
Of KubeVirt's, those that change its domain are honoured or refused; everybody else's are left alone.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from launcher.manifest.scalars import shown
from launcher.model import Reads

OURS = "gpu-launcher.dev/"
_COMPANIONS = f"{OURS}companions"
_ALLOW_EMULATION = f"{OURS}allow-emulation"
_MEMFD = "kubevirt.io/memfd"
_NO_FREE_PAGES = "kubevirt.io/free-page-reporting-disabled"
_EVEN_EMULATOR = "alpha.kubevirt.io/EmulatorThreadCompleteToEvenParity"  # whatever its value

_KNOWN: Mapping[str, tuple[str, ...]] = {
    _COMPANIONS: ("card", "none"),
    _ALLOW_EMULATION: ("true", "false"),
    _MEMFD: ("true", "false"),
    _NO_FREE_PAGES: ("true", "false"),
}

_REFUSED: Mapping[str, str] = {
    "hooks.kubevirt.io/hookSidecars": "hook sidecars are not asked; leave it out, and see the XML with render",
    "kubevirt.io/ignitiondata": "Ignition's data is not passed on; use cloud-init, or a disk with the data",
}
_REFUSED_IF_TRUE: Mapping[str, str] = {
    "kubevirt.io/placePCIDevicesOnRootComplex": "every card has a root port of its own; leave it out",
    "kubevirt.io/disablePCIHole64": "cards with large BARs need the 64-bit hole; leave it out",
    "sidecar.istio.io/inject": "passt and Istio's proxy would take the same ports; leave it out",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotations:
    """`companions`: whether a claimed function brings the rest of its card. `allow_emulation`: QEMU's own CPU where
    there is no KVM. `memfd`: whether hugepages may come from memfd (KubeVirt's kubevirt.io/memfd).
    `free_page_reporting`: whether the balloon tells QEMU of the guest's free pages, where it would. `even_emulator`:
    whether isolateEmulatorThread takes a second CPU where that makes their number even.
    """

    companions: Literal["card", "none"] = "card"
    allow_emulation: bool = False
    memfd: bool = True
    free_page_reporting: bool = True
    even_emulator: bool = False


def _read(value: Any) -> Annotations:
    if not isinstance(value, dict):
        raise ValueError(f"expected a mapping, found {shown(value)}")  # noqa: TRY004 (pydantic-core's way)
    said = {}
    for name, text in value.items():
        if text is None or text == "":
            continue
        if why := _REFUSED.get(name) or (text == "true" and _REFUSED_IF_TRUE.get(name)):
            raise ValueError(f"{name} is not converted: {why}")
        if name in _KNOWN:
            if text not in _KNOWN[name]:
                raise ValueError(f"{name}: {shown(text)}; expected {' or '.join(map(repr, _KNOWN[name]))}")
            said[name] = text
        elif isinstance(name, str) and name.startswith(OURS):
            near = difflib.get_close_matches(name, _KNOWN, n=1)
            hint = (
                f"did you mean {near[0]}?" if near else f"known: {', '.join(n for n in _KNOWN if n.startswith(OURS))}"
            )
            raise ValueError(f"{shown(name)} is not an annotation that gpu-launcher knows; {hint}")
    return Annotations(
        companions=said.get(_COMPANIONS, "card"),
        allow_emulation=said.get(_ALLOW_EMULATION) == "true",
        memfd=said.get(_MEMFD) != "false",
        free_page_reporting=said.get(_NO_FREE_PAGES) != "true",
        even_emulator=_EVEN_EMULATOR in value,
    )


def _read_of_vm(value: Any) -> Annotations:
    """KubeVirt's controller gives an instance the annotations of the template, and none of the VM's own."""
    ours = [name for name in value if str(name).startswith(OURS)] if isinstance(value, dict) else []
    if ours:
        raise ValueError(f"{shown(ours[0])} is for the instance; write it into spec.template.metadata.annotations")
    return Annotations()


#: Those of a VirtualMachine itself.
AnnotationsOfVM = Annotated[Annotations, Reads(_read_of_vm, {"type": "object"})]
ReadAnnotations = Annotated[
    Annotations,
    Reads(
        _read,
        {"type": "object", "properties": {name: {"enum": [*values, "", None]} for name, values in _KNOWN.items()}},
    ),
]
