"""What the manifest has for the pod word for word: where it runs, what it is called, whom it asks for names."""

from hashlib import sha1

from launcher.fields.objects import PassedOn
from launcher.vm.network import guest as network
from launcher.vm.plain import PodObject, plain
from launcher.vm.spec import Metadata, Spec
from program.errors import UserError

_SPEC = [
    name for name, field in Spec.model_fields.items() if any(isinstance(each, PassedOn) for each in field.metadata)
]
_ARCHITECTURE = "kubernetes.io/arch"
#: The labels by which Services of `virtctl expose` find a VM: to KubeVirt 1.6, and from 1.7 on (KubeVirt's
#: api/core/v1/types.go, DeprecatedVirtualMachineNameLabel and VirtualMachineInstanceIDLabel).
_NAME = "vm.kubevirt.io/name"
ID = "vmi.kubevirt.io/id"
_LONGEST_LABEL = 63
_HASH = 8


def passed_on(spec: Spec, hostname: str) -> PodObject:
    """Return fields of the pod's spec, without those that the manifest does not set."""
    fields = {name: plain(getattr(spec, name), f"spec.{name}") for name in _SPEC}
    selector = {_ARCHITECTURE: spec.architecture, **(fields["nodeSelector"] or {})}
    if selector[_ARCHITECTURE] != spec.architecture:
        raise UserError(
            f"spec.nodeSelector.{_ARCHITECTURE}",
            f"{selector[_ARCHITECTURE]!r}, and spec.architecture is {spec.architecture!r}",
            "leave out one of them",
        )
    fields = {**fields, "hostname": hostname, "nodeSelector": selector}
    return {name: value for name, value in fields.items() if value}


def labels(metadata: Metadata) -> dict[str, str]:
    """Return the pod's labels: KubeVirt's two by which Services find a VM, and the manifest's own, which win.
    An annotation for Istio becomes the label that Istio's webhook looks for, as in KubeVirt."""
    name = metadata.name
    ours = {_NAME: name} if len(name) <= _LONGEST_LABEL else {}
    has_word = metadata.annotations.given.get(network.INJECT) is not None
    istios = {network.INJECT: "true" if network.is_injected(metadata) else "false"} if has_word else {}
    return {**ours, ID: _id_of(name), **metadata.labels, **istios}


def _id_of(name: str) -> str:
    """Return the label's value as KubeVirt's (pkg/apimachinery/labels.go): for a long name its beginning and a hash."""
    if len(name) <= _LONGEST_LABEL:
        return name
    digest = sha1(name.encode(), usedforsecurity=False).hexdigest()[:_HASH]
    return f"{name[: _LONGEST_LABEL - _HASH - 1]}-{digest}"
