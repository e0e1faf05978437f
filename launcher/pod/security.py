"""The container's user and rights: the least with which a VM of this kind starts, at each level of the Pod Security
Standards.

Every VM's processes are user 107's, without a capability. If the node has something for the VM that belongs to root,
the container starts as root, and `run` hands it over and becomes the user before it does anything else
(launcher.runtime.user). At the level restricted it starts as the user: the node's runtime has to give it the device
nodes and the memlock limit. Each line was found by leaving it out: docs/decisions/0009, 0026 and 0046.
"""

from collections.abc import Iterator
from enum import StrEnum
from pathlib import PurePosixPath
from typing import NamedTuple

from launcher.vm import paths
from launcher.vm.guest import Guest
from launcher.vm.memory.pod import is_locked
from launcher.vm.network.guest import PROTOCOLS, PasstAttachment, attached
from launcher.vm.plain import PodObject
from launcher.vm.spec import Spec
from program.errors import UserError
from program.problem import Problem

#: KubeVirt's user and group of QEMU (pkg/util, NonRootUID), for whom disks are made that people bring along.
_QEMU = 107
_TO_HAND_OVER = ("CHOWN", "SETGID", "SETUID")
#: Device nodes, as far as the container has them: VFIO's of groups and functions, its API's, and those of USB devices.
_HOST_DEVICES = ("/dev/vfio", "/dev/iommu", "/dev/bus/usb")
#: What many nodes let a group of theirs open, of which the container's user is not.
_SHARED = ("/dev/kvm", "/dev/vhost-net", "/dev/vhost-vsock")
_UNCONFINED = {"type": "Unconfined"}
#: Below the kubelet's directory of profiles: deploy/plugin/components/seccomp puts it there.
SECCOMP_PROFILE = "gpu-launcher/vm.json"
#: As deploy/node/apparmor calls it.
APPARMOR_PROFILE = "gpu-launcher"
_FIRST_FREE_PORT = 1024


class Level(StrEnum):
    """A level of the Pod Security Standards."""

    PRIVILEGED = "privileged"
    BASELINE = "baseline"
    RESTRICTED = "restricted"


class Confinement(NamedTuple):
    """The level that has to admit the pod; whether the nodes have this project's AppArmor profile; and the annotations
    that the pod may have below `privileged` besides the known ones (launcher.pod.metadata)."""

    level: Level = Level.PRIVILEGED
    has_apparmor: bool = False
    passed: tuple[str, ...] = ()


def refuse_above(level: Level, spec: Spec, guest: Guest) -> None:
    """Raise UserError, by the manifest's paths, for all fields that no pod of the level can have."""
    if level is not Level.PRIVILEGED and (found := [*_above_baseline(spec, guest)]):
        fix = "leave it out, or print the pod with --level privileged"
        wrong = f"which the Pod Security level {level} does not allow"
        raise UserError.of([Problem(path, f"{why}, {wrong}", fix) for path, why in found])


def _above_baseline(spec: Spec, guest: Guest) -> Iterator[tuple[str, str]]:
    for index, volume in enumerate(spec.volumes):
        if volume.hostDisk is not None:
            yield f"spec.volumes[{index}].hostDisk", "is a hostPath of the pod"
    if guest.realtime:
        yield "spec.domain.cpu.realtime", "takes the capability SYS_RESOURCE, to raise rtprio"
    for name, probe in (("livenessProbe", spec.livenessProbe), ("readinessProbe", spec.readinessProbe)):
        if probe is not None and probe.knocks is not None and probe.knocks.host:
            action = "httpGet" if probe.httpGet is not None else "tcpSocket"
            yield f"spec.{name}.{action}.host", "has the kubelet ask another host"


def pod_security(spec: Spec, guest: Guest, block: frozenset[str], level: Level) -> PodObject:
    """Return the pod's `securityContext`. `block`: the volumes whose claim is a block device."""
    root = bool(handover(spec, guest, block, level))
    sysctls = _sysctls(spec)
    return {
        "runAsUser": 0 if root else _QEMU,
        "runAsGroup": _QEMU,
        "runAsNonRoot": not root,
        "fsGroup": _QEMU,
        "fsGroupChangePolicy": "OnRootMismatch",
        **({"sysctls": [{"name": name, "value": value} for name, value in sysctls.items()]} if sysctls else {}),
    }


