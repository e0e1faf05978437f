"""Names of the pod and of the objects beside it; the manifest's fields that the pod gets word for word, for scheduling
and name resolution; and its annotations: those of the VM that the pod may have, and those for Multus.

Pod Security judges fields alone, while container runtimes, NRI's plugins and OCI hooks read annotations, by names that
each node may configure. So below `privileged` a pod has only annotations that are known to be for another reader. At
every level launcher.vm.annotations refuses those that runtimes are known to read.
"""

import re
import shlex
from collections.abc import Sequence
from hashlib import sha1, sha256

from launcher.fields.objects import PassedOn
from launcher.pod.security import Level
from launcher.vm.annotations import OURS
from launcher.vm.cards.annotations import Word
from launcher.vm.network import guest as network
from launcher.vm.network import multus
from launcher.vm.plain import PodObject, plain
from launcher.vm.spec import Metadata, Spec
from program.errors import UserError
from program.problem import Problem, excerpt

_LARGEST = 253
_DIGITS = 10  # as many digits as kustomize puts behind a name


def by_content(vm: str, content: str) -> str:
    """Return the name of an immutable object: with other content it is another object, beside the one that a running
    pod was made with. No other name is as long; UserError if it is too long for Kubernetes."""
    name = f"gpu-launcher-{vm}-{sha256(content.encode()).hexdigest()[:_DIGITS]}"
    if len(name) > _LARGEST:
        wrong = (
            f"{name[:40]}... would have {len(name)} characters as a config map's name, and Kubernetes takes {_LARGEST}"
        )
        raise UserError("metadata.name", wrong, "shorten it")
    return name


def state_claim(vm: str) -> str:
    """Return the name of the claim that keeps EFI's variables and the TPM's state, as KubeVirt calls it
    (pkg/storage/backend-storage)."""
    return f"persistent-state-for-{vm}"


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
    """Return the pod's spec fields that the manifest sets. UserError if nodeSelector has another architecture."""
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
    has_word = metadata.annotations.written.get(network.INJECT) is not None
    istios = {network.INJECT: "true" if network.is_injected(metadata) else "false"} if has_word else {}
    return {**ours, ID: _id_of(name), **metadata.labels, **istios}


def _id_of(name: str) -> str:
    """Return the label's value as KubeVirt's (pkg/apimachinery/labels.go): for a long name its beginning and a hash."""
    if len(name) <= _LONGEST_LABEL:
        return name
    digest = sha1(name.encode(), usedforsecurity=False).hexdigest()[:_HASH]
    return f"{name[: _LONGEST_LABEL - _HASH - 1]}-{digest}"


#: The flag for further ones.
FLAG = "--pass-annotation"
#: The pod's annotation that has the prefixes of that flag, with commas.
PASSED = f"{OURS}pass-annotation"
#: Domains, with all domains below them, that a name may have before its slash. docs/restricted.md has this list.
DOMAINS = (
    # Of VMs.
    *("gpu-launcher.dev", "kubevirt.io", "harvesterhci.io"),
    # Networks and meshes. What a mesh adds to the pod, Pod Security judges.
    *("cni.cncf.io", "multus-cni.io", "projectcalico.org", "cilium.io", "ovn.org", "ovn.kubernetes.io", "antrea.io"),
    *("kube-router.io", "spidernet.io", "networking.gke.io", "vpc.amazonaws.com"),
    *("istio.io", "linkerd.io", "kuma.io", "consul.hashicorp.com", "external-dns.alpha.kubernetes.io"),
    # Queues, schedulers and those that drain nodes.
    *("kueue.x-k8s.io", "scheduling.x-k8s.io", "volcano.sh", "yunikorn.apache.org", "karpenter.sh"),
    *("cluster-autoscaler.kubernetes.io", "descheduler.alpha.kubernetes.io"),
    # Prometheus.
    "prometheus.io",
)
#: Whole names: those of https://kubernetes.io/docs/reference/labels-annotations-taints/ that are for pods, the group of
#: Volcano's pods, and what chooses cards.
WHOLE = (
    *("kubernetes.io/description", "kubernetes.io/change-cause"),
    *("kubernetes.io/ingress-bandwidth", "kubernetes.io/egress-bandwidth"),
    *("kubectl.kubernetes.io/default-container", "kubectl.kubernetes.io/default-logs-container"),
    *("kubectl.kubernetes.io/restartedAt", "controller.kubernetes.io/pod-deletion-cost"),
    "scheduling.k8s.io/group-name",
    *Word,
)
#: kubectl's own note of what was applied, which it writes anew.
_KUBECTLS = "kubectl.kubernetes.io/last-applied-configuration"


def annotation_prefix(word: str) -> str:
    """Return the word if it is an annotation's name or the beginning of one; ValueError for anything else."""
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9./_-]{0,316}", word):
        return word
    raise ValueError(f"{word!r}; expected a name of an annotation, or what names begin with, like example.com/.")


def annotations(metadata: Metadata, spec: Spec, level: Level, passed: Sequence[str]) -> dict[str, str]:
    """Return the pod's annotations: the VM's, and those by which Multus attaches its networks. `passed`: further names
    that the pod may have, or beginnings of names, up to a slash or a dot. UserError for names that no pod of the level
    may have."""
    annotations: dict[str, str] = {}
    ours = multus.annotations(spec)
    for name, value in metadata.annotations.written.items():
        if value is None or name == _KUBECTLS:
            continue
        if not (isinstance(name, str) and isinstance(value, str)):
            raise UserError("metadata.annotations", f"{name!r} is {value!r}", "expected text, write it in quotes")
        if name in ours and not (name == multus.NETWORKS and multus.says_the_same(value, spec, metadata.namespace)):
            raise UserError(
                "metadata.annotations",
                f"{name} is made of spec.networks, which has multus, and says something else",
                "leave it out, or have it name the same networks and nothing more",
            )
        annotations[name] = value
    unknown = [name for name in annotations if not (is_known(name) or _is_passed(name, passed))]
    if unknown and level is not Level.PRIVILEGED:
        raise UserError.of([_problem(name, level) for name in unknown])
    return {**annotations, **ours}


def is_known(name: str) -> bool:
    """Return whether the annotation is known not to be read by anything that runs containers."""
    domain, slash, _ = name.partition("/")
    return name in WHOLE or (bool(slash) and f".{domain}".endswith(tuple(f".{each}" for each in DOMAINS)))


def _is_passed(name: str, passed: Sequence[str]) -> bool:
    return name in passed or name.startswith(tuple(each for each in passed if each.endswith(("/", "."))))


def _problem(name: str, level: Level) -> Problem:
    wrong = f"{excerpt(name)} is none that a pod of the level {level} has: what runs containers on the node may read it"
    domain, slash, _ = name.partition("/")
    return Problem(
        "metadata.annotations", wrong, f"leave it out, or pass it on with {FLAG} {shlex.quote(domain + slash)}"
    )
