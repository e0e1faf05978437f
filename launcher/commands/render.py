"""gpu-launcher render."""

from launcher.checks.devices import not_whole
from launcher.checks.variables import of_left_over
from launcher.commands.answers import say, warn_of_bars, warn_of_misplaced
from launcher.commands.options import (
    DRA,
    VM,
    BlockSize,
    BlockVolume,
    Cpuset,
    Emulation,
    Env,
    EnvFile,
    Libvirt,
    RawImage,
    Sysfs,
    refuse_other_volumes,
)
from launcher.commands.pods import address_bits_in, passed_on_in, pod_of, processors_in
from launcher.cpus.host import cpuset_of_flag
from launcher.domain import domain_element, serialised
from launcher.facts import Facts, read_block_sizes
from launcher.guest_pci.addresses import usb
from launcher.guest_pci.bars import read_bars
from launcher.guest_pci.topology import laid_out
from launcher.manifest.reading import read_manifest
from launcher.versions import newer_elements, parse_version, refuse_newer
from program.finding import Finding
from program.output import print_text
from program.problem import Severity


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
    pod = pod_of(env, env_file, sysfs, dra)
    vmi = read_manifest(vm)
    cards, left_over, host = passed_on_in(vmi, pod)
    say(of_left_over(left_over))
    say(not_whole(cards))
    sizes = dict(map(read_block_sizes, block_size or []))
    refuse_other_volumes(vmi, {"--block-volume": block_volume, "--raw-image": raw_image, "--block-size": sizes})
    facts = Facts(
        kvm=not emulation,
        cpus=cpuset_of_flag(cpuset),
        processors=processors_in(vmi, pod.sysfs),
        address_bits=address_bits_in(pod),
        bars=read_bars(pod.sysfs, cards),
        block=frozenset(block_volume or []),
        raw_images=frozenset(raw_image or []),
        block_sizes=sizes,
    )
    layout = laid_out(vmi, cards, host, facts)
    warn_of_misplaced(layout)
    warn_of_bars(vmi, layout, facts)
    tree = domain_element(vmi, layout, facts, usb(cards))
    newer = newer_elements(tree)
    if version is not None:
        refuse_newer(newer, version)
    else:
        say(Finding(Severity.WARNING, element.problem(None)) for element in newer)
    print_text(serialised(tree))
