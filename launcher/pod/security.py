"""As whom the container runs and what it may do: the least with which a VM of this kind starts.

Each line was found by leaving it out: docs/decisions/0009, and 0021 for what follows from it.
"""

from typing import Any

from launcher.manifest.spec import VirtualMachineInstance
from launcher.pod.memory import has_vfio, is_locked

#: KubeVirt's user and group of QEMU (pkg/util, NonRootUID), for whom disks are made that people bring along.
_QEMU = 107
#: What libvirt needs as root: to look at QEMU and to start it (virSetUIDGIDWithCaps in its virutil.c), though as whom
#: it is itself.
_LIBVIRT_AS_ROOT = ("DAC_OVERRIDE", "SETGID", "SETPCAP", "SETUID")
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
    # passt as root becomes nobody, with a capability that only a program of root's started without no_new_privs has.
    return {
        "allowPrivilegeEscalation": has_passt and _needs_root(vmi, block),
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], **({"add": added} if added else {})},
        "seccompProfile": _UNCONFINED if has_passt or _binds_memory(vmi) else {"type": "RuntimeDefault"},
        **({"appArmorProfile": _UNCONFINED} if has_passt else {}),
    }


def _needs_root(vmi: VirtualMachineInstance, block: frozenset[str]) -> bool:
    """Device nodes are root's in the container too, those of claims as well; so are directories of the node's, and real
    time. And libvirt looks for the file system of huge pages only as root (virQEMUDriverConfigNew)."""
    domain = vmi.spec.domain
    encrypted = domain.launchSecurity is not None and domain.launchSecurity.tdx is None  # /dev/sev
    host_disks = any(volume.hostDisk is not None for volume in vmi.spec.volumes)
    mounted_pages = domain.memory.hugepages is not None and not vmi.is_memfd
    devices = has_vfio(vmi) or bool(block) or encrypted
    return devices or host_disks or mounted_pages or domain.cpu.realtime is not None


def _capabilities(vmi: VirtualMachineInstance, block: frozenset[str]) -> list[str]:
    if not _needs_root(vmi, block):
        return []
    added = [*_LIBVIRT_AS_ROOT]
    if is_locked(vmi):
        added.append("SYS_RESOURCE")  # to raise what QEMU may lock: launcher.running
    if vmi.spec.domain.cpu.realtime is not None:
        added.append("SYS_NICE")  # for <vcpusched scheduler="fifo">
    return sorted(added)


def _binds_memory(vmi: VirtualMachineInstance) -> bool:
    return vmi.spec.domain.cpu.passes_numa_through or vmi.metadata.annotations.topology != "none"


def _sysctls(vmi: VirtualMachineInstance) -> dict[str, str]:
    """Of the pod's own network namespace; the kubelet counts them among the safe ones."""
    interfaces = vmi.spec.domain.devices.connected
    if not interfaces:
        return {}
    found = {"net.ipv4.ping_group_range": f"{_QEMU} {_QEMU}"}  # passt sends the guest's pings
    # Without a list all ports are forwarded.
    ports = [port.port for interface in interfaces for port in interface.ports]
    if any(not interface.ports for interface in interfaces) or min(ports) < _FIRST_FREE_PORT:
        found["net.ipv4.ip_unprivileged_port_start"] = "0"
    return dict(sorted(found.items()))
