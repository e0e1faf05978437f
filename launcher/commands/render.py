"""gpu-launcher render."""

from collections.abc import Mapping

from launcher.commands.answers import warn, warn_of_bars, warn_of_misplaced
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
    refuse_other_volumes,
)
from launcher.commands.pods import address_bits_in, passed_on_in, pod_of, processors_in
from launcher.commands.vms import one_vm
from launcher.cpus.host import cpuset_of_flag
from launcher.domain import domain_element, serialised
from launcher.errors import UserError
from launcher.facts import BlockSizes, Facts, read_block_sizes
from launcher.guest_pci.addresses import usb
from launcher.guest_pci.bars import read_bars
from launcher.guest_pci.topology import laid_out
from launcher.versions import newer_elements, parse_version, refuse_newer
from program.output import print_text


def render(
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
) -> None:
    """Print the libvirt domain of a VM, and nothing else, on stdout."""
    version = parse_version(libvirt) if libvirt is not None else None
    pod = pod_of(env, env_file, sysfs, dra)
    vmi = one_vm(vm, name, instancetype, preference).instance
    cards, left_over, host = passed_on_in(vmi, pod)
    for unasked in left_over:
        warn(str(unasked))
    for card in cards:
        if card.missing is not None:
            warn(f"{card.claim.entry}: {card.missing}; it goes without companions that sysfs does not show")
    sizes = _block_sizes(block_size or [])
    refuse_other_volumes([vmi], {"--block-volume": block_volume, "--raw-image": raw_image, "--block-size": sizes})
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
        for element in newer:
            warn(str(element))
    print_text(serialised(tree))


def _block_sizes(settings: list[str]) -> Mapping[str, BlockSizes]:
    try:
        return dict(map(read_block_sizes, settings))
    except ValueError as error:
        raise UserError(f"--block-size {error}") from error
