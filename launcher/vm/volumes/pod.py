"""The pod's volumes, and the place of each in the container, by launcher.vm.paths.

What the launcher writes is in empty volumes, since the container's root is read-only; what the manifest names is
mounted where the domain, or what is made for it before the start, looks for it. No mount is below a volume that the
guest's user can write: that user could put a link where the mount point was, and the next start of the container would
mount over the image's programs (docs/decisions/0007-the-pod.md).
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from launcher.fields.quantity import written
from launcher.vm import paths
from launcher.vm.firmware.manifest import KernelBoot
from launcher.vm.guest import Guest
from launcher.vm.network.multus import STATUS, second_networks
from launcher.vm.plain import PodObject, plain
from launcher.vm.spec import Spec
from launcher.vm.volumes.guest import directory_of, iso_directory
from launcher.vm.volumes.manifest import CloudInit, HostDisk, Volume
from program.errors import UserError

#: Volumes of ours begin with it, so that they are told from the VM's, which keep their names.
_OURS = "gpu-launcher-"
#: The volume that keeps EFI's variables and the TPM's state.
STATE_VOLUME = f"{_OURS}state"
#: Names that a block device can't have, since /dev has them already, or gets them from the node.
_IN_DEV = (
    *("bus", "console", "core", "fd", "full", "hugepages", "iommu", "kvm", "mqueue", "net", "null", "ptmx", "pts"),
    *("random", "sev", "shm", "stderr", "stdin", "stdout", "tty", "urandom", "vfio", "vhost-net", "vhost-vsock"),
    "zero",
)


class Mount(NamedTuple):
    """A volume of the pod's, from `source` (Kubernetes' VolumeSource), and where the container has it.

    As a block device, where `is_block`, else as a directory or file; `part` is the directory of the volume that is
    mounted, the whole of it where there is none.
    """

    name: str
    source: Mapping[str, Any]
    at: str
    read_only: bool = False
    is_block: bool = False
    part: str | None = None


def mounts(
    spec: Spec, guest: Guest, manifest: str, state: Mapping[str, Any], block: frozenset[str], suspend_to: str = ""
) -> tuple[Mount, ...]:
    """Return the pod's mounts, ours first. `manifest` is the name of the config map with the manifest, and `state` the
    volume that keeps EFI's variables and the TPM's state; `block`: the volumes whose claim is a block device;
    `suspend_to`: the claim for the memory of the suspended guest, "" for none.

    UserError, by the manifest's path, for what a pod cannot mount.
    """
    for volume in spec.volumes:
        if volume.name in block & spec.shared:
            raise UserError(
                f"--block-volume {volume.name}",
                "the guest mounts the volume by virtiofs",
                "expected a claim with a file system, or its disk in devices.disks",
            )
        if volume.name in block and volume.kind not in ("persistentVolumeClaim", "dataVolume", "ephemeral"):
            raise UserError(
                f"--block-volume {volume.name}", f"the volume is of kind {volume.kind}", "expected one with a claim"
            )
    mounts = (*_ours(spec, guest, manifest, state, suspend_to), *_of_manifest(spec.volumes, block))
    sources: dict[str, Mapping[str, Any]] = {}
    for mount in mounts:
        if sources.setdefault(mount.name, mount.source) is not mount.source:
            raise UserError(
                "spec.volumes",
                f"{mount.name!r} is what a volume of the pod's is called already",
                "rename it, and its disk",
            )
    return mounts


def pod_volumes(mounts: Iterable[Mount]) -> list[PodObject]:
    return [{"name": name, **source} for name, source in {mount.name: mount.source for mount in mounts}.items()]


def volume_mounts(mounts: Iterable[Mount]) -> list[PodObject]:
    return [
        {
            "name": mount.name,
            "mountPath": mount.at,
            **({"readOnly": True} if mount.read_only else {}),
            **({"subPath": mount.part} if mount.part is not None else {}),
        }
        for mount in mounts
        if not mount.is_block
    ]


def volume_devices(mounts: Iterable[Mount]) -> list[PodObject]:
    return [{"name": mount.name, "devicePath": mount.at} for mount in mounts if mount.is_block]


def pull_secrets(volumes: tuple[Volume, ...], kernel: KernelBoot | None) -> list[PodObject]:
    """Return the secrets with which the node pulls the VM's images, each once."""
    disks = [volume.containerDisk for volume in volumes if volume.containerDisk is not None]
    names = [disk.imagePullSecret for disk in disks]
    if kernel is not None and kernel.container is not None:
        names.append(kernel.container.imagePullSecret)
    return [{"name": name} for name in dict.fromkeys(names) if name is not None]


