"""The files that volumes need and that neither libvirt nor the pod makes: from the manifest and the pod's mounts.

Reasons:
docs/decisions/0004-disks.md.
"""

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from launcher.vm import paths
from launcher.vm.credentials.files import AgentCredential, keys_in
from launcher.vm.facts import Facts
from launcher.vm.spec import VirtualMachineInstance
from launcher.vm.volumes.cloud_init import config_drive, no_cloud
from launcher.vm.volumes.facts import only_disk
from launcher.vm.volumes.guest import DiskSource, directory_of, source
from launcher.vm.volumes.images import ISO, refuse_other_format, refuse_unfit
from launcher.vm.volumes.manifest import Volume
from launcher.vm.volumes.media import (
    Brought,
    Content,
    EmptyImage,
    Medium,
    Need,
    Needs,
    Overlay,
    RawDisk,
    Share,
    Symlink,
)
from launcher.vm.volumes.places import mounted_files, regular_file, whole_blocks
from launcher.vm.volumes.vhostmd import disk_of, text_of
from program.errors import Refusal

_MEBIBYTE = 1 << 20
#: KubeVirt's labels (pkg/config): where the manifest has none, and sysprep's.
_LABEL, _SYSPREP_LABEL = "cfgdata", "unattendCD"
#: Windows' setup looks for one of these, in any case of letters (KubeVirt's pkg/config/sysprep.go).
_ANSWER_FILES = {"autounattend.xml", "unattend.xml"}


def needs_of(vmi: VirtualMachineInstance, facts: Facts, root: Path) -> Needs:
    """Return what the volumes need, in their order, in a pod whose root directory is `root`. This makes nothing."""
    needs: list[Need] = []
    refusals = []
    for index, volume in enumerate(vmi.spec.volumes):
        try:
            needs += _of(vmi, volume, index, facts, root)
        except Refusal as refusal:
            refusals.append(refusal)
    return Needs(tuple(needs), tuple(refusals))


def _of(vmi: VirtualMachineInstance, volume: Volume, index: int, facts: Facts, root: Path) -> tuple[Need, ...]:
    whose = f"the volume {volume.name!r}"
    if volume.name in vmi.spec.shared:
        _refuse_unshared(whose, volume, facts, root)
        return ()
    disk = source(volume, index, vmi.metadata, facts)
    file = paths.below(root, disk.path)
    if facts.own is not None and volume.name in facts.own.disks:
        return _of_own_machine(whose, disk)
    match volume.kind:
        case "persistentVolumeClaim" | "dataVolume":
            return () if disk.block else (replace(_of_claim(whose, volume, file), is_guests=True),)
        case "ephemeral":
            assert disk.below is not None, "it is an overlay"
            below = paths.below(root, disk.below.path)
            overlay = Overlay(file, below, "raw")
            return (overlay,) if disk.below.block else (_of_claim(whose, volume, below), overlay)
        case "containerDisk":
            assert disk.below is not None, "it is an overlay"
            image = only_disk(volume, root)
            refuse_other_format(whose, image, disk.below.format)
            refuse_unfit(whose, image, disk.below.format)
            link = Symlink(paths.below(root, disk.below.path), image)
            return link, Overlay(file, link.path, disk.below.format)
        case "emptyDisk":
            assert volume.emptyDisk is not None, "it is the volume's kind"
            # In whole MiB, as KubeVirt's pkg/emptydisk.
            size = volume.emptyDisk.capacity // _MEBIBYTE * _MEBIBYTE
            return (EmptyImage(file, size, stays=facts.own is None),)
        case "hostDisk":
            return _of_node(whose, volume, file)
        case "downwardMetrics":
            return (Content(file, disk_of(text_of(()))),)
        case _:
            return (Medium(file, _iso(vmi, volume, root)),)


def _of_claim(whose: str, volume: Volume, image: Path) -> Brought:
    """Return the raw disk in a claim with a file system. KubeVirt makes a missing one, as large as the claim by the API
    server."""
    if not os.path.lexists(image):
        raise Refusal(
            whose,
            f"its claim has no disk: there is neither {paths.block_device(volume.name)} nor {image}",
            "expected the file disk.img at the top of the claim, in raw format, or a claim with volumeMode: Block",
        )
    brought = _brought(whose, image)
    refuse_other_format(whose, image, "raw")
    return brought


def _of_own_machine(whose: str, disk: DiskSource) -> tuple[Need, ...]:
    """Return the user's image, and the overlay for the guest's writes if the image is to stay as it is: it lasts until
    the VM ends, as in a pod."""
    own_image = disk.below or disk
    image = Path(own_image.path)
    if not own_image.block:
        refuse_other_format(whose, image, own_image.format, by_name=True)
        refuse_unfit(whose, image, own_image.format)
    is_guests = own_image is disk and own_image.format == "raw"
    brought = () if own_image.block else (replace(_brought(whose, image), is_guests=is_guests),)
    return brought if own_image is disk else (*brought, Overlay(Path(disk.path), image, own_image.format, stays=False))


