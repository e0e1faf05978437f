"""gpu-launcher run."""

import gc
import logging
import os
from pathlib import Path
from typing import Annotated

import typer

from launcher.commands.options import Emulation
from launcher.commands.pods import SYS, Pod
from launcher.commands.preflight import Place, cleared
from launcher.domain import domain_xml, socket_directory
from launcher.errors import Refusal
from launcher.guest_pci.addresses import usb
from launcher.manifest.reading import read_manifest
from launcher.running.embedded import DEFAULT_URI
from launcher.running.limits import let_lock
from launcher.running.supervise import supervise


def run(
    vm: Annotated[Path, typer.Option(metavar="VM.yaml", help="A VirtualMachine or VirtualMachineInstance.")],
    connect: Annotated[str, typer.Option(metavar="URI", help="The libvirt to run it on.")] = DEFAULT_URI,
    sysfs: Annotated[Path, typer.Option(help="The directory that stands for /sys.")] = SYS,
    emulation: Emulation = False,
) -> None:
    """Define and start a VM, and stay with it until it ends."""
    supervise()
    gc.enable()
    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.INFO)
    try:
        # Rendering needs no libvirt installed, so nothing above this line may import it.
        from launcher.running.run import run as run_domain
    except ModuleNotFoundError as error:
        raise Refusal(f"run needs the Python package {error.name}: pip install 'gpu-launcher[libvirt]'") from error
    vmi = read_manifest(vm)
    pod = Pod(environ=os.environ, sysfs=sysfs, dra=None, offline=False)
    start = cleared(vmi, pod, Place(uri=connect, emulation=emulation))
    xml = domain_xml(vmi, start.layout, start.facts, usb(start.cards))
    let_lock(start.locked)
    run_domain(
        xml,
        numbers=start.layout.numbers(),
        sockets=socket_directory(vmi),
        uri=connect,
        grace=vmi.spec.terminationGracePeriodSeconds,
    )
