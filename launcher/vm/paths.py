"""Where a VM's files are in its pod: in KubeVirt's places, which users know. KubeVirt's handler works from outside the
pod, so the files that replace it are below /run/gpu-launcher or /etc/gpu-launcher.

Sources, in KubeVirt: pkg/storage/volumepath, pkg/host-disk, pkg/container-disk, pkg/ephemeral-disk, pkg/emptydisk,
pkg/cloud-init, pkg/config. Names of volumes are DNS labels, so no name leads out of its directory.

The pod mounts nothing below a directory that the guest's user can write (docs/decisions/0007-the-pod.md): the launcher
writes to directories of its own, and what libvirt or a domain looks for among them is a link to its mount.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

#: This VM's own files: images that are made for it, and mounts of the pod.
PRIVATE = "/var/run/kubevirt-private"
#: Files that end with the pod: overlays, and cloud-init's images.
EPHEMERAL = "/var/run/kubevirt-ephemeral-disks"
#: In there, what a guest writes over images.
OVERLAYS = f"{EPHEMERAL}/disk-data"
EMPTY_DISKS = "/var/run/libvirt/empty-disks"
#: The disks of images, and below it the image of kernelBoot.
CONTAINER_DISKS = "/var/run/kubevirt/container-disks"

#: The manifest, from the pod's ConfigMap.
MANIFEST = "/etc/gpu-launcher/vm.yaml"
#: Multus' annotation about the pod's second networks.
NETWORK_STATUS = "/etc/gpu-launcher-networks/status"
#: The root of libvirt's embedded driver; short, since sockets below it may have 107 bytes in all.
LIBVIRT_ROOT = "/run/gpu-launcher"
#: The config that a guest reads by Ignition: a file, since its name is all that QEMU's command line is to have of it.
IGNITION = f"{LIBVIRT_ROOT}/ignition/config.ign"
#: Exists exactly while the guest runs, for the pod's readiness probe.
READY = "/run/gpu-launcher/ready"
#: The control socket, and below it, in a directory for each VM, the sockets of its console and screen.
SOCKETS = "/var/run/kubevirt/sockets"
#: Where the launcher serves: where KubeVirt's has its own socket (cmd/virt-launcher).
CONTROL_SOCKET = f"{SOCKETS}/launcher-sock"
#: The control socket of a launcher with another root of libvirt's driver than a pod's, below that root.
SOCKET_IN_ROOT = "sockets/launcher-sock"
#: Where the domain has the image of kernelBoot, whole: a link to its mount. The directory is KubeVirt's
#: (pkg/container-disk, GetKernelBootArtifactPathFromLauncherView), which has just the two files in it.
KERNEL_BOOT = f"{CONTAINER_DISKS}/kernel-boot"
KERNEL_IMAGE = "/var/run/kubevirt/kernel-image"
#: Where the pod mounts the volume for EFI's variables (KubeVirt's pkg/util, PathForNVram of a VM without root).
NVRAM = f"{PRIVATE}/libvirt/qemu/nvram"
#: Where libvirt's embedded driver has the state of TPMs, a directory for each domain's UUID: for a persistent one a
#: link to where the pod mounts its volume.
SWTPM = f"{LIBVIRT_ROOT}/lib/swtpm"
TPM_STATE = "/var/lib/swtpm"
#: Where swtpm's tools keep the keys with which they sign a TPM's certificates (swtpm-localca.conf(5)).
SWTPM_CA = "/var/lib/swtpm-localca"
#: The sockets of virtiofsd, one for each volume: KubeVirt's (pkg/virtiofs). A volume's name of 63 characters just fits
#: into the 107 bytes of a socket's path.
VIRTIOFS = "/var/run/kubevirt/virtiofs-containers"
#: Where Debian and Fedora have this program, which is not on users' PATH.
VIRTIOFSD = "/usr/libexec/virtiofsd"
#: The claim for a suspended guest's memory.
SUSPENDED = "/var/lib/gpu-launcher-suspended"
#: Huge pages, where they don't come from memfd: the kernel's file system for them.
HUGEPAGES = "/dev/hugepages"
#: Where the service account's token is mounted (KubeVirt's pkg/config, ServiceAccountSourceDir).
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_OWN = (
    *("/dev", "/proc", "/sys", "/tmp", "/etc/gpu-launcher", "/var/run/kubevirt", "/var/run/libvirt"),  # noqa: S108
    *(PRIVATE, EPHEMERAL, LIBVIRT_ROOT, SWTPM_CA, TPM_STATE, SUSPENDED),
)
#: The one ISO of the service account's token; a VM has at most one such volume.
SERVICE_ACCOUNT_ISO = f"{PRIVATE}/service-account-disk/service-account.iso"
#: The disk with the host's metrics, beside the ISOs of downwardAPI (KubeVirt's pkg/config, DownwardMetricDisk).
DOWNWARD_METRICS = f"{PRIVATE}/downwardapi-disks/vhostmd0"


def disk_image(volume: str, file: str = "disk.img") -> str:
    """Return the disk in a claim with a file system, or a hostDisk's `file`, where the volume is mounted."""
    return f"{PRIVATE}/vmi-disks/{volume}/{file}"