def service_account(spec: Spec) -> str | None:
    """Return the pod's service account: the manifest's, or the one whose token the guest gets."""
    accounts = [volume.serviceAccount for volume in spec.volumes]
    named = (account.serviceAccountName for account in accounts if account is not None)
    return spec.serviceAccountName or next(named, None)


def keeps_state(spec: Spec) -> bool:
    """Return whether EFI's variables or the TPM's state outlive the pod."""
    return (spec.efi is not None and spec.efi.persistent) or spec.domain.devices.keeps_tpm


def _ours(spec: Spec, guest: Guest, config_map: str, state: Mapping[str, Any], suspend_to: str) -> Iterator[Mount]:
    tpm = spec.domain.devices.tpm
    kinds = {volume.kind for volume in spec.volumes}
    kernel = spec.domain.firmware.kernelBoot
    manifest = PurePosixPath(paths.MANIFEST)
    yield Mount(f"{_OURS}manifest", {"configMap": {"name": config_map}}, str(manifest.parent), read_only=True)
    if any(network.interface.method == "sriov" for network in second_networks(spec)):
        status = PurePosixPath(paths.NETWORK_STATUS)
        field = {"fieldPath": f"metadata.annotations['{STATUS}']"}
        items = [{"path": status.name, "fieldRef": field}]
        yield Mount(f"{_OURS}networks", {"downwardAPI": {"items": items}}, str(status.parent), read_only=True)
    yield _empty("run", paths.LIBVIRT_ROOT)
    yield _empty("sockets", paths.SOCKETS)
    yield _empty("tmp", "/tmp")  # noqa: S108 (the container's own)
    if kinds & {"containerDisk", "ephemeral", "cloudInitNoCloud", "cloudInitConfigDrive"}:
        yield _empty("ephemeral-disks", paths.EPHEMERAL)
    for number, secret in enumerate(dict.fromkeys(credential.secret for credential in spec.accessCredentials)):
        source = {"secret": {"secretName": secret}}
        yield Mount(f"{_OURS}credentials-{number}", source, paths.credentials(secret), read_only=True)
    if spec.shared:
        yield _empty("virtiofs", paths.VIRTIOFS)
    if capacities := [volume.emptyDisk.capacity for volume in spec.volumes if volume.emptyDisk is not None]:
        yield _empty("empty-disks", paths.EMPTY_DISKS, sizeLimit=written(sum(map(_full, capacities))))
    boot = kernel.container if kernel is not None else None
    if "containerDisk" in kinds or boot is not None:
        yield _empty("container-disks", paths.CONTAINER_DISKS)
    if boot is not None:
        yield Mount(f"{_OURS}kernel-boot", _image(boot.image, boot.imagePullPolicy), paths.KERNEL_IMAGE, read_only=True)
    isos = (iso_directory(volume) for volume in spec.volumes if volume.name not in spec.shared)
    for directory in dict.fromkeys(filter(None, isos)):
        yield _empty(PurePosixPath(directory).name, directory)
    if guest.page is not None and not guest.is_memfd:
        medium = f"HugePages-{written(guest.page)}"
        yield Mount(f"{_OURS}hugepages", {"emptyDir": {"medium": medium}}, paths.HUGEPAGES)
    if spec.efi is not None and spec.efi.persistent:
        yield Mount(STATE_VOLUME, state, paths.NVRAM, part="nvram")
    if suspend_to:
        claim = {"persistentVolumeClaim": {"claimName": suspend_to}}
        yield Mount(f"{_OURS}suspended", claim, paths.SUSPENDED, part="suspended")
    if tpm is not None and tpm.enabled:
        if tpm.persistent:
            yield Mount(STATE_VOLUME, state, paths.TPM_STATE, part="swtpm")
            yield Mount(STATE_VOLUME, state, paths.SWTPM_CA, part="swtpm-localca")
        else:
            yield _empty("swtpm-localca", paths.SWTPM_CA)


