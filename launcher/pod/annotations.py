"""The annotations of a VM's pod: the VM's own, as far as the pod may have them, and those for Multus.

Pod Security judges fields alone, while container runtimes, NRI's plugins and OCI hooks read annotations, by names that
each node may configure. So below `privileged` a pod has those that are known to be for somebody else. At every level
launcher.vm.annotations refuses those that runtimes are known to read.
"""

import re
import shlex
from collections.abc import Sequence

from launcher.pod.security import Level
from launcher.vm.annotations import OURS
from launcher.vm.cards.annotations import Word
from launcher.vm.network import multus
from launcher.vm.spec import Metadata, Spec
from program.errors import UserError
from program.problem import Problem, shown

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
    """Return a name of an annotation, or what names begin with; ValueError for a word that is neither."""
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9./_-]{0,316}", word):
        return word
    raise ValueError(f"{word!r}; expected a name of an annotation, or what names begin with, like example.com/.")


def annotations(metadata: Metadata, spec: Spec, level: Level, passed: Sequence[str]) -> dict[str, str]:
    """Return the pod's annotations: the VM's, and those by which Multus attaches its networks. `passed`: names that the
    pod may have too, and what names begin with, up to a slash or a dot. UserError for those that no pod of the level
    has."""
    annotations: dict[str, str] = {}
    ours = multus.annotations(spec)
    for name, value in metadata.annotations.given.items():
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
    """Return whether an annotation is known to be read by nothing that runs containers."""
    domain, slash, _ = name.partition("/")
    return name in WHOLE or (bool(slash) and f".{domain}".endswith(tuple(f".{each}" for each in DOMAINS)))


def _is_passed(name: str, passed: Sequence[str]) -> bool:
    return name in passed or name.startswith(tuple(each for each in passed if each.endswith(("/", "."))))


def _problem(name: str, level: Level) -> Problem:
    wrong = f"{shown(name)} is none that a pod of the level {level} has: what runs containers on the node may read it"
    domain, slash, _ = name.partition("/")
    return Problem(
        "metadata.annotations", wrong, f"leave it out, or pass it on with {FLAG} {shlex.quote(domain + slash)}"
    )
