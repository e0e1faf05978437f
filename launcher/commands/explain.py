"""gpu-launcher explain."""

from pathlib import Path
from typing import Annotated

import typer

from launcher.commands.offline import Offline, offline
from launcher.pipeline import explain as explaining
from launcher.pipeline.pod import transparent_in
from launcher.vm.cpu.facts import processors_of
from launcher.vm.guest_pci.locations import located_cards
from launcher.vm.memory.guest import allocation
from pci.processors import UNKNOWN
from pci.resource import InvalidValue, decode_partitions
from program.commands import AsJSON
from program.errors import UserError
from program.output import picture_file, print_text, write_picture
from program.terminal import columns


def explain(
    flags: Offline,
    as_json: AsJSON = False,
    svg: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.svg", help="Also draw the host's PCI Express and the guest's; with - print that and no table."
        ),
    ] = None,
) -> None:
    """Say which device each gpu and host device gets, where it is in the guest, how far apart they are there and on the
    host, and what is left over."""
    if picture_file(svg) is not None and str(svg) == "-" and as_json:
        raise UserError("--svg - and --json", "both say what to print", "give one of them")
    start = offline(flags)
    assert start.layout is not None, "nothing was refused"
    # The stages read them only where the guest is to get some.
    processors = UNKNOWN if start.pod.sysfs is None else processors_of(start.pod.sysfs)
    placed = located_cards(start.layout, start.host, processors)
    if svg is not None:
        from launcher.vm.guest_pci.picture import picture

        metadata = start.vmi.metadata
        write_picture(picture(f"{metadata.namespace}/{metadata.name}", placed, start.layout, start.host), svg)
        if str(svg) == "-":
            return
    try:
        partitions = decode_partitions(start.pod.environ)
    except InvalidValue as error:
        raise UserError(
            "the pod's variables", str(error), "expected what gpu-plugin sets: its log may say why"
        ) from error
    explanation = explaining.explanation(
        start.cards,
        start.layout,
        placed,
        start.left_over,
        start.host,
        partitions,
        allocation(start.guest, start.layout, transparent_in(start.pod)),
        cliques=start.cliques,
        by_iommufd=start.vmi.metadata.annotations.by_iommufd,
        is_confidential=start.guest.confidentiality is not None,
    )
    print_text(explaining.as_json(explanation) if as_json else explaining.table(explanation, columns()))
