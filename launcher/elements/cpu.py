"""<cpu> and the number of vCPUs."""

from lxml.builder import E
from lxml.etree import _Element as Element

from launcher.elements.features import needed_of_the_cpu
from launcher.facts import Facts
from launcher.manifest.cpu import CPU
from launcher.manifest.spec import Domain, VirtualMachineInstance

_HOST_MODES = ("host-model", "host-passthrough")


def topology(domain: Domain) -> tuple[int, int, int]:
    """Sockets, cores and threads, each at least 1.

    Where the manifest says none of them, the pod's CPU request becomes sockets (KubeVirt pkg/virt-launcher/virtwrap/
    converter/vcpu, GetCPUTopology): its limit first, then its request.
    """
    said = domain.cpu
    if not (said.sockets or said.cores or said.threads):
        cpus = domain.resources.limits.get("cpu") or domain.resources.requests.get("cpu")
        return (cpus or 1, 1, 1)
    return (said.sockets or 1, said.cores or 1, said.threads or 1)


def vcpus(domain: Domain) -> int:
    sockets, cores, threads = topology(domain)
    return sockets * cores * threads


def cpu(vmi: VirtualMachineInstance, facts: Facts) -> Element:
    domain = vmi.spec.domain
    sockets, cores, threads = topology(domain)
    element = _model(domain.cpu)
    element.append(E.topology(sockets=str(sockets), cores=str(cores), threads=str(threads)))
    needed = needed_of_the_cpu(domain)
    for feature in domain.cpu.features:
        if feature.name not in needed:
            element.append(E.feature(name=feature.name, policy=feature.policy))
    element.extend(E.feature(name=name, policy="require") for name in needed)
    return element


def _model(said: CPU) -> Element:
    if said.model in _HOST_MODES:
        return E.cpu(mode=said.model)
    return E.cpu(E.model(said.model), mode="custom", match="exact")
