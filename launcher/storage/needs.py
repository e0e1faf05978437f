"""What a VM needs on disk and neither libvirt nor the pod brings: from the manifest and what is mounted.

libvirt itself copies EFI's variables from their template and makes the TPM's state. Why it is done as it is:
docs/decisions/0024.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from launcher import paths
from launcher.devices.roms import roms_of
from launcher.devices.sources import directory_of
from launcher.facts import Facts
from launcher.manifest.spec import VirtualMachineInstance
from launcher.manifest.volumes import Volume
from launcher.storage.cloud_init import config_drive, no_cloud
from launcher.storage.container_disks import only_disk
from launcher.storage.credentials import AgentCredential, keys_in
from launcher.storage.iso import ISO
from launcher.storage.kubelet_files import mounted_files
from launcher.storage.media import Brought, Directory, EmptyImage, Link, Medium, Need, Overlay
from launcher.storage.persistent import claimed_disk, host_disk
from launcher.storage.qcow2 import refuse_unfit
from launcher.storage.shares import Share
from program.errors import Refusal

_MEBIBYTE = 1 << 20
#: KubeVirt's, pkg/config: of what the manifest gives no label, and of sysprep.
_LABEL, _SYSPREP_LABEL = "cfgdata", "unattendCD"
#: One of which Windows' setup looks for (KubeVirt's pkg/config/sysprep.go), in any case.
_ANSWER_FILES = {"autounattend.xml", "unattend.xml"}

Mounted = Literal["config-map", "secret", "downwardapi", "sysprep"]


class Needs(NamedTuple):
    """What is to be made, in the order of the volumes; and why a volume cannot be had, each by its name: the pod, the
    claim or the node lacks what it has to bring."""

    needs: tuple[Need, ...]
    refusals: tuple[Refusal, ...]


def needs_of(vmi: VirtualMachineInstance, facts: Facts, root: Path = Path("/")) -> Needs:
    """`root` stands for the pod's. Nothing is made here."""
    needs: list[Need] = []
    refusals = []
    for index, volume in enumerate(vmi.spec.volumes):
        try:
            needs += _of(vmi, volume, index, facts, root)
        except Refusal as refusal:
            refusals.append(refusal)
    needs += _of_firmware(vmi, root)
    for rom in roms_of(vmi.spec, vmi.metadata).values():
        if rom is not None:
            place = partial(paths.below, root)
            needs.append(Brought(place(rom.file), place(rom.directory), f"the ROM in the volume {rom.volume!r}"))
    if vmi.spec.efi is not None and vmi.spec.efi.persistent:
        needs.append(Directory(paths.below(root, paths.NVRAM)))
    return Needs(tuple(needs), tuple(refusals))


