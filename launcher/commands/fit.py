"""gpu-launcher fit."""

from pathlib import Path
from typing import Annotated

import typer

from launcher.commands.options import VMFlags, one_vm
from launcher.manifest.inputs import STDIN
from launcher.selection.cluster_files import read_cluster
from program.commands import AsJSON
from program.errors import UserError
from program.output import print_text


def fit(
    flags: VMFlags,
    slices: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="What `kubectl get resourceslices,resourceclaims,deviceclasses -A -o json` prints, or as YAML; - for "
            "standard input. Or a directory with NODE.json of each node, as `gpu-plugin inventory --json` prints it.",
        ),
    ],
    as_json: AsJSON = False,
) -> int:
    """Say which nodes and cards could take a VM, and why the others could not: why it is Pending."""
    given = one_vm(flags, {})
    # CEL takes as long to import as everything else, and nobody who asks for help needs it.
    from launcher.selection import fit as fitting

    if slices == STDIN and flags.vm == STDIN:
        raise UserError("--slices -", "standard input is the VM already", "name a file for one of them")
    vmi = given.instance
    claims = [
        fitting.NamedClaim(claim.name, "ResourceClaim", claim.resourceClaimName)
        if claim.resourceClaimName is not None
        else fitting.NamedClaim(claim.name, "ResourceClaimTemplate", str(claim.resourceClaimTemplateName))
        for claim in vmi.spec.resourceClaims
    ]
    result = fitting.fit_of(
        f"{vmi.metadata.namespace}/{vmi.metadata.name}",
        given.namespace,
        vmi.spec.domain.devices.entries,
        vmi.metadata.annotations.selection,
        claims,
        read_cluster(slices),
    )
    print_text(fitting.as_json(result) if as_json else fitting.as_text(result))
    return 0 if result.fitting or not result.wish.devices else 1
