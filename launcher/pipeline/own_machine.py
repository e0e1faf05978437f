"""A user's own machine as the place of a start: flags in place of a cluster and a pod."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from launcher.vm.cards.claims import Entry
from launcher.vm.domain import domain_name
from launcher.vm.facts import OwnMachine
from launcher.vm.guest import ROM_OF
from launcher.vm.paths import runtime_directory, state_directory
from launcher.vm.spec import VirtualMachineInstance
from launcher.vm.volumes.manifest import CloudInit, Volume
from pci.address import InvalidPCIAddress, PCIAddress
from pci.resource import variable
from program.errors import ProgramError, Refusal, UserError, together

#: Bytes of the root's path: libvirt's monitor of QEMU, below it, takes 52 of a socket's 107.
_LONGEST = 55
_SHORT = 27  # characters of a VM's directory, below /run/user/1000/gpu-launcher; fewer where less is left of _LONGEST
_SHORTEST = 12
_UNNEEDED = "leave it out"


def own_machine(
    vmi: VirtualMachineInstance, disks: Sequence[str], ports: Sequence[str], environ: Mapping[str, str], user: int
) -> OwnMachine:
    """Return the place of this `user`'s VM, by the values of --disk and --port. UserError for a malformed value, and
    for each part of the manifest that needs a cluster; Refusal if the VM has no directory for its sockets."""
    images = dict(map(_disk, disks))
    if ports and not vmi.spec.domain.devices.connected:
        raise UserError(f"--port {ports[0]}", "the guest has no network", "leave it out, or write a network")
    if errors := [*_repeated(disks, images), *_of_clusters(vmi, images)]:
        raise together(errors)
    state, run = _directories(vmi, environ, user)
    return OwnMachine(state=state, run=run, disks=images, ports=dict(map(_port, ports)))


def variables_of(gpus: Sequence[str], entries: Sequence[Entry]) -> Mapping[str, str]:
    """Return the variables that a device plugin would set: one address for each entry, in their order. UserError unless
    there are as many addresses as entries, and for an address that is malformed or repeated."""
    addresses = [_address(text) for text in gpus]
    if len(addresses) != len(entries):
        listed = ", ".join(map(str, entries)) or "none"
        wrong = f"names {len(addresses)}, and the entries of gpus and hostDevices are {len(entries)}: {listed}"
        raise UserError("--gpu", wrong, "give it once for each, in their order, or take an entry out of the manifest")
    values: dict[str, list[str]] = {}
    for entry, address in zip(entries, addresses, strict=True):
        if not isinstance(entry.wants, str):
            raise UserError(entry, f"is {entry.wants}, which a cluster has", "write deviceName in place of it")
        if addresses.count(address) > 1:
            raise UserError(f"--gpu {address}", "is there twice", "name another card for each entry")
        values.setdefault(variable(entry.wants), []).append(str(address))
    return {name: ",".join(each) for name, each in values.items()}


def _directories(vmi: VirtualMachineInstance, environ: Mapping[str, str], user: int) -> tuple[Path, Path]:
    """Return the VM's directory for files that are made for it, and libvirt's root. Refusal without a place for
    them."""
    place = runtime_directory(environ, user)
    if place is None:
        fix = "log in as this user (by ssh, or machinectl shell), or name a directory that is this user's alone"
        raise Refusal("XDG_RUNTIME_DIR", "is not set, and the VM's sockets belong there", fix)
    domain = domain_name(vmi.metadata)
    room = min(_SHORT, max(_SHORTEST, _LONGEST - len(os.fsencode(place)) - 1))
    name = domain if len(domain) <= room else f"{domain[: room - 9]}-{str(vmi.uuid)[:8]}"
    run, state = place / name, state_directory(environ) / domain
    if not f"{run}{state}".isprintable():
        wrong = f"{str(run)!r} or {str(state)!r} has a character that cannot be printed"
        raise Refusal("XDG_RUNTIME_DIR and XDG_STATE_HOME", wrong, "name other directories there")
    if len(os.fsencode(run)) > _LONGEST:
        fix = "expected a shorter one, like /run/user/1000"
        raise Refusal("XDG_RUNTIME_DIR", f"{run} is too long for the names of sockets in it", fix)
    return state, run


def _address(text: str) -> PCIAddress:
    try:
        return PCIAddress.parse_short(text)
    except InvalidPCIAddress as error:
        raise UserError(f"--gpu {text}", "is no PCI address", error.fix) from error


def _disk(setting: str) -> tuple[str, Path]:
    name, _, path = setting.partition("=")
    flag = f"--disk {setting}"
    if not name or not path:
        raise UserError(flag, "is no volume's disk", "expected NAME=PATH, with a volume's name of the manifest")
    try:
        file = Path(path).resolve(strict=True)
        is_disk = file.is_file() or file.is_block_device()
    except (OSError, RuntimeError, ValueError) as error:
        wrong = f"cannot be found: {error.strerror if isinstance(error, OSError) else error}"
        raise UserError(flag, wrong, "expected a disk image or a block device") from error
    if not str(file).isprintable():  # no XML has such a name
        raise UserError(flag, "has a character that cannot be printed in its path", "give it another name")
    if not is_disk:
        raise UserError(flag, "is no file", "expected a disk image or a block device")
    return name, file


def _port(setting: str) -> tuple[int, int]:
    """Return the guest's port and this machine's; UserError for anything but OWN:GUEST."""
    own, _, guests = setting.partition(":")
    if not all(number.isascii() and number.isdecimal() and 0 < int(number) < 1 << 16 for number in (own, guests)):
        raise UserError(f"--port {setting}", "is no pair of ports", "expected OWN:GUEST, like 2222:22")
    return int(guests), int(own)


def _repeated(disks: Sequence[str], images: Mapping[str, Path]) -> Iterator[ProgramError]:
    names = [setting.partition("=")[0] for setting in disks]
    for name in images:
        if names.count(name) > 1:
            yield UserError(f"--disk {name}", "is there twice", "name one disk for a volume")


def _of_clusters(vmi: VirtualMachineInstance, disks: Mapping[str, Path]) -> Iterator[ProgramError]:
    """Yield an error for each part of the manifest that needs a cluster."""
    spec, firmware = vmi.spec, vmi.spec.domain.firmware
    for volume in spec.volumes:
        if volume.name in spec.shared:
            yield _only_there(f"the volume {volume.name!r}", "is a directory for virtiofs", _UNNEEDED)
        elif volume.name not in disks and not _is_made_here(volume):
            fix = f"expected --disk {volume.name}=PATH, an image or a block device"
            yield _only_there(f"the volume {volume.name!r}", f"is a {volume.kind}", fix)
    second = [network.name for network in spec.networks if not network.is_pods]
    for what, is_there in {
        "firmware.kernelBoot.container": firmware.kernelBoot is not None and firmware.kernelBoot.container is not None,
        "firmware.acpi": firmware.acpi is not None,
        "accessCredentials": bool(spec.accessCredentials),
        ROM_OF: bool(vmi.metadata.annotations.roms),
        f"networks: {', '.join(second)}": bool(second),
    }.items():
        if is_there:
            yield _only_there(what, "is there", _UNNEEDED)


def _is_made_here(volume: Volume) -> bool:
    cloud_init: CloudInit | None = volume.cloudInitNoCloud or volume.cloudInitConfigDrive
    if cloud_init is not None:
        return cloud_init.secretRef is None and cloud_init.networkDataSecretRef is None
    return volume.emptyDisk is not None or volume.downwardMetrics is not None


def _only_there(what: str, wrong: str, fix: str) -> UserError:
    return UserError(what, f"{wrong}, which comes from a cluster, and this machine is none", fix)
