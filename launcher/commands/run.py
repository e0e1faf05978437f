"""gpu-launcher run: what its processes do is in launcher.running; here is what they are to do."""

import os
from pathlib import Path
from typing import Annotated

import typer

from launcher.commands.options import Emulation
from launcher.commands.pods import SYS, Pod
from launcher.commands.preflight import Place, cleared
from launcher.domain import domain_name, domain_xml, socket_directory
from launcher.guest_pci.addresses import usb
from launcher.manifest.reading import read_manifest
from launcher.paths import CONTROL_SOCKET
from launcher.running.embedded import DEFAULT_URI, root_of
from launcher.running.plan import Plan
from launcher.running.vm import Identity


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
    start = cleared(vmi, pod, Place(uri=connect, emulation=emulation))
    metadata = vmi.metadata
    return Plan(
        identity=Identity(metadata.namespace, metadata.name, str(metadata.uid or "")),
        domain=domain_name(metadata),
        xml=domain_xml(vmi, start.layout, start.facts, usb(start.cards)),
        numbers=start.layout.numbers(),
        sockets=socket_directory(vmi),
        needs=start.needs,
        uri=connect,
        locked=start.locked,
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
