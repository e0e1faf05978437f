"""The flags that all verbs have, and which VM a verb is about."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import typer

from gpuvm import pods
from gpuvm.kubectl import Kubectl, kubectl_on_path
from gpuvm.objects import Pod
from gpuvm.target import Target, target_of
from program.errors import ProgramError

_COMPLETION = 2.0  # seconds; who presses Tab types on otherwise


@dataclass(frozen=True, kw_only=True)
class ClusterFlags:
    """Where kubectl looks."""

    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", metavar="NAME", help="The VM's namespace.  [default: kubectl's]")
    ] = None
    context: Annotated[str | None, typer.Option(metavar="NAME", help="A context of the kubeconfig.")] = None
    kubeconfig: Annotated[str | None, typer.Option(metavar="FILE", help="The kubeconfig.")] = None

    def flags(self) -> tuple[str, ...]:
        """Return these flags as kubectl takes them."""
        named = {"namespace": self.namespace, "context": self.context, "kubeconfig": self.kubeconfig}
        return tuple(f"--{name}={value}" for name, value in named.items() if value is not None)

    def kubectl(self) -> Kubectl:
        return kubectl_on_path(*self.flags())

    def of(self, words: Sequence[str]) -> tuple["ClusterFlags", Target]:
        """Return which VM these words name, and this cluster with its namespace."""
        target = target_of(words)
        return (self if target.namespace is None else replace(self, namespace=target.namespace)), target

    def pod(self, words: Sequence[str]) -> tuple[Kubectl, Pod]:
        """Return the pod of the VM that these words name, and the kubectl for its namespace."""
        cluster, target = self.of(words)
        pod = pods.pod_named(cluster.kubectl(), target.name)
        return replace(cluster, namespace=pod.metadata.namespace).kubectl(), pod

    def running_pod(self, words: Sequence[str]) -> tuple[Kubectl, Pod]:
        """Return the same for a VM whose launcher is to be asked something. Refusal if none runs."""
        kubectl, pod = self.pod(words)
        pods.refuse_not_running(pod)
        return kubectl, pod


def _names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names that a VM's may become; none if kubectl does not say."""
    flags = {name: context.params.get(name) for name in ("namespace", "context", "kubeconfig")}
    try:
        names = [each.name for each in ClusterFlags(**flags).kubectl().pods(within=_COMPLETION)]
    except ProgramError:
        return []
    return sorted(name for name in names if name.startswith(incomplete))


VMName = Annotated[
    list[str],
    typer.Argument(
        metavar="VM",
        help="Its name, as NAME, vm NAME or vm/NAME[/NAMESPACE].",
        autocompletion=_names,
        show_default=False,
    ),
]
OneVM = Annotated[
    str, typer.Argument(metavar="VM", help="Its name, as NAME or vm/NAME[/NAMESPACE].", autocompletion=_names)
]
Force = Annotated[bool, typer.Option("--force", help="End the guest now, without a warning to it.")]
GracePeriod = Annotated[
    int | None, typer.Option("--grace-period", metavar="SECONDS", help="Only 0, with --force, as for kubectl virt.")
]
