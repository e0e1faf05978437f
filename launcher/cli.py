"""gpu-launcher's commands: flags and files to the stages of the launcher, and its warnings to stderr."""

import gc
import logging
import os
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from launcher.addresses import seat
from launcher.claims import claim
from launcher.cpus import cpuset_of_flag, cpuset_of_pod, processors_of
from launcher.domain import domain_element, domain_xml, serialised, socket_directory
from launcher.elements.memory import guest_memory
from launcher.embedded import DEFAULT_URI, is_embedded
from launcher.errors import Refusal, UserError, one_line
from launcher.facts import BlockSizes, Facts, read_block_sizes
from launcher.hostdevs import Card, not_passed_on, whole_cards
from launcher.manifest.reading import read_manifest
from launcher.manifest.spec import VirtualMachineInstance
from launcher.preflight import has_kvm, let_vfio_lock
from launcher.supervise import supervise
from launcher.versions import newer_elements, parse_version, refuse_newer
from pci.processors import UNKNOWN, Processors
from pci.sysfs import Host, NotSysfs, read_host

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Runs a KubeVirt VM with its GPUs, or prints its libvirt domain.",
)

Emulation = Annotated[bool, typer.Option("--emulation", help="QEMU's own CPU instead of KVM.")]

_SYS = Path("/sys")
_KVM = Path("/dev/kvm")


@app.command()
def render(
    vm: Annotated[Path, typer.Argument(metavar="VM.yaml", help="A VirtualMachine or VirtualMachineInstance.")],
    env: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A variable of the pod; may be given again.")
    ] = None,
    env_file: Annotated[Path | None, typer.Option(help="The pod's variables, one NAME=VALUE a line.")] = None,
    sysfs: Annotated[
        Path | None,
        typer.Option(help="The directory that stands for /sys.  [default: none with --env or --env-file, else /sys]"),
    ] = None,
    emulation: Emulation = False,
    block_volume: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A volume whose claim is a block device; may be given again."),
    ] = None,
    raw_image: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A containerDisk whose image is raw, and not qcow2; may be given again."),
    ] = None,
    block_size: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=LOGICAL/PHYSICAL/DISCARD",
            help="A volume's block sizes in bytes, for a disk that matches them; may be given again.",
        ),
    ] = None,
    libvirt: Annotated[
        str | None, typer.Option(metavar="VERSION", help="The libvirt it is for: refuse what is newer than that.")
    ] = None,
    cpuset: Annotated[
        str | None, typer.Option(metavar="LIST", help="The pod's CPUs, like 0-3,8, for dedicatedCpuPlacement.")
    ] = None,
) -> None:
    """Print the libvirt domain of a VM, and nothing else, on stdout."""
    version = parse_version(libvirt) if libvirt is not None else None
    offline = env is not None or env_file is not None
    environ = _environ(env or [], env_file) if offline else os.environ
    vmi = read_manifest(vm)
    sys = sysfs if offline else sysfs or _SYS
    cards = _cards(vmi, environ, sys)
    for card in cards:
        if card.missing is not None:
            _warn(f"{card.claim.entry}: {card.missing}; it goes without companions that sysfs does not show")
    facts = Facts(
        kvm=not emulation,
        cpus=cpuset_of_flag(cpuset),
        processors=_processors(vmi, sys),
        block=frozenset(block_volume or []),
        raw_images=frozenset(raw_image or []),
        block_sizes=_block_sizes(block_size or []),
    )
    tree = domain_element(vmi, seat(cards), facts)
    newer = newer_elements(tree)
    if version is not None:
        refuse_newer(newer, version)
    else:
        for element in newer:
            _warn(str(element))
    _print(serialised(tree))


@app.command()
def schema() -> None:
    """Print the JSON schema of the manifests that are taken, for editors."""
    import json

    from launcher.schema import json_schema

    _print(json.dumps(json_schema(), indent=2) + "\n")