def block_device(volume: str) -> str:
    """Return the device of a claim of volumeMode Block."""
    return f"/dev/{volume}"


def claimed_disk(volume: str, *, is_block: bool) -> str:
    """Return the disk of a claim of either volumeMode."""
    return block_device(volume) if is_block else disk_image(volume)


def container_disk(index: int) -> str:
    """Return the disk from a containerDisk's image; `index` counts all volumes, from 0."""
    return f"{CONTAINER_DISKS}/disk_{index}.img"


def overlay(volume: str) -> str:
    """Return the file for the guest's writes over an image that stays as it is."""
    return f"{OVERLAYS}/{volume}/disk.qcow2"


def empty_disk(volume: str) -> str:
    return f"{EMPTY_DISKS}/{volume}.qcow2"


def cloud_init_iso(kind: Literal["noCloud", "configdrive"], namespace: str, vm: str) -> str:
    return f"{EPHEMERAL}/cloud-init-data/{namespace}/{vm}/{kind}.iso"


def iso(kind: Literal["config-map", "secret", "downwardapi", "sysprep"], volume: str) -> str:
    """Return the ISO that has the files of a volume."""
    return f"{PRIVATE}/{kind}-disks/{volume}.iso"


def mounted(kind: Literal["config-map", "secret", "downwardapi", "sysprep"], volume: str) -> str:
    """Return where the files of a volume with an ISO are mounted (KubeVirt's pkg/config). A secret may also be that of
    a cloud-init volume."""
    return f"{PRIVATE}/{kind}/{volume}"


def is_own(place: Path) -> bool:
    """Return whether the launcher or QEMU relies on a file at, below or above this place; `/var/run` is `/run`."""

    def real(path: Path) -> Path:
        return Path("/run") / path.relative_to("/var/run") if path.is_relative_to("/var/run") else path

    return any(real(place).is_relative_to(own) or own.is_relative_to(real(place)) for own in map(real, map(Path, _OWN)))


def virtiofs_socket(volume: str) -> str:
    return f"{VIRTIOFS}/{volume}.sock"


def credentials(secret: str) -> str:
    """Return where a secret of accessCredentials is mounted. KubeVirt mounts it among volumes, and one of these may
    have the same name."""
    return f"{PRIVATE}/access-credentials/{secret}"


def image_volume(volume: str) -> str:
    """Return where the whole image of a containerDisk is mounted; KubeVirt has an index in place of the volume."""
    return f"/var/run/kubevirt/image-volumes/{volume}"


#: Where root makes directories for a VM's user that has none of its own, below them by its number.
RUN_OF_USERS, STATE_OF_USERS = Path(LIBVIRT_ROOT), Path("/var/lib/gpu-launcher")


def runtime_directory(environ: Mapping[str, str], user: int) -> Path | None:
    """Return where each VM of this user has a directory while it runs without a pod; None if there is no such place.
    (XDG Base Directory Specification; sudo sets no XDG_RUNTIME_DIR.)"""
    place = environ.get("XDG_RUNTIME_DIR") or ("/run" if user == 0 else "")
    return Path(place, "gpu-launcher") if place.startswith("/") else None


def state_directory(environ: Mapping[str, str]) -> Path:
    """Return where each VM of this user, without a pod, has a directory for files that outlive it."""
    place = environ.get("XDG_STATE_HOME", "")
    # The specification has relative paths ignored.
    return Path(place if place.startswith("/") else Path(environ.get("HOME", "/root"), ".local/state"), "gpu-launcher")


def below(root: Path, place: str) -> Path:
    """Return an absolute path below the directory that stands for the pod's file system."""
    return root / place.lstrip("/")