def _of(vmi: VirtualMachineInstance, volume: Volume, index: int, facts: Facts, root: Path) -> tuple[Need, ...]:
    name, namespace, vm = volume.name, vmi.metadata.namespace, vmi.metadata.name
    place = partial(paths.below, root)
    if name in vmi.spec.shared:
        _refuse_unshared(volume, facts, root)
        return ()
    match volume.kind:
        case "persistentVolumeClaim" | "dataVolume":
            return claimed_disk(name, facts, root)
        case "ephemeral":
            disk = claimed_disk(name, facts, root)
            below = place(paths.claimed_disk(name, is_block=name in facts.block))
            return *disk, Overlay(place(paths.overlay(name)), below, "raw")
        case "containerDisk":
            image = only_disk(volume, root)
            refuse_unfit(f"the volume {name!r}", image)
            link = Link(place(paths.container_disk(index)), image)
            return link, Overlay(place(paths.overlay(name)), link.path, "raw" if name in facts.raw_images else "qcow2")
        case "emptyDisk":
            assert volume.emptyDisk is not None, "it is the volume's kind"
            # In whole MiB, as KubeVirt's pkg/emptydisk.
            return (EmptyImage(place(paths.empty_disk(name)), volume.emptyDisk.capacity // _MEBIBYTE * _MEBIBYTE),)
        case "hostDisk":
            return host_disk(volume, root)
        case "cloudInitNoCloud":
            seed = no_cloud(vmi, volume, partial(_mounted, "secret", name, root), _keys(vmi, "noCloud", root))
            return (Medium(place(paths.cloud_init_iso("noCloud", namespace, vm)), seed),)
        case "cloudInitConfigDrive":
            drive = config_drive(vmi, volume, partial(_mounted, "secret", name, root), _keys(vmi, "configDrive", root))
            return (Medium(place(paths.cloud_init_iso("configdrive", namespace, vm)), drive),)
        case "serviceAccount":
            token = mounted_files(name, place(paths.SERVICE_ACCOUNT))
            return (Medium(place(paths.SERVICE_ACCOUNT_ISO), ISO(_LABEL, token)),)
        case "sysprep":
            answers = _mounted("sysprep", name, root)
            _refuse_without_answers(name, answers)
            return (Medium(place(paths.iso("sysprep", name)), ISO(_SYSPREP_LABEL, answers)),)
        case "configMap":
            assert volume.configMap is not None, "it is the volume's kind"
            return (_labelled("config-map", name, volume.configMap.volumeLabel, root),)
        case "secret":
            assert volume.secret is not None, "it is the volume's kind"
            return (_labelled("secret", name, volume.secret.volumeLabel, root),)
        case "downwardAPI":
            assert volume.downwardAPI is not None, "it is the volume's kind"
            return (_labelled("downwardapi", name, volume.downwardAPI.volumeLabel, root),)
        case "containerPath":
            raise AssertionError("it is shared, or the manifest is refused")


def shares_of(vmi: VirtualMachineInstance, root: Path = Path("/")) -> tuple[Share, ...]:
    """What virtiofsd serves to the guest, in the order of the file systems."""
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
    """Whether the guest may write there; what is Kubernetes' own, nobody may."""
    if (claim := volume.persistentVolumeClaim) is not None:
        return claim.readOnly
    if volume.containerPath is not None:
        return volume.containerPath.readOnly
    return volume.dataVolume is None


def _refuse_unshared(volume: Volume, facts: Facts, root: Path) -> None:
    """Refuse a volume that is no directory, or that is not what the manifest takes it for."""
    whose = f"the volume {volume.name!r}"
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
    """The credentials that are the guest agent's to apply; they are read when it has started."""
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
    """The ssh keys that cloud-init gets by this method."""
    keys: list[str] = []
    for credential in vmi.spec.accessCredentials:
        key = credential.sshPublicKey
        if key is not None and getattr(key.propagationMethod, method) is not None:
            keys += keys_in(mounted_files(credential.secret, paths.below(root, paths.credentials(credential.secret))))
    return tuple(keys)


def _of_firmware(vmi: VirtualMachineInstance, root: Path) -> Iterator[Brought]:
    """Kernels and ACPI tables, which QEMU opens where they are; launcher.checks.volumes says what is missing."""
    firmware = vmi.spec.domain.firmware
    if firmware.kernelBoot is not None and (boot := firmware.kernelBoot.container) is not None:
        for path in (boot.kernelPath, boot.initrdPath):
            if path is not None:
                image = paths.below(root, paths.KERNEL_BOOT)
                yield Brought(paths.below(image, path), image, "firmware.kernelBoot")
    if (acpi := firmware.acpi) is not None:
        for secret, table in ((acpi.slicNameRef, "slic"), (acpi.msdmNameRef, "msdm")):
            if secret is not None:
                volume = paths.below(root, paths.mounted("secret", secret))
                yield Brought(volume / f"{table}.bin", volume, "firmware.acpi")


def _mounted(kind: Mounted, name: str, root: Path) -> Mapping[str, bytes]:
    return mounted_files(name, paths.below(root, paths.mounted(kind, name)))


def _labelled(kind: Mounted, name: str, label: str, root: Path) -> Medium:
    return Medium(paths.below(root, paths.iso(kind, name)), ISO(label or _LABEL, _mounted(kind, name, root)))


def _refuse_without_answers(name: str, files: Mapping[str, bytes]) -> None:
    if not _ANSWER_FILES & {file.lower() for file in files}:
        there = ", ".join(map(repr, files)) or "nothing"
        raise Refusal(
            f"the volume {name!r}",
            f"has no answer file for Windows: mounted is {there}",
            "expected autounattend.xml or unattend.xml",
        )
