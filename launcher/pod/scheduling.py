"""What the manifest has for the pod word for word: where it runs, what it is called, whom it asks for names."""

from typing import Any

from launcher.manifest.spec import Metadata, Spec
from launcher.network import multus
from launcher.pod.plain import plain
from program.errors import UserError

_SPEC = (
    "affinity",
    "dnsConfig",
    "dnsPolicy",
    "nodeSelector",
    "priorityClassName",
    "schedulerName",
    "subdomain",
    "tolerations",
    "topologySpreadConstraints",
)
_ARCHITECTURE = "kubernetes.io/arch"
#: By which Services of `virtctl expose` find a VM (KubeVirt's api/core/v1/types.go, VirtualMachineNameLabel).
_NAME = "vm.kubevirt.io/name"
_LONGEST_LABEL = 63
#: kubectl's own note of what was applied, which it writes anew.
_KUBECTLS = "kubectl.kubernetes.io/last-applied-configuration"

Object = dict[str, Any]


def passed_on(spec: Spec, hostname: str) -> Object:
    """Fields of the pod's spec; those that the manifest says nothing of are not there."""
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
    """The VM's, and its name, as far as a label can hold it."""
    ours = {_NAME: metadata.name} if len(metadata.name) <= _LONGEST_LABEL else {}
    return {**ours, **metadata.labels}


def annotations(metadata: Metadata, spec: Spec) -> dict[str, str]:
    """The VM's, and those that have Multus attach its networks."""
    annotations = {}
    ours = multus.annotations(spec)
    for name, value in metadata.annotations.given.items():
        if value is None or name == _KUBECTLS:
            continue
        if not (isinstance(name, str) and isinstance(value, str)):
            raise UserError("metadata.annotations", f"{name!r} is {value!r}", "expected text, write it in quotes")
        if name in ours:
            raise UserError(
                "metadata.annotations",
                f"{name} is made of spec.networks, which has multus",
                "leave one of them out",
            )
        annotations[name] = value
    return {**annotations, **ours}
