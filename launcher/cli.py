"""gpu-launcher's commands: flags and files to the stages of the launcher, and its warnings to stderr."""

import gc
import logging
import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from launcher.addresses import Layout, usb
from launcher.bars import read_bars
from launcher.claims import Device, LeftOver, entries
from launcher.cpus import address_bits, cpuset_of_flag, cpuset_of_pod, processors_of
from launcher.domain import domain_element, domain_xml, serialised, socket_directory
from launcher.elements import bars
from launcher.elements.memory import guest_memory
from launcher.embedded import DEFAULT_URI, has_qemu_here, is_embedded
from launcher.errors import Refusal, UserError, one_line
from launcher.facts import BlockSizes, Facts, read_block_sizes
from launcher.hostdevs import Card, passed_on
from launcher.manifest.hostdevices import Request
from launcher.manifest.reading import read_manifest
from launcher.manifest.spec import VirtualMachineInstance
from launcher.preflight import has_kvm, let_vfio_lock
from launcher.supervise import supervise
from launcher.topology import laid_out
from launcher.versions import newer_elements, parse_version, refuse_newer
from launcher.volumes import facts_of_volumes
from pci.processors import UNKNOWN, Processors
from pci.sysfs import Host, NotSysfs, read_host

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Runs a KubeVirt VM with its GPUs, or prints its libvirt domain.",
)

# The options that render and explain share.
VM = Annotated[Path, typer.Argument(metavar="VM.yaml", help="A VirtualMachine or VirtualMachineInstance.")]
Env = Annotated[
    list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="A variable of the pod; may be given again.")
]
EnvFile = Annotated[Path | None, typer.Option("--env-file", help="The pod's variables, one NAME=VALUE a line.")]
Sysfs = Annotated[
    Path | None,
    typer.Option(
        "--sysfs", help="The directory that stands for /sys.  [default: none with --env or --env-file, else /sys]"
    ),
]
DRA = Annotated[
    Path | None,
    typer.Option(
        "--dra",
        metavar="DIR",
        help="What DRA's drivers say of the pod's claims.  "
        "[default: none with --env or --env-file, else /var/run/kubernetes.io/dra-device-attributes]",
    ),
]
Emulation = Annotated[bool, typer.Option("--emulation", help="QEMU's own CPU instead of KVM.")]
BlockVolume = Annotated[
    list[str] | None,
    typer.Option("--block-volume", metavar="NAME", help="A volume whose claim is a block device; may be given again."),
]
RawImage = Annotated[
    list[str] | None,
    typer.Option(
        "--raw-image", metavar="NAME", help="A containerDisk whose image is raw, and not qcow2; may be given again."
    ),
]
BlockSize = Annotated[
    list[str] | None,
    typer.Option(
        "--block-size",
        metavar="NAME=LOGICAL/PHYSICAL/DISCARD",
        help="A volume's block sizes in bytes, for a disk that matches them; may be given again.",
    ),
]
Cpuset = Annotated[
    str | None,
    typer.Option("--cpuset", metavar="LIST", help="The pod's CPUs, like 0-3,8, for dedicatedCpuPlacement."),
]
Libvirt = Annotated[
    str | None,
    typer.Option("--libvirt", metavar="VERSION", help="The libvirt it is for: refuse what is newer than that."),
]

_ROOT = Path("/")
_SYS = Path("/sys")
_KVM = Path("/dev/kvm")
_CPUINFO = Path("/proc/cpuinfo")


@app.command()
def render(
    vm: VM,
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
) -> None:
    """Print the libvirt domain of a VM, and nothing else, on stdout."""
    version = parse_version(libvirt) if libvirt is not None else None
    pod = _pod(env, env_file, sysfs, dra)
    vmi = read_manifest(vm)
    cards, left_over, host = _passed_on(vmi, pod)
    for unasked in left_over:
        _warn(str(unasked))
    for card in cards:
        if card.missing is not None:
            _warn(f"{card.claim.entry}: {card.missing}; it goes without companions that sysfs does not show")
    sizes = _block_sizes(block_size or [])
    _refuse_other_names(vmi, {"--block-volume": block_volume, "--raw-image": raw_image, "--block-size": sizes})
    facts = Facts(
        kvm=not emulation,
        cpus=cpuset_of_flag(cpuset),
        processors=_processors(vmi, pod.sysfs),
        address_bits=_address_bits(pod),
        bars=read_bars(pod.sysfs, cards),
        block=frozenset(block_volume or []),
        raw_images=frozenset(raw_image or []),
        block_sizes=sizes,
    )
    layout = laid_out(vmi, cards, host, facts)
    _warn_of_misplaced(layout)
    _warn_of_bars(vmi, layout, facts)
    tree = domain_element(vmi, layout, facts, usb(cards))
    newer = newer_elements(tree)
    if version is not None:
        refuse_newer(newer, version)
    else:
        for element in newer:
            _warn(str(element))
    _print(serialised(tree))


