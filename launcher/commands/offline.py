"""What `render` and `explain` have in common: their flags, as a pod and a place, and the start that these give."""

from collections.abc import Mapping
from pathlib import Path

from launcher.commands.answers import clear
from launcher.commands.options import refuse_other_volumes
from launcher.commands.vms import one_vm
from launcher.cpus.host import cpuset_of_flag
from launcher.facts import Facts, PodInterface, read_block_sizes
from launcher.manifest.spec import Spec
from launcher.network.multus import attached_to_the_pod, read_status
from launcher.starting.elsewhere import Elsewhere
from launcher.starting.pod import pod_of
from launcher.starting.start import Start, start_of
from launcher.versions import parse_version
from program.errors import UserError


def offline(
    vm: Path,
    *,
    name: str | None,
    instancetype: Path | None,
    preference: Path | None,
    env: list[str] | None,
    env_file: Path | None,
    sysfs: Path | None,
    dra: Path | None,
    emulation: bool,
    block_volume: list[str] | None,
    raw_image: list[str] | None,
    no_direct_io: list[str] | None,
    block_size: list[str] | None,
    cpuset: str | None,
    libvirt: str | None,
    network_status: Path | None,
) -> Start:
    """Return what would be started, with its warnings said; raise what keeps it from that."""
    version = parse_version(libvirt) if libvirt is not None else None
    pod = pod_of(env, env_file, sysfs, dra)
    given = one_vm(vm, name, instancetype, preference)
    vmi = given.instance
    sizes = dict(map(read_block_sizes, block_size or []))
    named = {"--block-volume": block_volume, "--raw-image": raw_image, "--no-direct-io": no_direct_io}
    refuse_other_volumes([vmi], {**named, "--block-size": sizes})
    facts = Facts(
        kvm=not emulation,
        cpus=cpuset_of_flag(cpuset),
        block=given.block.union(block_volume or []),
        raw_images=frozenset(raw_image or []),
        no_direct_io=frozenset(no_direct_io or []),
        block_sizes=sizes,
        pod_interfaces=_pod_interfaces(vmi.spec, network_status),
    )
    start = start_of(vmi, pod, Elsewhere(given=facts, libvirt=version))
    clear(start)
    return start


def _pod_interfaces(spec: Spec, file: Path | None) -> Mapping[str, PodInterface] | None:
    if file is None:
        return None
    try:
        text = file.read_text(errors="replace")
    except OSError as error:
        raise UserError(f"--network-status {file}", f"{error.strerror}", "name a file that can be read") from error
    return attached_to_the_pod(spec, read_status(text, f"--network-status {file}"))
