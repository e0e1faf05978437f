"""Where a VM's files are in its pod. The places are KubeVirt's, so that people find what they know; where KubeVirt has
none, since its handler does the work from outside, they are below /run/gpu-launcher or /etc/gpu-launcher.

Sources, in KubeVirt: pkg/storage/volumepath, pkg/host-disk, pkg/container-disk, pkg/ephemeral-disk, pkg/emptydisk,
pkg/cloud-init, pkg/config. Names of volumes are DNS labels, so no name leads out of its directory.
"""

from typing import Literal

_PRIVATE = "/var/run/kubevirt-private"
_EPHEMERAL = "/var/run/kubevirt-ephemeral-disks"

#: The manifest, from the pod's ConfigMap.
MANIFEST = "/etc/gpu-launcher/vm.yaml"
#: The root of libvirt's embedded driver; short, since sockets below it may have 107 bytes in all.
LIBVIRT_ROOT = "/run/gpu-launcher"
#: There exactly while the guest runs, for the pod's readiness probe.
READY = "/run/gpu-launcher/ready"
#: Where the launcher serves (KubeVirt's cmd/virt-launcher and pkg/virt-handler/cmd-client).
CONTROL_SOCKET = "/var/run/kubevirt/sockets/launcher-sock"
#: Where the image of kernelBoot is mounted, whole. The directory is KubeVirt's (pkg/container-disk,
#: GetKernelBootArtifactPathFromLauncherView), which has just the two files in it.
KERNEL_BOOT = "/var/run/kubevirt/container-disks/kernel-boot"
#: Where the pod mounts what keeps EFI's variables (KubeVirt's pkg/util, PathForNVram of a VM without root).
NVRAM = f"{_PRIVATE}/libvirt/qemu/nvram"
#: Where libvirt's embedded driver has the state of TPMs, a directory for each domain's UUID. The pod mounts what keeps
#: that of a persistent one here.
SWTPM = f"{LIBVIRT_ROOT}/lib/swtpm"
#: Where the service account's token is mounted (KubeVirt's pkg/config, ServiceAccountSourceDir).
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
#: The one ISO of the service account's token; a VM has at most one such volume.
SERVICE_ACCOUNT_ISO = f"{_PRIVATE}/service-account-disk/service-account.iso"


def disk_image(volume: str, file: str = "disk.img") -> str:
    """A disk in a claim with a file system, or a hostDisk's `file`, in the directory where the volume is mounted."""
    return f"{_PRIVATE}/vmi-disks/{volume}/{file}"


def block_device(volume: str) -> str:
    """A claim of volumeMode Block."""
    return f"/dev/{volume}"


def container_disk(index: int) -> str:
    """The disk from a containerDisk's image; `index` counts all volumes, from 0."""
    return f"/var/run/kubevirt/container-disks/disk_{index}.img"


def overlay(volume: str) -> str:
    """What the guest writes over an image that stays as it is; gone with the pod."""
    return f"{_EPHEMERAL}/disk-data/{volume}/disk.qcow2"


def empty_disk(volume: str) -> str:
    return f"/var/run/libvirt/empty-disks/{volume}.qcow2"


def cloud_init_iso(kind: Literal["noCloud", "configdrive"], namespace: str, vm: str) -> str:
    return f"{_EPHEMERAL}/cloud-init-data/{namespace}/{vm}/{kind}.iso"


def iso(kind: Literal["config-map", "secret", "downwardapi", "sysprep"], volume: str) -> str:
    """The files of a volume, made into an ISO."""
    return f"{_PRIVATE}/{kind}-disks/{volume}.iso"


def mounted(kind: Literal["config-map", "secret", "downwardapi", "sysprep"], volume: str) -> str:
    """The directory where a volume's files are mounted, from which an ISO is made (KubeVirt's pkg/config).

    As a secret also the one that a cloud-init volume names.
    """
    return f"{_PRIVATE}/{kind}/{volume}"


def image_volume(volume: str) -> str:
    """Where the image of a containerDisk is mounted, whole. KubeVirt's is not of a volume but of an index."""
    return f"/var/run/kubevirt/image-volumes/{volume}"
