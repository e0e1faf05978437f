"""gpu-launcher explain."""

from pathlib import Path
from typing import Annotated

import typer

from launcher import explain as explaining
from launcher.commands.answers import warn_of_bars, warn_of_misplaced
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
    Preference,
    RawImage,
    Sysfs,
)
from launcher.commands.pods import address_bits_in, passed_on_in, pod_of
from launcher.commands.vms import one_vm
from launcher.cpus.host import cpuset_of_flag, processors_of
from launcher.facts import Facts
from launcher.guest_pci.bars import read_bars
from launcher.guest_pci.places import placed_cards
from launcher.guest_pci.topology import laid_out
from pci.processors import UNKNOWN
from program.output import print_text, write_picture


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
    block_size: BlockSize = None,
    cpuset: Cpuset = None,
    libvirt: Libvirt = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also draw the host's PCI Express and the guest's.")
    ] = None,
) -> None:
    """Say which device each gpu and host device gets, where it is in the guest, how far apart they are there and on the
    host, and what is left over."""
    pod = pod_of(env, env_file, sysfs, dra)
    vmi = one_vm(vm, name, instancetype, preference).instance
    cards, left_over, host = passed_on_in(vmi, pod)
    processors = UNKNOWN if pod.sysfs is None else processors_of(pod.sysfs)
    facts = Facts(
        kvm=not emulation,
        cpus=cpuset_of_flag(cpuset),
        processors=processors,
        address_bits=address_bits_in(pod),
        bars=read_bars(pod.sysfs, cards),
    )
    layout = laid_out(vmi, cards, host, facts)
    warn_of_misplaced(layout)
    warn_of_bars(vmi, layout, facts)
    placed = placed_cards(layout, host, processors)
    if svg is not None:
        from launcher.guest_pci.picture import picture

        write_picture(picture(f"{vmi.metadata.namespace}/{vmi.metadata.name}", placed, layout, host), svg)
    found = explaining.explanation(cards, layout, placed, left_over, host)
    print_text(explaining.as_json(found) if as_json else explaining.table(found))
