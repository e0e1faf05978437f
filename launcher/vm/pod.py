"""What each thing of a VM needs of its pod, beside memory (launcher.vm.memory.pod) and mounts, which are one list in
their order (launcher.vm.volumes.pod)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from launcher.vm import paths
from launcher.vm.guest import Guest
from launcher.vm.memory.pod import is_locked
from launcher.vm.network.guest import PROTOCOLS, PasstAttachment, attached
from launcher.vm.network.multus import second_networks
from launcher.vm.spec import Spec
from pci.resource import NodeDevice

#: KubeVirt's user and group of QEMU (pkg/util, NonRootUID), for whom disks are made that people bring along.
QEMU = 107
#: Device nodes, as far as the container has them: VFIO's of groups and functions, its API's, and those of USB devices.
_HOST_DEVICES = ("/dev/vfio", "/dev/iommu", "/dev/bus/usb")
_FIRST_FREE_PORT = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class PodNeeds:
    """`node_devices`: the node's own devices, which any number of pods may share. `of_root`: the container's paths that
    belong to root, as on the node. `limits`: those that the container raises, with SYS_RESOURCE. `sysctls`: of the
    pod's own network namespace, which the kubelet allows as safe. `own_seccomp`, `own_apparmor`: whether the runtime's
    profile has to give way. `above_baseline`: what the Pod Security level baseline does not allow, by the manifest's
    path, with the reason."""

    node_devices: tuple[NodeDevice, ...] = ()
    of_root: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    sysctls: Mapping[str, str] = field(default_factory=dict)
    own_seccomp: bool = False
    own_apparmor: bool = False
    above_baseline: tuple[tuple[str, str], ...] = ()


def pod_needs(spec: Spec, guest: Guest, block: frozenset[str]) -> PodNeeds:
    """Return the needs of all things together. `block`: the volumes whose claim is a block device."""
    things = (
        _cards(spec),
        _security(guest),
        _volumes(spec, block),
        _memory(spec, guest),
        _cpu(guest),
        _network(spec),
        _peripherals(spec),
        _lifecycle(spec),
    )
    return PodNeeds(
        node_devices=tuple(device for thing in things for device in thing.node_devices),
        of_root=tuple(path for thing in things for path in thing.of_root),
        limits=tuple(limit for thing in things for limit in thing.limits),
        sysctls={name: value for thing in things for name, value in thing.sysctls.items()},
        own_seccomp=any(thing.own_seccomp for thing in things),
        own_apparmor=any(thing.own_apparmor for thing in things),
        above_baseline=tuple(each for thing in things for each in thing.above_baseline),
    )


def _cards(spec: Spec) -> PodNeeds:
    return PodNeeds(of_root=_HOST_DEVICES if spec.domain.devices.entries else ())


def _security(guest: Guest) -> PodNeeds:
    if guest.confidentiality is None or not guest.confidentiality.needs_dev_sev:
        return PodNeeds()
    return PodNeeds(node_devices=(NodeDevice.SEV,), of_root=("/dev/sev",))


def _volumes(spec: Spec, block: frozenset[str]) -> PodNeeds:
    """Claims' device nodes are root's, and host disks that the kubelet makes."""
    host_disks = [(index, volume.name, volume.hostDisk) for index, volume in enumerate(spec.volumes) if volume.hostDisk]
    return PodNeeds(
        of_root=(
            *(paths.block_device(volume.name) for volume in spec.volumes if volume.name in block),
            *(
                paths.disk_image(name, PurePosixPath(disk.path).name)
                for _, name, disk in host_disks
                if disk.type == "DiskOrCreate"
            ),
        ),
        above_baseline=tuple(
            (f"spec.volumes[{index}].hostDisk", "is a hostPath of the pod") for index, _, _ in host_disks
        ),
    )


def _memory(spec: Spec, guest: Guest) -> PodNeeds:
    return PodNeeds(limits=("memlock",) if is_locked(spec.domain.devices, guest) else ())


def _cpu(guest: Guest) -> PodNeeds:
    why = ("spec.domain.cpu.realtime", "takes the capability SYS_RESOURCE, to raise rtprio")
    return PodNeeds(
        # Who allows QEMU's own CPU wants to run where no /dev/kvm is offered.
        node_devices=() if guest.allows_emulation else (NodeDevice.KVM,),
        limits=("rtprio",) if guest.realtime else (),
        # QEMU binds memory to NUMA nodes, from which the runtimes' profiles keep whoever has no capability.
        own_seccomp=guest.passes_numa_through or guest.topology != "none",
        above_baseline=(why,) if guest.realtime else (),
    )


def _network(spec: Spec) -> PodNeeds:
    cards = attached(spec)
    sysctls = {}
    if cards:
        sysctls["net.ipv4.ping_group_range"] = f"{QEMU} {QEMU}"  # passt sends the guest's pings
    by_passt = [card.to.forwards for card in cards if isinstance(card.to, PasstAttachment)]
    ranges = [ports for forwards in by_passt for protocol in PROTOCOLS for ports in forwards.ranges(protocol)]
    if any(start < _FIRST_FREE_PORT for start, _ in ranges):
        sysctls["net.ipv4.ip_unprivileged_port_start"] = "0"
    # Whether a CNI makes a tap, which QEMU opens by /dev/net/tun, is not known before the pod is. passt needs none.
    has_bridge = any(network.interface.method == "bridge" for network in second_networks(spec))
    return PodNeeds(
        node_devices=(NodeDevice.TUN,) if has_bridge else (),
        sysctls=sysctls,
        # passt makes a user namespace and mounts in it, to lock itself up there. The runtimes' seccomp profiles keep
        # that from whoever has no capability, their AppArmor profiles all mounts.
        own_seccomp=bool(cards),
        own_apparmor=bool(cards),
    )


def _peripherals(spec: Spec) -> PodNeeds:
    return PodNeeds(node_devices=(NodeDevice.VHOST_VSOCK,) if spec.domain.devices.autoattachVSOCK else ())


def _lifecycle(spec: Spec) -> PodNeeds:
    probes = (("livenessProbe", spec.livenessProbe), ("readinessProbe", spec.readinessProbe))
    return PodNeeds(
        above_baseline=tuple(
            (
                f"spec.{name}.{'httpGet' if probe.httpGet is not None else 'tcpSocket'}.host",
                "has the kubelet ask another host",
            )
            for name, probe in probes
            if probe is not None and probe.knocks is not None and probe.knocks.host
        )
    )
