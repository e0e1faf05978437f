"""gpu-launcher fit."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from launcher.choosing import fit as fitting
from launcher.choosing.cluster import Cluster
from launcher.choosing.cluster_files import read_cluster
from launcher.choosing.obstacles import asking
from launcher.choosing.requirements import NamedClaim, claims_of
from launcher.commands.options import ClusterFile, VMFlags, one_vm
from launcher.manifest.parser import ParsedVM
from launcher.pod.claims import CLAIM, by_claim
from launcher.pod.objects import objects
from pci.resource import NODE_DEVICES
from program.commands import AsJSON
from program.errors import UserError
from program.input import STDIN
from program.output import print_text


def fit(
    flags: VMFlags,
    cluster: ClusterFile,
    pod: Annotated[
        str | None,
        typer.Option(
            "--pod",
            metavar="NAMESPACE/NAME",
            help="The VM's pod among these pods, if it waits for a node: judge what it asks for, and not what "
            "`gpu-launcher pod` prints.",
        ),
    ] = None,
    as_json: AsJSON = False,
) -> int:
    """Say which nodes and cards could take a VM, and why the others could not: why it is Pending."""
    parsed = one_vm(flags, {})
    if cluster == STDIN and flags.vm == STDIN:
        raise UserError("--cluster -", "standard input is the VM already", "name a file for one of them")
    vmi, snapshot = parsed.instance, read_cluster(cluster)
    # Cards are asked of DRA where it has any, and else of device plugins. A pod that is there has decided that.
    dra = pod is None and (snapshot.publishes or not snapshot.states)
    asks = _pod(parsed, pod, snapshot, dra=dra)
    entries, namespace = vmi.spec.domain.devices.entries, parsed.namespace
    if pod is not None and asks is not None:
        claims = claims_of(asks, snapshot)
        namespace = pod.partition("/")[0]
        if any(claim.name == CLAIM for claim in claims) and any(isinstance(entry.wants, str) for entry in entries):
            # The manifest in the pod's record has requests of this claim for deviceNames.
            entries = by_claim(parsed)[0].instance.spec.domain.devices.entries
    else:
        claims = [
            NamedClaim(claim.name, "ResourceClaim", claim.resourceClaimName)
            if claim.resourceClaimName is not None
            else NamedClaim(claim.name, "ResourceClaimTemplate", str(claim.resourceClaimTemplateName))
            for claim in vmi.spec.resourceClaims
        ]
    result = fitting.fit_of(
        pod or f"{vmi.metadata.namespace}/{vmi.metadata.name}",
        namespace,
        entries,
        vmi.metadata.annotations.selection,
        claims,
        snapshot,
        dra=dra,
        pod=None if asks is None else asking(asks),
    )
    print_text(fitting.as_json(result) if as_json else fitting.as_text(result))
    return 0 if result.fitting or not result.is_judged else 1


def _pod(parsed: ParsedVM, named: str | None, cluster: Cluster, *, dra: bool) -> Mapping[str, Any] | None:
    """Return the pod that wants a node; None if there are no Nodes to ask."""
    if named is not None:
        if named not in cluster.waiting:
            raise UserError(f"--pod {named}", "is no pod that waits for a node", "get nodes,pods -A, or leave it out")
        return cluster.waiting[named]
    if not cluster.states:
        return None
    return objects(parsed, image="", block=frozenset(), node_devices=NODE_DEVICES, start=True, dra=dra)[-1]
