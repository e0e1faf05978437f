"""gpu-launcher explain."""

from pathlib import Path
from typing import Annotated

import typer

from launcher import explain as explaining
from launcher.commands.offline import offline
from launcher.commands.options import (
    DRA,
    VM,
    BlockSize,
    BlockVolume,
    Cpuset,
    Emulation,
    Env,
    EnvFile,
    Instancetype,
    Libvirt,
    Name,
    NetworkStatus,
    NoDirectIO,
    Preference,
    RawImage,
    Sysfs,
)
from launcher.cpus.host import processors_of
from launcher.guest_pci.locations import located_cards
from pci.processors import UNKNOWN
from pci.resource import InvalidValue, decode_partitions
from program.commands import AsJSON
from program.errors import UserError
from program.output import picture_file, print_text, write_picture
from program.terminal import columns


def explain(
    vm: VM,
    name: Name = None,
    instancetype: Instancetype = None,
    preference: Preference = None,
    env: Env = None,
    env_file: EnvFile = None,
    sysfs: Sysfs = None,
    dra: DRA = None,
    emulation: Emulation = False,
    block_volume: BlockVolume = None,
    raw_image: RawImage = None,
    no_direct_io: NoDirectIO = None,
    block_size: BlockSize = None,
    cpuset: Cpuset = None,
    libvirt: Libvirt = None,
    network_status: NetworkStatus = None,
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
    start = offline(
        vm,
        name=name,
        instancetype=instancetype,
        preference=preference,
        env=env,
        env_file=env_file,
        sysfs=sysfs,
        dra=dra,
        emulation=emulation,
        block_volume=block_volume,
        raw_image=raw_image,
        no_direct_io=no_direct_io,
        block_size=block_size,
        cpuset=cpuset,
        libvirt=libvirt,
        network_status=network_status,
    )
    assert start.layout is not None, "nothing was refused"
    # The stages read them only where the guest is to get some.
    processors = UNKNOWN if start.pod.sysfs is None else processors_of(start.pod.sysfs)
    placed = located_cards(start.layout, start.host, processors)
    if svg is not None:
        from launcher.guest_pci.picture import picture

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
    explanation = explaining.explanation(start.cards, start.layout, placed, start.left_over, start.host, partitions)
    print_text(explaining.as_json(explanation) if as_json else explaining.table(explanation, columns()))
