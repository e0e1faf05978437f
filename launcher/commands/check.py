"""gpu-launcher check."""

import os
from pathlib import Path
from typing import Annotated

import typer

from launcher import paths
from launcher.checks.finding import Finding, Level, as_json, error, page, said, sorted_by_level, worst
from launcher.checks.versions import machine_type, qemu_version, versions
from launcher.commands.options import Emulation, Instancetype, Name, Preference
from launcher.commands.pods import SYS, Pod
from launcher.commands.preflight import Place, Start, preflight
from launcher.commands.vms import one_vm
from launcher.domain import domain_element
from launcher.elements.firmware import ARCHITECTURES
from launcher.errors import Refusal
from launcher.guest_pci.addresses import usb
from launcher.manifest.spec import VirtualMachineInstance
from launcher.running.embedded import DEFAULT_URI, is_embedded
from launcher.running.user import become_owner_of
from launcher.versions import NEWER, NEWER_FOR_QEMU, Version, newer_elements
from program.output import print_text

_EXIT_CODES = {Level.OK: 0, Level.WARNING: 3, Level.ERROR: 4}


def check(
    vm: Annotated[Path, typer.Option(metavar="VM.yaml", help="A VirtualMachine or VirtualMachineInstance.")] = Path(
        paths.MANIFEST
    ),
    name: Name = None,
    instancetype: Instancetype = None,
    preference: Preference = None,
    connect: Annotated[str, typer.Option(metavar="URI", help="The libvirt to run it on.")] = DEFAULT_URI,
    sysfs: Annotated[Path, typer.Option(help="The directory that stands for /sys.")] = SYS,
    dev: Annotated[
        Path | None, typer.Option(help="The directory that stands for /dev.  [default: /dev, none with --sysfs]")
    ] = None,
    emulation: Emulation = False,
    json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Say what keeps a VM from starting here, or from doing well, and what mends it.

    Nothing is started and nothing is written. The exit code is 0 where there is nothing to say, 3 for warnings, 4 for
    errors, with which `run` does not start it.
    """
    become_owner_of(Path(paths.READY))
    vmi = one_vm(vm, name, instancetype, preference).instance
    if dev is None and sysfs == SYS:
        dev = Path("/dev")
    pod = Pod(environ=os.environ, sysfs=sysfs, dra=None, offline=False)
    place = Place(uri=connect, emulation=emulation, dev=dev, guest_runs=Path(paths.READY).exists())
    found, start = preflight(vmi, pod, place)
    findings = sorted_by_level([*found, *_of_versions(vmi, start, connect)])
    print_text(as_json(findings) if json else page(findings))
    raise typer.Exit(_EXIT_CODES[worst(findings)])


def _of_versions(vmi: VirtualMachineInstance, start: Start | None, uri: str) -> list[Finding]:
    """Of the domain, as far as there is one."""
    try:
        libvirt, qemu = _versions(vmi, uri)
    except Refusal as refusal:
        return [said(Level.ERROR, refusal, "libvirt")]
    except ModuleNotFoundError as missing:
        return [
            error("libvirt", f"the Python package {missing.name} is not there", "pip install 'gpu-launcher[libvirt]'")
        ]
    findings = [] if (finding := machine_type(vmi, qemu)) is None else [finding]
    if start is not None:
        domain = domain_element(vmi, start.layout, start.facts, usb(start.cards))
        findings += versions(newer_elements(domain, (*NEWER, *NEWER_FOR_QEMU)), libvirt, qemu)
    return findings


def _versions(vmi: VirtualMachineInstance, uri: str) -> tuple[Version, Version | None]:
    """Libvirt's and QEMU's. The embedded driver is not connected to: its root may be the running guest's."""
    from launcher.running.guest import library_version, versions_at

    if is_embedded(uri):
        return library_version(), qemu_version(f"qemu-system-{ARCHITECTURES[vmi.spec.architecture]}")
    return versions_at(uri)
