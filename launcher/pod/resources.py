"""What the pod's container requests of its node: CPUs, memory, a unit for each device, requests of claims; and who
offers the devices.

As KubeVirt's pkg/virt-controller/services/renderresources.go has it, except for what memory.py says.
"""

import re
from collections.abc import Mapping
from typing import Any

from launcher.fields.quantity import parse_amount, written
from launcher.vm.devices import Devices
from launcher.vm.guest import Guest
from launcher.vm.memory.manifest import Resources
from launcher.vm.memory.pod import PodMemory
from launcher.vm.pod import PodNeeds
from launcher.vm.spec import Spec
from pci.resource import NODE_DEVICES
from pci.vendors import VENDORS_BELOW
from program.errors import UserError
from program.problem import Problem

#: Of a CPU's thousandths for each vCPU, where the manifest says nothing: KubeVirt's cpuAllocationRatio is 10.
_MILLICPU = 100
#: Megabytes for the pod's log, libvirt's files and what is made of secrets and the like (KubeVirt's ephemeral storage).
_EPHEMERAL_STORAGE = 50
_MEGABYTE = 10**6
_KUBEVIRTS = "devices.kubevirt.io"
_NVIDIAS = "nvidia.com/gpu"
#: What each vendor's device plugin for containers offers where nobody has renamed it: GPUs that the host's driver has.
_FOR_CONTAINERS: Mapping[str, str] = {
    _NVIDIAS: "NVIDIA's",
    "amd.com/gpu": "AMD's",
    "gpu.intel.com/i915": "Intel's",
    "gpu.intel.com/xe": "Intel's",
}
_EXTENDED = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def container_resources(
    spec: Spec, guest: Guest, needed: PodMemory, needs: PodNeeds, node_devices: str
) -> dict[str, Any]:
    """Return the container's `resources`. `node_devices` is the domain of the resources that are /dev/kvm and the like.

    UserError, by the manifest's path, for resources that a pod cannot have.
    """
    resources = spec.domain.resources
    requests, limits = _cpu(resources, guest)
    requests["memory"] = written(needed.request)
    if needed.limit is not None:
        limits["memory"] = written(needed.limit)
    if needed.hugepages:
        name = f"hugepages-{written(needed.page)}"
        requests[name] = limits[name] = written(needed.hugepages)
    for name, number in _devices(spec.domain.devices, needs, node_devices).items():
        requests[name] = limits[name] = str(number)
    _add_others(resources, requests, limits)
    claims = _claims(spec)
    return {
        "requests": dict(sorted(requests.items())),
        **({"limits": dict(sorted(limits.items()))} if limits else {}),
        **({"claims": claims} if claims else {}),
    }


def _cpu(resources: Resources, guest: Guest) -> tuple[dict[str, str], dict[str, str]]:
    """Return requests and limits."""
    request, limit, vcpus = resources.requests.get("cpu"), resources.limits.get("cpu"), guest.vcpus
    if guest.has_own_cpus:
        for where, amount in (("requests", request), ("limits", limit)):
            if amount is not None and amount.exact != vcpus:
                raise UserError(
                    f"spec.domain.resources.{where}.cpu",
                    f"{amount.text}, and the guest has {vcpus} vCPUs",
                    "with dedicatedCpuPlacement expected as many, or leave it out",
                )
        cpus = {"cpu": str(guest.pod_cpus)}
        return cpus, dict(cpus)
    if request is None and limit is None:
        return {"cpu": f"{_MILLICPU * vcpus}m"}, {}
    chosen = request or limit
    assert chosen is not None, "one of them is said"
    return {"cpu": chosen.text}, {"cpu": limit.text} if limit is not None else {}


def _devices(devices: Devices, needs: PodNeeds, node_devices: str) -> dict[str, int]:
    """Return the units of each resource: one for each entry of gpus and hostDevices, and the node's own devices."""
    units: dict[str, int] = {}
    for kind, entries in (("gpus", devices.gpus), ("hostDevices", devices.hostDevices)):
        for index, entry in enumerate(entries):
            if entry.deviceName is None:
                continue
            if not _EXTENDED.fullmatch(entry.deviceName):
                raise UserError(
                    f"spec.domain.devices.{kind}[{index}].deviceName",
                    f"{entry.deviceName!r} is no resource of a device plugin's",
                    "expected a domain and a name, like nvidia.com/GH100_H100_PCIE",
                )
            units[entry.deviceName] = units.get(entry.deviceName, 0) + 1
    for node_device in needs.node_devices:
        units[node_device.resource(node_devices)] = 1
    return units