@app.command()
def run(
    vm: Annotated[Path, typer.Option(metavar="VM.yaml", help="A VirtualMachine or VirtualMachineInstance.")],
    connect: Annotated[str, typer.Option(metavar="URI", help="The libvirt to run it on.")] = DEFAULT_URI,
    sysfs: Annotated[Path, typer.Option(help="The directory that stands for /sys.")] = _SYS,
    emulation: Emulation = False,
) -> None:
    """Define and start a VM, and stay with it until it ends."""
    supervise()
    gc.enable()
    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.INFO)
    try:
        # Rendering needs no libvirt installed, so nothing above this line may import it.
        from launcher.run import run as run_domain
    except ModuleNotFoundError as error:
        raise Refusal(f"run needs the Python package {error.name}: pip install 'gpu-launcher[libvirt]'") from error
    vmi = read_manifest(vm)
    cards = _cards(vmi, os.environ, sysfs)
    for card in cards:
        if card.missing is not None:
            raise Refusal(
                f"{card.claim.entry}: {card.missing}; expected all functions of its card in {sysfs}: "
                "the device is gone, or the variable is another node's"
            )
    if cards and is_embedded(connect):
        let_vfio_lock(guest_memory(vmi.spec.domain))
    # Another libvirt runs QEMU where this process cannot look for KVM.
    allowed = vmi.metadata.annotations.allow_emulation
    kvm = not emulation and (not is_embedded(connect) or has_kvm(_KVM, emulation_allowed=allowed))
    cpus = cpuset_of_pod(sysfs) if vmi.spec.domain.cpu.dedicatedCpuPlacement else None
    facts = Facts(kvm=kvm, cpus=cpus, processors=_processors(vmi, sysfs))
    xml = domain_xml(vmi, seat(cards), facts)
    run_domain(xml, sockets=socket_directory(vmi), uri=connect, grace=vmi.spec.terminationGracePeriodSeconds)


def _block_sizes(settings: list[str]) -> Mapping[str, BlockSizes]:
    try:
        return dict(map(read_block_sizes, settings))
    except ValueError as error:
        raise UserError(f"--block-size {error}") from error


def _cards(vmi: VirtualMachineInstance, environ: Mapping[str, str], sysfs: Path | None) -> tuple[Card, ...]:
    devices = vmi.spec.domain.devices
    # A VM without devices renders where there is no /sys at all; what a flag names is looked at in any case.
    host = _host(sysfs) if devices.gpus or devices.hostDevices or sysfs != _SYS else None
    claims, left_over = claim(devices, environ, host)
    cards = whole_cards(claims, host)
    for unasked in not_passed_on(left_over, cards):
        _warn(str(unasked))
    return cards


def _processors(vmi: VirtualMachineInstance, sysfs: Path | None) -> Processors:
    """Those of the node, where the guest is to get some of them."""
    if sysfs is None or not vmi.spec.domain.cpu.dedicatedCpuPlacement:
        return UNKNOWN
    return processors_of(sysfs)


def _host(sysfs: Path | None) -> Host | None:
    if sysfs is None:
        return None
    try:
        return read_host(sysfs)
    except NotSysfs as error:
        raise UserError(str(error)) from error


def _environ(settings: list[str], path: Path | None) -> Mapping[str, str]:
    """Variables from --env-file, then from --env, which win."""
    variables = _env_file(path) if path is not None else {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not (name and equals):
            raise UserError(f"--env {setting}: expected NAME=VALUE")
        variables[name] = value
    return variables


def _env_file(path: Path) -> dict[str, str]:
    """NAME=VALUE lines, as `env` prints them in a pod; or as `export` does there, with quotes."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise UserError(f"{path}: cannot read the variables: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: cannot read the variables: {error}") from error
    variables = {}
    for number, line in enumerate(lines, start=1):
        setting = _unexported(line)
        if not setting.strip() or setting.startswith("#"):
            continue
        name, equals, value = setting.partition("=")
        if not (name and equals) or " " in name:
            raise UserError(f"{path}: line {number}: expected NAME=VALUE, found {line[:60]!r}")
        variables[name] = value
    return variables


def _unexported(line: str) -> str:
    """NAME=VALUE of a line as the shell's `export` prints it; empty for a name that is exported without a value."""
    exported = re.match(r"(?:export|declare -[a-z]*x[a-z]*) (.*)", line)
    if exported is None:
        return line
    try:
        words = shlex.split(exported[1])
    except ValueError:
        return line  # a quote that is never closed
    if len(words) != 1:
        return line
    return words[0] if "=" in words[0] else ""


def _print(text: str) -> None:
    # Bytes, so that they are the same in every locale; and not sys.stdout, which is None where it was closed.
    with open(1, "wb", closefd=False) as stdout:
        stdout.write(text.encode())


def _warn(text: str) -> None:
    print(f"gpu-launcher: warning: {one_line(text)}", file=sys.stderr)
