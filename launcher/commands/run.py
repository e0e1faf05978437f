"""gpu-launcher run."""

import gc
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from launcher.commands.answers import warn, warn_of_bars, warn_of_misplaced
from launcher.commands.options import (
    Emulation,
)
from launcher.commands.pods import SYS, Pod, address_bits_in, passed_on_in, processors_in
from launcher.cpus.host import cpuset_of_pod
from launcher.domain import domain_xml, socket_directory
from launcher.errors import Refusal
from launcher.guest_pci.addresses import usb
from launcher.guest_pci.bars import read_bars
from launcher.guest_pci.topology import laid_out
from launcher.manifest.reading import read_manifest
from launcher.running.embedded import DEFAULT_URI, has_qemu_here, is_embedded
from launcher.running.preflight import has_kvm, let_vfio_lock
from launcher.running.supervise import supervise
from launcher.storage.made import made
from launcher.storage.needs import needs_of
from launcher.storage.volumes import facts_of_volumes

_ROOT = Path("/")
_KVM = Path("/dev/kvm")


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
    cards, left_over, host = passed_on_in(vmi, pod)
    for unasked in left_over:
        warn(str(unasked))
    for card in cards:
        if card.missing is not None:
            raise Refusal(
                f"{card.claim.entry}: {card.missing}; expected all functions of its card in {sysfs}: "
                "the device is gone, or the variable is another node's"
            )
    cpus = cpuset_of_pod(sysfs) if vmi.spec.domain.cpu.dedicatedCpuPlacement else None
    facts = replace(
        facts_of_volumes(vmi.spec, _ROOT, sysfs),
        cpus=cpus,
        processors=processors_in(vmi, sysfs),
        address_bits=address_bits_in(pod) if has_qemu_here(connect) else None,
        bars=read_bars(sysfs, cards),
    )
    layout = laid_out(vmi, cards, host, facts)
    warn_of_misplaced(layout)
    if layout.seats and is_embedded(connect):
        let_vfio_lock(vmi.spec.domain.guest_memory)
    # Another libvirt runs QEMU where this process cannot look for KVM.
    allowed = vmi.metadata.annotations.allow_emulation
    kvm = not emulation and (not is_embedded(connect) or has_kvm(_KVM, emulation_allowed=allowed))
    facts = replace(facts, kvm=kvm)
    warn_of_bars(vmi, layout, facts)
    xml = domain_xml(vmi, layout, facts, usb(cards))
    # Another machine's QEMU, and the test driver, see no disk of this one.
    with made(needs_of(vmi, facts, _ROOT) if has_qemu_here(connect) else ()):
        run_domain(
            xml,
            numbers=layout.numbers(),
            sockets=socket_directory(vmi),
            uri=connect,
            grace=vmi.spec.terminationGracePeriodSeconds,
        )