def container_security(spec: Spec, guest: Guest, block: frozenset[str], confinement: Confinement) -> PodObject:
    """Return the container's `securityContext`."""
    level = confinement.level
    added = [*_TO_HAND_OVER, *(["SYS_RESOURCE"] if _limits(spec, guest, level) else [])]
    has_passt, binds_memory = bool(attached(spec)), guest.passes_numa_through or guest.topology != "none"
    # passt makes a user namespace and mounts in it, to lock itself up there; QEMU binds memory to NUMA nodes. The
    # runtimes' seccomp profiles keep both from whoever has no capability, their AppArmor profiles all mounts.
    ours = _UNCONFINED if level is Level.PRIVILEGED else {"type": "Localhost", "localhostProfile": SECCOMP_PROFILE}
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], **({"add": added} if handover(spec, guest, block, level) else {})},
        "seccompProfile": ours if has_passt or binds_memory else {"type": "RuntimeDefault"},
        **(_apparmor(confinement) if has_passt else {}),
    }


def handover(spec: Spec, guest: Guest, block: frozenset[str], level: Level) -> list[str]:
    """Return the arguments with which `run`, started as root, becomes the user; [] if the container needs no root."""
    if level is Level.RESTRICTED:
        return []
    nodes, limits = _nodes(spec, guest, block), _limits(spec, guest, level)
    if not (nodes or limits):
        return []
    return [
        f"--user={_QEMU}",
        *(f"--give={path}" for path in (*nodes, *_SHARED)),
        *(f"--raise={limit}" for limit in limits),
    ]


def _apparmor(confinement: Confinement) -> PodObject:
    """Return the AppArmor profile of a container with passt; {} means the runtime's, if the node has AppArmor."""
    if confinement.has_apparmor:
        return {"appArmorProfile": {"type": "Localhost", "localhostProfile": APPARMOR_PROFILE}}
    return {"appArmorProfile": _UNCONFINED} if confinement.level is Level.PRIVILEGED else {}


def _nodes(spec: Spec, guest: Guest, block: frozenset[str]) -> list[str]:
    """Return the container's paths that belong to root, as on the node: device nodes, claims' among them; and host
    disks that the kubelet makes."""
    needs_dev_sev = guest.confidentiality is not None and guest.confidentiality.needs_dev_sev
    host_disks = ((volume.name, volume.hostDisk) for volume in spec.volumes if volume.hostDisk is not None)
    return [
        *(_HOST_DEVICES if spec.domain.devices.entries else ()),
        *(["/dev/sev"] if needs_dev_sev else ()),
        *(paths.block_device(volume.name) for volume in spec.volumes if volume.name in block),
        *(
            paths.disk_image(name, PurePosixPath(disk.path).name)
            for name, disk in host_disks
            if disk.type == "DiskOrCreate"
        ),
    ]


def _limits(spec: Spec, guest: Guest, level: Level) -> list[str]:
    """Return the limits that the container raises, with SYS_RESOURCE."""
    if level is not Level.PRIVILEGED:
        return []
    return [
        *(["memlock"] if is_locked(spec.domain.devices, guest) else ()),
        *(["rtprio"] if guest.realtime else ()),
    ]


def _sysctls(spec: Spec) -> dict[str, str]:
    """Return sysctls of the pod's own network namespace, which the kubelet allows as safe."""
    cards = attached(spec)
    if not cards:
        return {}
    sysctls = {"net.ipv4.ping_group_range": f"{_QEMU} {_QEMU}"}  # passt sends the guest's pings
    by_passt = [card.to.forwards for card in cards if isinstance(card.to, PasstAttachment)]
    ranges = [ports for forwards in by_passt for protocol in PROTOCOLS for ports in forwards.ranges(protocol)]
    if any(start < _FIRST_FREE_PORT for start, _ in ranges):
        sysctls["net.ipv4.ip_unprivileged_port_start"] = "0"
    return dict(sorted(sysctls.items()))
