"""Where a VM's files are in its pod. The places are KubeVirt's, so that people find what they know; where KubeVirt has
none, since its handler does the work from outside, they are below /run/gpu-launcher or /etc/gpu-launcher.

Sources, in KubeVirt: pkg/storage/volumepath, pkg/host-disk, pkg/container-disk, pkg/ephemeral-disk, pkg/emptydisk,
pkg/cloud-init, pkg/config. Names of volumes are DNS labels, so no name leads out of its directory.
"""

from pathlib import Path
from typing import Literal

#: What is this VM's alone: its sockets, what is made for it, and below it what the pod mounts for it.
PRIVATE = "/var/run/kubevirt-private"
#: What goes with the pod: overlays, and cloud-init's images.
EPHEMERAL = "/var/run/kubevirt-ephemeral-disks"
EMPTY_DISKS = "/var/run/libvirt/empty-disks"
#: The disks of images, and below it the image of kernelBoot.
CONTAINER_DISKS = "/var/run/kubevirt/container-disks"

#: The manifest, from the pod's ConfigMap.
MANIFEST = "/etc/gpu-launcher/vm.yaml"
#: What Multus says of the pod's second networks, from its annotation.
NETWORK_STATUS = "/etc/gpu-launcher-networks/status"
#: The root of libvirt's embedded driver; short, since sockets below it may have 107 bytes in all.
LIBVIRT_ROOT = "/run/gpu-launcher"
#: There exactly while the guest runs, for the pod's readiness probe.
READY = "/run/gpu-launcher/ready"
#: Where the launcher serves: where KubeVirt's has its own socket (cmd/virt-launcher).
CONTROL_SOCKET = "/var/run/kubevirt/sockets/launcher-sock"
#: Where the image of kernelBoot is mounted, whole. The directory is KubeVirt's (pkg/container-disk,
#: GetKernelBootArtifactPathFromLauncherView), which has just the two files in it.
KERNEL_BOOT = f"{CONTAINER_DISKS}/kernel-boot"
#: Where the pod mounts what keeps EFI's variables (KubeVirt's pkg/util, PathForNVram of a VM without root).
NVRAM = f"{PRIVATE}/libvirt/qemu/nvram"
#: Where libvirt's embedded driver has the state of TPMs, a directory for each domain's UUID. The pod mounts what keeps
#: that of a persistent one here.
SWTPM = f"{LIBVIRT_ROOT}/lib/swtpm"
#: Where swtpm's tools keep the keys with which they sign a TPM's certificates (swtpm-localca.conf(5)).
SWTPM_CA = "/var/lib/swtpm-localca"
#: The sockets of virtiofsd, one of each volume: KubeVirt's (pkg/virtiofs). A volume's name of 63 characters just fits
#: into the 107 bytes of a socket's path.
VIRTIOFS = "/var/run/kubevirt/virtiofs-containers"
#: Where Debian and Fedora have that program, which is not for users.
VIRTIOFSD = "/usr/libexec/virtiofsd"
#: Huge pages, where they don't come from memfd: the kernel's file system for them.
HUGEPAGES = "/dev/hugepages"
#: Where the service account's token is mounted (KubeVirt's pkg/config, ServiceAccountSourceDir).
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_OWN = (
    *("/dev", "/proc", "/sys", "/tmp", "/etc/gpu-launcher", "/var/run/kubevirt", "/var/run/libvirt"),  # noqa: S108
    *(PRIVATE, EPHEMERAL, LIBVIRT_ROOT, SWTPM_CA),
)
#: The one ISO of the service account's token; a VM has at most one such volume.
SERVICE_ACCOUNT_ISO = f"{PRIVATE}/service-account-disk/service-account.iso"


def disk_image(volume: str, file: str = "disk.img") -> str:
    """A disk in a claim with a file system, or a hostDisk's `file`, in the directory where the volume is mounted."""
    return f"{PRIVATE}/vmi-disks/{volume}/{file}"


def block_device(volume: str) -> str:
    """A claim of volumeMode Block."""
    return f"/dev/{volume}"


def claimed_disk(volume: str, *, is_block: bool) -> str:
    """The disk of a claim of either volumeMode."""
    return block_device(volume) if is_block else disk_image(volume)


def container_disk(index: int) -> str:
    """The disk from a containerDisk's image; `index` counts all volumes, from 0."""
    return f"{CONTAINER_DISKS}/disk_{index}.img"


def overlay(volume: str) -> str:
    """What the guest writes over an image that stays as it is; gone with the pod."""
    return f"{EPHEMERAL}/disk-data/{volume}/disk.qcow2"


def empty_disk(volume: str) -> str:
    return f"{EMPTY_DISKS}/{volume}.qcow2"


def cloud_init_iso(kind: Literal["noCloud", "configdrive"], namespace: str, vm: str) -> str:
    return f"{EPHEMERAL}/cloud-init-data/{namespace}/{vm}/{kind}.iso"


def iso(kind: Literal["config-map", "secret", "downwardapi", "sysprep"], volume: str) -> str:
    """The files of a volume, made into an ISO."""
    return f"{PRIVATE}/{kind}-disks/{volume}.iso"


def mounted(kind: Literal["config-map", "secret", "downwardapi", "sysprep"], volume: str) -> str:
    """The directory where a volume's files are mounted, from which an ISO is made (KubeVirt's pkg/config).

    As a secret also the one that a cloud-init volume names.
    """
    return f"{PRIVATE}/{kind}/{volume}"


def is_own(place: Path) -> bool:
    """Whether there, below or above it, is what the launcher and QEMU rely on; `/var/run` is `/run`."""

    def real(path: Path) -> Path:
        return Path("/run") / path.relative_to("/var/run") if path.is_relative_to("/var/run") else path

    return any(real(place).is_relative_to(own) or own.is_relative_to(real(place)) for own in map(real, map(Path, _OWN)))


def virtiofs_socket(volume: str) -> str:
    return f"{VIRTIOFS}/{volume}.sock"


def credentials(secret: str) -> str:
    """The directory where a secret of accessCredentials is mounted. KubeVirt's is among those of volumes, by a name
    that a volume may have as well."""
    return f"{PRIVATE}/access-credentials/{secret}"


def image_volume(volume: str) -> str:
    """Where the image of a containerDisk is mounted, whole. KubeVirt's is not of a volume but of an index."""
    return f"/var/run/kubevirt/image-volumes/{volume}"


def below(root: Path, place: str) -> Path:
    """One of these places, or another absolute one, in what stands for the pod's file system."""
    return root / place.lstrip("/")