def _full(capacity: int) -> int:
    """Return the most bytes, in whole MiB, that an image of that capacity may take: a pod whose volume is larger is
    evicted. qcow2's tables take 1/6500 of it (`qemu-img measure`), and XFS reserves room ahead of a file that grows."""
    return ((capacity + capacity // 16 >> 20) + 1) << 20


def _empty(name: str, at: str, **limits: str) -> Mount:
    return Mount(_OURS + name, {"emptyDir": limits}, at)


def _of_manifest(volumes: tuple[Volume, ...], block: frozenset[str]) -> Iterator[Mount]:
    for index, volume in enumerate(volumes):
        match volume.kind:
            case "persistentVolumeClaim" | "dataVolume" | "ephemeral":
                yield _claim(volume, index, block)
            case "hostDisk":
                assert volume.hostDisk is not None, "it is the volume's kind"
                yield _host_disk(volume.name, index, volume.hostDisk)
            case "containerDisk":
                assert volume.containerDisk is not None, "it is the volume's kind"
                disk = volume.containerDisk
                source = _image(disk.image, disk.imagePullPolicy)
                yield Mount(volume.name, source, paths.image_volume(volume.name), read_only=True)
            case "cloudInitNoCloud" | "cloudInitConfigDrive":
                cloud_init = volume.cloudInitNoCloud or volume.cloudInitConfigDrive
                assert cloud_init is not None, "it is the volume's kind"
                yield from _cloud_init(volume.name, cloud_init)
            case "configMap" | "secret" | "downwardAPI" | "sysprep":
                yield Mount(volume.name, _files(volume, index), directory_of(volume), read_only=True)
            case "emptyDisk" | "serviceAccount" | "downwardMetrics" | "containerPath":
                pass  # made in an empty volume; mounted by the kubelet, or by a webhook


def _claim(volume: Volume, index: int, block: frozenset[str]) -> Mount:
    name = volume.name
    claim = volume.ephemeral.persistentVolumeClaim if volume.ephemeral is not None else volume.persistentVolumeClaim
    read_only = claim is not None and claim.readOnly
    claim_name = claim.claimName if claim is not None else volume.claim
    source = {"persistentVolumeClaim": {"claimName": claim_name, **({"readOnly": True} if read_only else {})}}
    if name not in block:
        # What is below an overlay stays as it is.
        return Mount(name, source, directory_of(volume), read_only=read_only or volume.ephemeral is not None)
    if name in _IN_DEV:
        raise UserError(
            f"spec.volumes[{index}].name",
            f"{name!r} would be {paths.block_device(name)}, which is there already",
            "rename it, and its disk",
        )
    return Mount(name, source, paths.block_device(name), is_block=True)


def _host_disk(name: str, index: int, disk: HostDisk) -> Mount:
    """Return the mount of the file alone, which the kubelet makes, empty, for DiskOrCreate."""
    file = PurePosixPath(disk.path)
    if ":" in file.name:
        raise UserError(
            f"spec.volumes[{index}].hostDisk.path",
            f"{disk.path!r} has a colon in its name, and Kubernetes mounts no such path",
            "rename the file",
        )
    source = {"path": disk.path, "type": "File" if disk.type == "Disk" else "FileOrCreate"}
    return Mount(name, {"hostPath": source}, paths.disk_image(name, file.name))


def _image(reference: str, pull_policy: str | None) -> PodObject:
    """Return an image volume (Kubernetes 1.33; KubeVirt's ImageVolume)."""
    return {"image": {"reference": reference, **({"pullPolicy": pull_policy} if pull_policy is not None else {})}}


def _cloud_init(name: str, cloud_init: CloudInit) -> Iterator[Mount]:
    """Yield the mount of the secrets with user data or network data, in one directory."""
    # Of a key that both have, the later one counts: user data is in the secret of that name.
    references = [cloud_init.networkDataSecretRef, cloud_init.secretRef]
    secrets = list(dict.fromkeys(reference.name for reference in references if reference is not None))
    if not secrets:
        return
    if len(secrets) == 1:
        source: PodObject = {"secret": {"secretName": secrets[0]}}
    else:
        source = {"projected": {"sources": [{"secret": {"name": secret}} for secret in secrets]}}
    yield Mount(name, source, paths.mounted("secret", name), read_only=True)


def _files(volume: Volume, index: int) -> PodObject:
    """Return the source of the files that an ISO is made from."""
    if volume.configMap is not None:
        optional = {"optional": True} if volume.configMap.optional else {}
        return {"configMap": {"name": volume.configMap.name, **optional}}
    if volume.secret is not None:
        optional = {"optional": True} if volume.secret.optional else {}
        return {"secret": {"secretName": volume.secret.secretName, **optional}}
    if volume.downwardAPI is not None:
        return {"downwardAPI": {"items": plain(volume.downwardAPI.fields, f"spec.volumes[{index}].downwardAPI.fields")}}
    assert volume.sysprep is not None, "it is one of the four"
    if volume.sysprep.secret is not None:
        return {"secret": {"secretName": volume.sysprep.secret.name}}
    assert volume.sysprep.configMap is not None, "it is the one or the other"
    return {"configMap": {"name": volume.sysprep.configMap.name}}
