"""As whom the container runs and what it may do: the least with which a VM of this kind starts.

Every VM's processes are user 107's, without a capability. Where something on the node is root's, the container starts
as root, and `run` hands that over and becomes the user before it does anything else (launcher.running.user).
Each line was found by leaving it out: docs/decisions/0009 and 0026.
"""

from pathlib import PurePosixPath
from typing import Any

from launcher import paths
from launcher.manifest.spec import VirtualMachineInstance
from launcher.network.attachments import PROTOCOLS, attached
from launcher.pod.memory import has_vfio, is_locked

#: KubeVirt's user and group of QEMU (pkg/util, NonRootUID), for whom disks are made that people bring along.
_QEMU = 107
_TO_HAND_OVER = ("CHOWN", "SETGID", "SETUID")
#: Device nodes, as far as the container has them: VFIO's of groups and functions, its API's, and those of USB devices.
_HOST_DEVICES = ("/dev/vfio", "/dev/iommu", "/dev/bus/usb")
#: What many nodes let a group of theirs open, of which the container's user is not.
_SHARED = ("/dev/kvm", "/dev/vhost-net", "/dev/vhost-vsock")
_UNCONFINED = {"type": "Unconfined"}
_FIRST_FREE_PORT = 1024

Object = dict[str, Any]


def pod_security(vmi: VirtualMachineInstance, block: frozenset[str]) -> Object:
    """The pod's `securityContext`. `block`: the volumes whose claim is a block device."""
    root = _needs_root(vmi, block)
    sysctls = _sysctls(vmi)
    return {
        "runAsUser": 0 if root else _QEMU,
        "runAsGroup": _QEMU,
        "runAsNonRoot": not root,
        "fsGroup": _QEMU,
        "fsGroupChangePolicy": "OnRootMismatch",
        **({"sysctls": [{"name": name, "value": value} for name, value in sysctls.items()]} if sysctls else {}),
    }


def container_security(vmi: VirtualMachineInstance, block: frozenset[str]) -> Object:
    """The container's `securityContext`."""
    added = _capabilities(vmi, block)
    has_passt = bool(vmi.spec.domain.devices.connected)
    # passt makes a user namespace and mounts in it, to lock itself up there; QEMU binds memory to NUMA nodes. The
    # runtimes' seccomp profiles keep both from whoever has no capability, their AppArmor profiles all mounts.
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], **({"add": added} if added else {})},
        "seccompProfile": _UNCONFINED if has_passt or _binds_memory(vmi) else {"type": "RuntimeDefault"},
        **({"appArmorProfile": _UNCONFINED} if has_passt else {}),
    }


def handover(vmi: VirtualMachineInstance, block: frozenset[str]) -> list[str]:
    """The arguments of `run` by which a container that starts as root becomes the user; empty where it starts as it."""
    given = _given(vmi, block)
    if not _needs_root(vmi, block):
        return []
    return [
        f"--user={_QEMU}",
        *(f"--give={path}" for path in (*given, *_SHARED)),
        *(f"--raise={limit}" for limit in _limits(vmi)),
    ]


def _needs_root(vmi: VirtualMachineInstance, block: frozenset[str]) -> bool:
    return bool(_given(vmi, block) or _limits(vmi))


def _given(vmi: VirtualMachineInstance, block: frozenset[str]) -> list[str]:
    """What is root's in the container, since it is on the node: device nodes, also those of claims, and host disks."""
    security = vmi.spec.domain.launchSecurity
    encrypted = security is not None and security.tdx is None
    nodes = [
        *(_HOST_DEVICES if has_vfio(vmi) else ()),
        *(["/dev/sev"] if encrypted else ()),
        *(paths.block_device(volume.name) for volume in vmi.spec.volumes if volume.name in block),
    ]
    for volume in vmi.spec.volumes:
        if volume.hostDisk is not None:
            image = PurePosixPath(paths.disk_image(volume.name, PurePosixPath(volume.hostDisk.path).name))
            # To make it there takes the directory; a file that is there is mounted alone.
            nodes += [*([str(image.parent)] if volume.hostDisk.type == "DiskOrCreate" else ()), str(image)]
    return nodes


def _limits(vmi: VirtualMachineInstance) -> list[str]:
    return [
        *(["memlock"] if is_locked(vmi) else ()),
        *(["rtprio"] if vmi.spec.domain.cpu.realtime is not None else ()),
    ]


def _capabilities(vmi: VirtualMachineInstance, block: frozenset[str]) -> list[str]:
    if not _needs_root(vmi, block):
        return []
    return [*_TO_HAND_OVER, *(["SYS_RESOURCE"] if _limits(vmi) else [])]


def _binds_memory(vmi: VirtualMachineInstance) -> bool:
    return vmi.spec.domain.cpu.passes_numa_through or vmi.metadata.annotations.topology != "none"


def _sysctls(vmi: VirtualMachineInstance) -> dict[str, str]:
    """Of the pod's own network namespace; the kubelet counts them among the safe ones."""
    cards = attached(vmi.spec)
    if not cards:
        return {}
    found = {"net.ipv4.ping_group_range": f"{_QEMU} {_QEMU}"}  # passt sends the guest's pings
    ranges = [ports for card in cards for protocol in PROTOCOLS for ports in card.to.forwards.ranges(protocol)]
    if min(start for start, _ in ranges) < _FIRST_FREE_PORT:
        found["net.ipv4.ip_unprivileged_port_start"] = "0"
    return dict(sorted(found.items()))