def _add_others(resources: Resources, requests: dict[str, str], limits: dict[str, str]) -> None:
    """Add the manifest's other resources unchanged: they are between the pod and its node."""
    for where, theirs, ours in (("requests", resources.requests, requests), ("limits", resources.limits, limits)):
        for name, amount in theirs.items():
            if name in ("cpu", "memory", "ephemeral-storage"):
                continue
            if name in ours and amount.exact != parse_amount(ours[name]).exact:
                raise UserError(
                    f"spec.domain.resources.{where}.{name}",
                    f"{amount.text}, and the guest's devices and memory are {ours[name]}",
                    "leave it out",
                )
            ours.setdefault(name, amount.text)
    storage = "ephemeral-storage"
    requests[storage] = _with_ours(resources.request(storage) or resources.limit(storage) or 0)
    if (limit := resources.limit(storage)) is not None:
        limits[storage] = _with_ours(limit)
    for name, amount in resources.requests.items():
        # Kubernetes overcommits neither devices nor huge pages: their limit is their request.
        is_whole = "/" in name or name.startswith("hugepages-")
        if is_whole:
            limits.setdefault(name, amount.text)
        most = resources.limits.get(name, amount)
        if amount.exact > most.exact or (is_whole and amount.exact != most.exact):
            raise UserError(
                f"spec.domain.resources.requests.{name}",
                f"{amount.text} is {'not' if is_whole else 'more than'} the limit",
                f"expected {'' if is_whole else 'at most '}{most.text}, or another limit",
            )


def _with_ours(storage: int) -> str:
    """Return these bytes plus the launcher's own, in whole megabytes."""
    return f"{-(-storage // _MEGABYTE) + _EPHEMERAL_STORAGE}M"


def _claims(spec: Spec) -> list[dict[str, str]]:
    """Return the container's requests of claims. A claim from a template is this pod's alone, and is listed as a whole:
    it may have CPUs or a network function that no entry names. So is a claim that no entry names. Of a claim by name
    other pods may have other requests; with several of ours it is listed as a whole too, since the list's key is the
    claim's name (Kubernetes' ResourceRequirements)."""
    devices = spec.domain.devices
    requests: dict[str, list[str]] = {claim.name: [] for claim in spec.resourceClaims}
    for entry in (*devices.gpus, *devices.hostDevices):
        if entry.claimName is not None and entry.requestName is not None:
            requests[entry.claimName].append(entry.requestName)
    return [
        {"name": claim.name, "request": requests[claim.name][0]}
        if claim.resourceClaimName is not None and len(requests[claim.name]) == 1
        else {"name": claim.name}
        for claim in spec.resourceClaims
    ]


def resource_claims(spec: Spec) -> list[Mapping[str, str]]:
    """Return the pod's `resourceClaims`."""
    return [{name: value for name, value in vars(claim).items() if value is not None} for claim in spec.resourceClaims]


def waits_for(vm: str, pod: Mapping[str, Any], node_devices: str) -> str | None:
    """Return a sentence with what a node has to offer before this VM's pod runs; None if that is only CPUs and memory.

    The sentence also says who offers each resource, as far as its name shows: the pod's events do not. `pod` is the
    pod's spec. `node_devices` is the domain of the resources that are /dev/kvm and the like.
    """
    limits = pod["containers"][0]["resources"].get("limits", {})
    devices = [(resource, number) for resource, number in limits.items() if "/" in resource]
    if not devices:
        return None
    resources = ", ".join(
        f"{'' if number == '1' else f'{number} of '}{resource} ({_who(resource, node_devices)})"
        for resource, number in devices
    )
    return f"{vm}: is Pending until a node offers {resources}"


def for_containers(vm: str, pod: Mapping[str, Any]) -> tuple[Problem, ...]:
    """Return a problem for each resource of this VM's pod whose name means a GPU for containers. `pod` is the pod's
    spec."""
    limits = pod["containers"][0]["resources"].get("limits", {})
    return tuple(
        Problem(
            vm,
            f"asks for {resource}, the name of {whose} device plugin for containers, whose GPUs the host's driver has",
            f"write {'nvidia.com/pgpu, or ' * (resource == _NVIDIAS)}what the nodes offer to VMs: "
            "kubectl get nodes -o yaml has it below allocatable",
        )
        for resource in limits
        if (whose := _FOR_CONTAINERS.get(resource)) is not None
    )


def _who(resource: str, node_devices: str) -> str:
    domain, _, name = resource.partition("/")
    if resource in _FOR_CONTAINERS:
        return f"{_FOR_CONTAINERS[resource]} device plugin for containers does"
    if domain == NODE_DEVICES == node_devices:
        return f"gpu-plugin does, with node_devices: {{{name}: 110}} in its config"
    if domain == _KUBEVIRTS:
        return "KubeVirt does, on its own nodes"
    if domain == node_devices:
        return "by --node-devices"
    if domain in VENDORS_BELOW:
        return "gpu-plugin does, for cards of that name on vfio-pci"
    return "gpu-plugin does by a rule of its config, or another device plugin"
