"""kubectl gpuvm logs."""

from typing import Annotated

import typer

from gpuvm.commands.options import ClusterFlags, VMName


def logs(
    vm: VMName,
    cluster: ClusterFlags,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes.")] = False,
    previous: Annotated[bool, typer.Option("--previous", "-p", help="Those of the start before this one.")] = False,
    tail: Annotated[int | None, typer.Option(metavar="LINES", help="Only so many of the last lines.")] = None,
) -> None:
    """Print the log of the VM's launcher."""
    kubectl, pod = cluster.pod(vm)
    kubectl.follow_log(pod, follow=follow, previous=previous, tail=tail)