def _of_node(whose: str, volume: Volume, file: Path) -> tuple[Brought | RawDisk, ...]:
    """Return the file of a hostDisk. Refusal if it is missing, or empty as the kubelet makes it, and cannot be made."""
    disk = volume.hostDisk
    assert disk is not None, "it is the volume's kind"
    is_there = os.path.lexists(file)
    if is_there:
        brought = _brought(whose, file)
        if disk.type == "Disk" or file.lstat().st_size > 0:
            refuse_other_format(whose, file, "raw")
            return (replace(brought, is_guests=True),)
    missing = f"{file}, which is {disk.path} of the node, is {'empty' if is_there else 'not there'}"
    if disk.type == "Disk":
        raise Refusal(whose, missing, "put a disk image there, or write type: DiskOrCreate with a capacity")
    if disk.capacity is None:
        raise Refusal(whose, missing, "write its capacity, with which it is made")
    try:
        free = shutil.disk_usage(file if is_there else file.parent).free
    except OSError as error:
        raise Refusal(whose, f"{missing}: {error.strerror}", "expected the pod to mount it there") from error
    if disk.capacity > free:
        raise Refusal(
            whose,
            f"{missing}, and is to have {disk.capacity} bytes, and {free} are free there",
            "make room, or write a smaller capacity",
        )
    return RawDisk(file, whole_blocks(disk.capacity)), Brought(file, file.parent, whose, is_guests=True)


def _brought(whose: str, file: Path) -> Brought:
    regular_file(whose, file, file.parent)
    return Brought(file, file.parent, whose)


def _iso(vmi: VirtualMachineInstance, volume: Volume, root: Path) -> ISO:
    """Return the image of a volume that the guest gets as a CD-ROM."""
    secrets = partial(mounted_files, volume.name, paths.below(root, paths.mounted("secret", volume.name)))
    match volume.kind:
        case "cloudInitNoCloud":
            return no_cloud(vmi, volume, secrets, _keys(vmi, "noCloud", root))
        case "cloudInitConfigDrive":
            return config_drive(vmi, volume, secrets, _keys(vmi, "configDrive", root))
        case "sysprep":
            answers = mounted_files(volume.name, paths.below(root, paths.mounted("sysprep", volume.name)))
            _refuse_without_answers(volume.name, answers)
            return ISO(_SYSPREP_LABEL, answers)
    sources = (volume.configMap, volume.secret, volume.downwardAPI)
    label = next((each.volumeLabel for each in sources if each is not None), "")
    return ISO(label or _LABEL, mounted_files(volume.name, paths.below(root, directory_of(volume))))


def shares_of(vmi: VirtualMachineInstance, root: Path = Path("/")) -> tuple[Share, ...]:
    """Return the directories that virtiofsd serves to the guest, in the order of the file systems."""
    volumes = {volume.name: volume for volume in vmi.spec.volumes}
    return tuple(
        Share(
            name=filesystem.name,
            directory=paths.below(root, directory_of(volumes[filesystem.name])),
            socket=paths.below(root, paths.virtiofs_socket(filesystem.name)),
            read_only=_is_read_only(volumes[filesystem.name]),
        )
        for filesystem in vmi.spec.domain.devices.filesystems
    )


def _is_read_only(volume: Volume) -> bool:
    """Return False if the guest may write there. Nobody may write to Kubernetes' own volumes."""
    if (claim := volume.persistentVolumeClaim) is not None:
        return claim.readOnly
    if volume.containerPath is not None:
        return volume.containerPath.readOnly
    return volume.dataVolume is None


def _refuse_unshared(whose: str, volume: Volume, facts: Facts, root: Path) -> None:
    """Refuse a volume that is no directory, or leads to the launcher's own files."""
    if volume.name in facts.block:
        raise Refusal(whose, "its claim is a block device", "expected volumeMode: Filesystem, for virtiofs")
    directory = paths.below(root, directory_of(volume))
    try:
        real = directory.resolve(strict=True)
        is_directory = real.is_dir()
    except OSError as error:
        raise Refusal(
            whose, f"cannot be read: {error.strerror}", f"expected the pod to mount it at {directory}"
        ) from error
    if not is_directory:
        raise Refusal(whose, f"{directory} is no directory", "expected one, for virtiofs")
    # A link on the way, in a volume, may lead anywhere.
    inside = Path("/", real.relative_to(root)) if real.is_relative_to(root := root.resolve()) else real
    if volume.kind == "containerPath" and paths.is_own(inside):
        raise Refusal(whose, f"{directory} leads to {real}, which is the launcher's own", "take the link away")


def credentials_of(vmi: VirtualMachineInstance, root: Path = Path("/")) -> tuple[AgentCredential, ...]:
    """Return the credentials that the guest's agent applies; their files are read after the agent has started."""
    by_agent = []
    for credential in vmi.spec.accessCredentials:
        users: tuple[str, ...] = ()
        if (key := credential.sshPublicKey) is not None:
            if key.propagationMethod.qemuGuestAgent is None:
                continue
            users = key.propagationMethod.qemuGuestAgent.users
        by_agent.append(
            AgentCredential(credential.secret, paths.below(root, paths.credentials(credential.secret)), users)
        )
    return tuple(by_agent)


def _keys(vmi: VirtualMachineInstance, method: Literal["noCloud", "configDrive"], root: Path) -> tuple[str, ...]:
    """Return the ssh keys that cloud-init gets by this method."""
    keys: list[str] = []
    for credential in vmi.spec.accessCredentials:
        key = credential.sshPublicKey
        if key is not None and getattr(key.propagationMethod, method) is not None:
            keys += keys_in(mounted_files(credential.secret, paths.below(root, paths.credentials(credential.secret))))
    return tuple(keys)


def _refuse_without_answers(name: str, files: Mapping[str, bytes]) -> None:
    if not _ANSWER_FILES & {file.lower() for file in files}:
        names = ", ".join(map(repr, files)) or "nothing"
        raise Refusal(
            f"the volume {name!r}",
            f"has no answer file for Windows: mounted is {names}",
            "expected autounattend.xml or unattend.xml",
        )
