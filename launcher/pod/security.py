"""The container's user and rights: the least with which a VM of this kind starts, at each level of the Pod Security
Standards.

Every VM's processes are user 107's, without a capability. If the node has something for the VM that belongs to root,
the container starts as root, and `run` hands it over and becomes the user before it does anything else
(launcher.runtime.user). At the level restricted it starts as the user: the node's runtime has to give it the device
nodes and the memlock limit. Each line was found by leaving it out:
docs/decisions/0008-users-and-security-levels.md.
"""

from enum import StrEnum
from typing import NamedTuple

from launcher.vm.plain import PodObject
from launcher.vm.pod import QEMU, PodNeeds
from program.errors import UserError
from program.problem import Problem

_TO_HAND_OVER = ("CHOWN", "SETGID", "SETUID")
#: What many nodes let a group of theirs open, of which the container's user is not.
_SHARED = ("/dev/kvm", "/dev/vhost-net", "/dev/vhost-vsock")
_UNCONFINED = {"type": "Unconfined"}
#: Below the kubelet's directory of profiles: deploy/plugin/components/seccomp puts it there.
SECCOMP_PROFILE = "gpu-launcher/vm.json"
#: As deploy/node/apparmor calls it.
APPARMOR_PROFILE = "gpu-launcher"


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


def refuse_above(level: Level, needs: PodNeeds) -> None:
    """Raise UserError, by the manifest's paths, for all fields that no pod of the level can have."""
    if level is not Level.PRIVILEGED and needs.above_baseline:
        fix = "leave it out, or print the pod with --level privileged"
        wrong = f"which the Pod Security level {level} does not allow"
        raise UserError.of([Problem(path, f"{why}, {wrong}", fix) for path, why in needs.above_baseline])


def pod_security(needs: PodNeeds, level: Level) -> PodObject:
    """Return the pod's `securityContext`."""
    root = bool(handover(needs, level))
    sysctls = [{"name": name, "value": value} for name, value in sorted(needs.sysctls.items())]
    return {
        "runAsUser": 0 if root else QEMU,
        "runAsGroup": QEMU,
        "runAsNonRoot": not root,
        "fsGroup": QEMU,
        "fsGroupChangePolicy": "OnRootMismatch",
        **({"sysctls": sysctls} if sysctls else {}),
    }


def container_security(needs: PodNeeds, confinement: Confinement) -> PodObject:
    """Return the container's `securityContext`."""
    level = confinement.level
    added = [*_TO_HAND_OVER, *(["SYS_RESOURCE"] if _limits(needs, level) else [])]
    ours = _UNCONFINED if level is Level.PRIVILEGED else {"type": "Localhost", "localhostProfile": SECCOMP_PROFILE}
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], **({"add": added} if handover(needs, level) else {})},
        "seccompProfile": ours if needs.own_seccomp else {"type": "RuntimeDefault"},
        **(_apparmor(confinement) if needs.own_apparmor else {}),
    }


def handover(needs: PodNeeds, level: Level) -> list[str]:
    """Return the arguments with which `run`, started as root, becomes the user; [] if the container needs no root."""
    limits = _limits(needs, level)
    if level is Level.RESTRICTED or not (needs.of_root or limits):
        return []
    return [
        f"--user={QEMU}",
        *(f"--give={path}" for path in (*needs.of_root, *_SHARED)),
        *(f"--raise={limit}" for limit in limits),
    ]


def _apparmor(confinement: Confinement) -> PodObject:
    """Return the AppArmor profile of a container with passt; {} means the runtime's, if the node has AppArmor."""
    if confinement.has_apparmor:
        return {"appArmorProfile": {"type": "Localhost", "localhostProfile": APPARMOR_PROFILE}}
    return {"appArmorProfile": _UNCONFINED} if confinement.level is Level.PRIVILEGED else {}


def _limits(needs: PodNeeds, level: Level) -> tuple[str, ...]:
    """Return the limits that the container raises, for which it has SYS_RESOURCE."""
    return needs.limits if level is Level.PRIVILEGED else ()
