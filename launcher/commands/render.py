"""gpu-launcher render."""

from launcher.commands.offline import offline
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
    NetworkStatus,
    NoDirectIO,
    Preference,
    RawImage,
    Sysfs,
)
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
    no_direct_io: NoDirectIO = None,
    block_size: BlockSize = None,
    cpuset: Cpuset = None,
    libvirt: Libvirt = None,
    network_status: NetworkStatus = None,
) -> None:
    """Print the libvirt domain of a VM, and nothing else, on stdout."""
    start = offline(
        vm,
        name=name,
        instancetype=instancetype,
        preference=preference,
        env=env,
        env_file=env_file,
        sysfs=sysfs,
        dra=dra,
        emulation=emulation,
        block_volume=block_volume,
        raw_image=raw_image,
        no_direct_io=no_direct_io,
        block_size=block_size,
        cpuset=cpuset,
        libvirt=libvirt,
        network_status=network_status,
    )
    assert start.xml is not None, "nothing was refused"
    print_text(start.xml)