@app.command()
def explain(
    vm: VM,
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
    from launcher import explain as explaining
    from launcher.places import placed_cards

    pod = _pod(env, env_file, sysfs, dra)
    vmi = read_manifest(vm)
    cards, left_over, host = _passed_on(vmi, pod)
    processors = UNKNOWN if pod.sysfs is None else processors_of(pod.sysfs)
    facts = Facts(
        kvm=not emulation,
        cpus=cpuset_of_flag(cpuset),
        processors=processors,
        address_bits=_address_bits(pod),
        bars=read_bars(pod.sysfs, cards),
    )
    layout = laid_out(vmi, cards, host, facts)
    _warn_of_misplaced(layout)
    _warn_of_bars(vmi, layout, facts)
    placed = placed_cards(layout, host, processors)
    if svg is not None:
        from launcher.picture import picture

        _draw(picture(f"{vmi.metadata.namespace}/{vmi.metadata.name}", placed, layout, host), svg)
    found = explaining.explanation(cards, layout, placed, left_over, host)
    _print(explaining.as_json(found) if as_json else explaining.table(found))


def _draw(picture: str, file: Path) -> None:
    try:
        file.write_text(picture, encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"{file}: cannot write the picture: {error.strerror}; expected a file in a directory that can be written"
        ) from error


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
    pod = _Pod(environ=os.environ, sysfs=sysfs, dra=None, offline=False)
    cards, left_over, host = _passed_on(vmi, pod)
    for unasked in left_over:
        _warn(str(unasked))
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
        processors=_processors(vmi, sysfs),
        address_bits=_address_bits(pod) if has_qemu_here(connect) else None,
        bars=read_bars(sysfs, cards),
    )
    layout = laid_out(vmi, cards, host, facts)
    _warn_of_misplaced(layout)
    if layout.seats and is_embedded(connect):
        let_vfio_lock(guest_memory(vmi.spec.domain))
    # Another libvirt runs QEMU where this process cannot look for KVM.
    allowed = vmi.metadata.annotations.allow_emulation
    kvm = not emulation and (not is_embedded(connect) or has_kvm(_KVM, emulation_allowed=allowed))
    facts = replace(facts, kvm=kvm)
    _warn_of_bars(vmi, layout, facts)
    xml = domain_xml(vmi, layout, facts, usb(cards))
    run_domain(
        xml,
        numbers=layout.numbers(),
        sockets=socket_directory(vmi),
        uri=connect,
        grace=vmi.spec.terminationGracePeriodSeconds,
    )


def _refuse_other_names(vmi: VirtualMachineInstance, given: Mapping[str, Iterable[str] | None]) -> None:
    volumes = [volume.name for volume in vmi.spec.volumes]
    for flag, names in given.items():
        if other := next((name for name in names or () if name not in volumes), None):
            raise UserError(f"{flag} {other}: the manifest has no such volume; expected one of {', '.join(volumes)}")


def _block_sizes(settings: list[str]) -> Mapping[str, BlockSizes]:
    try:
        return dict(map(read_block_sizes, settings))
    except ValueError as error:
        raise UserError(f"--block-size {error}") from error


class _Pod(NamedTuple):
    """The pod whose devices are passed on: this one, or what the flags say of one; None for what they don't say."""

    environ: Mapping[str, str]
    sysfs: Path | None
    dra: Path | None
    offline: bool


def _pod(env: list[str] | None, env_file: Path | None, sysfs: Path | None, dra: Path | None) -> _Pod:
    if env is None and env_file is None:
        return _Pod(environ=os.environ, sysfs=sysfs or _SYS, dra=dra, offline=False)
    return _Pod(environ=_environ(env or [], env_file), sysfs=sysfs, dra=dra, offline=True)


def _passed_on(vmi: VirtualMachineInstance, pod: _Pod) -> tuple[tuple[Card, ...], tuple[LeftOver, ...], Host | None]:
    devices = vmi.spec.domain.devices
    # A VM without devices renders where there is no /sys at all; what a flag names is looked at in any case.
    host = _host(pod.sysfs) if devices.gpus or devices.hostDevices or pod.sysfs != _SYS else None
    allocated: Mapping[Request, Device] = {}
    if any(entry.claimName is not None for entry in (*devices.gpus, *devices.hostDevices)):
        from launcher.dra import IN_POD, read_allocated

        directory = pod.dra if pod.offline else pod.dra or IN_POD
        allocated = read_allocated(entries(devices), vmi.spec.resourceClaims, directory)
    return *passed_on(vmi, pod.environ, host, allocated), host


def _processors(vmi: VirtualMachineInstance, sysfs: Path | None) -> Processors:
    """Those of the node, where the guest is to get some of them."""
    asked = vmi.spec.domain.cpu.dedicatedCpuPlacement or vmi.metadata.annotations.topology != "none"
    if sysfs is None or not asked:
        return UNKNOWN
    return processors_of(sysfs)


def _address_bits(pod: _Pod) -> int | None:
    """Those of this machine's CPUs, where it is this machine that it is about."""
    return None if pod.offline or pod.sysfs != _SYS else address_bits(_CPUINFO)


def _warn_of_bars(vmi: VirtualMachineInstance, layout: Layout, facts: Facts) -> None:
    for warning in bars.warnings(vmi, layout, facts):
        _warn(warning)


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


def _warn_of_misplaced(layout: Layout) -> None:
    for seat in layout.seats:
        if seat.misplaced is not None:
            _warn(f"{seat.claim.entry}: {seat.misplaced}")


def _warn(text: str) -> None:
    print(f"gpu-launcher: warning: {one_line(text)}", file=sys.stderr)
