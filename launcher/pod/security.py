"""As whom the container runs and what it may do: the least with which a VM of this kind starts.

Every VM's processes are user 107's, without a capability. Where something on the node is root's, the container starts
as root, and `run` hands that over and becomes the user before it does anything else (launcher.runtime.user).
Each line was found by leaving it out: docs/decisions/0009 and 0026.
"""

from pathlib import PurePosixPath

from launcher import paths
from launcher.guest import Guest
from launcher.manifest.spec import Spec
from launcher.network.attachments import PROTOCOLS, PasstAttachment, attached
from launcher.pod.memory import is_locked
from launcher.pod.plain import PodObject

#: KubeVirt's user and group of QEMU (pkg/util, NonRootUID), for whom disks are made that people bring along.
_QEMU = 107
_TO_HAND_OVER = ("CHOWN", "SETGID", "SETUID")
#: Device nodes, as far as the container has them: VFIO's of groups and functions, its API's, and those of USB devices.
_HOST_DEVICES = ("/dev/vfio", "/dev/iommu", "/dev/bus/usb")
#: What many nodes let a group of theirs open, of which the container's user is not.
_SHARED = ("/dev/kvm", "/dev/vhost-net", "/dev/vhost-vsock")
_UNCONFINED = {"type": "Unconfined"}
_FIRST_FREE_PORT = 1024


def pod_security(spec: Spec, guest: Guest, block: frozenset[str]) -> PodObject:
    """The pod's `securityContext`. `block`: the volumes whose claim is a block device."""
    root = bool(handover(spec, guest, block))
    sysctls = _sysctls(spec)
    return {
        "runAsUser": 0 if root else _QEMU,
        "runAsGroup": _QEMU,
        "runAsNonRoot": not root,
        "fsGroup": _QEMU,
        "fsGroupChangePolicy": "OnRootMismatch",
        **({"sysctls": [{"name": name, "value": value} for name, value in sysctls.items()]} if sysctls else {}),
    }


def container_security(spec: Spec, guest: Guest, block: frozenset[str]) -> PodObject:
    """The container's `securityContext`."""
    added = _capabilities(spec, guest, block)
    has_passt = bool(attached(spec))
    # passt makes a user namespace and mounts in it, to lock itself up there; QEMU binds memory to NUMA nodes. The
    # runtimes' seccomp profiles keep both from whoever has no capability, their AppArmor profiles all mounts.
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], **({"add": added} if added else {})},
        "seccompProfile": _UNCONFINED if has_passt or _binds_memory(guest) else {"type": "RuntimeDefault"},
        **({"appArmorProfile": _UNCONFINED} if has_passt else {}),
    }


def handover(spec: Spec, guest: Guest, block: frozenset[str]) -> list[str]:
    """The arguments of `run` by which a container that starts as root becomes the user; empty where it starts as it."""
    nodes, limits = _nodes(spec, guest, block), _limits(spec, guest)
    if not (nodes or limits):
        return []
    return [
        f"--user={_QEMU}",
        *(f"--give={path}" for path in (*nodes, *_SHARED)),
        *(f"--raise={limit}" for limit in limits),
    ]


def _nodes(spec: Spec, guest: Guest, block: frozenset[str]) -> list[str]:
    """What is root's in the container, since it is on the node: device nodes, also those of claims, and host disks."""
    needs_dev_sev = guest.confidentiality is not None and guest.confidentiality.needs_dev_sev
    nodes = [
        *(_HOST_DEVICES if spec.domain.devices.entries else ()),
        *(["/dev/sev"] if needs_dev_sev else ()),
        *(paths.block_device(volume.name) for volume in spec.volumes if volume.name in block),
    ]
    for volume in spec.volumes:
        if volume.hostDisk is not None:
            image = PurePosixPath(paths.disk_image(volume.name, PurePosixPath(volume.hostDisk.path).name))
            nodes.append(str(image))
    return nodes


def _limits(spec: Spec, guest: Guest) -> list[str]:
    return [
        *(["memlock"] if is_locked(spec.domain.devices, guest) else ()),
        *(["rtprio"] if guest.realtime else ()),
    ]


def _capabilities(spec: Spec, guest: Guest, block: frozenset[str]) -> list[str]:
    if not handover(spec, guest, block):
        return []
    return [*_TO_HAND_OVER, *(["SYS_RESOURCE"] if _limits(spec, guest) else [])]


def _binds_memory(guest: Guest) -> bool:
    return guest.passes_numa_through or guest.topology != "none"


def _sysctls(spec: Spec) -> dict[str, str]:
    """Of the pod's own network namespace; the kubelet counts them among the safe ones."""
    cards = attached(spec)
    if not cards:
        return {}
    sysctls = {"net.ipv4.ping_group_range": f"{_QEMU} {_QEMU}"}  # passt sends the guest's pings
    by_passt = [card.to.forwards for card in cards if isinstance(card.to, PasstAttachment)]
    ranges = [ports for forwards in by_passt for protocol in PROTOCOLS for ports in forwards.ranges(protocol)]
    if any(start < _FIRST_FREE_PORT for start, _ in ranges):
        sysctls["net.ipv4.ip_unprivileged_port_start"] = "0"
    return dict(sorted(sysctls.items()))
