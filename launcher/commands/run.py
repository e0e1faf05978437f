"""gpu-launcher run: what its processes do is in launcher.running; here is what they are to do."""

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
from launcher.domain import domain_name, domain_xml, socket_directory
from launcher.errors import Refusal
from launcher.guest_pci.addresses import usb
from launcher.guest_pci.bars import read_bars
from launcher.guest_pci.topology import laid_out
from launcher.manifest.reading import read_manifest
from launcher.paths import CONTROL_SOCKET
from launcher.running.embedded import DEFAULT_URI, has_qemu_here, is_embedded, root_of
from launcher.running.plan import Plan
from launcher.running.preflight import has_kvm
from launcher.running.vm import Identity
from launcher.storage.volumes import facts_of_volumes

_ROOT = Path("/")
_KVM = Path("/dev/kvm")


def run(
    vm: Annotated[Path, typer.Option(metavar="VM.yaml", help="A VirtualMachine or VirtualMachineInstance.")],
    connect: Annotated[str, typer.Option(metavar="URI", help="The libvirt to run it on.")] = DEFAULT_URI,
    sysfs: Annotated[Path, typer.Option(help="The directory that stands for /sys.")] = SYS,
    emulation: Emulation = False,
    socket: Annotated[
        Path | None,
        typer.Option(
            help="Where `gpu-launcher ctl` and KubeVirt's clients can ask.  "
            f"[default: {CONTROL_SOCKET}; ROOT/{Path(CONTROL_SOCKET).name} of another root; none of another libvirt]"
        ),
    ] = None,
) -> Plan:
    """Define and start a VM, and stay with it until it ends."""
    control = socket or _control_socket(connect, root_of(connect))  # a URI that is wrong is said before anything else
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
    # Another libvirt runs QEMU where this process cannot look for KVM.
    allowed = vmi.metadata.annotations.allow_emulation
    kvm = not emulation and (not is_embedded(connect) or has_kvm(_KVM, emulation_allowed=allowed))
    facts = replace(facts, kvm=kvm)
    warn_of_bars(vmi, layout, facts)
    metadata = vmi.metadata
    return Plan(
        identity=Identity(metadata.namespace, metadata.name, str(metadata.uid or "")),
        domain=domain_name(metadata),
        xml=domain_xml(vmi, layout, facts, usb(cards)),
        numbers=layout.numbers(),
        sockets=socket_directory(vmi),
        uri=connect,
        locked=vmi.spec.domain.guest_memory if layout.seats and is_embedded(connect) else 0,
        acpi=vmi.spec.domain.features.acpi.enabled,
        grace=vmi.spec.terminationGracePeriodSeconds,
        control=control,
    )


def _control_socket(uri: str, root: Path | None) -> Path | None:
    """Where the VM can be asked: KubeVirt's place in a pod. Elsewhere there may be several launchers, and each has its
    own in its own root; one that has none is asked through its libvirt."""
    if uri == DEFAULT_URI:
        return Path(CONTROL_SOCKET)
    return None if root is None else root / Path(CONTROL_SOCKET).name
