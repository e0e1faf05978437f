"""The guest's memory: how much, and what it is made of."""

from lxml.etree import _Element as Element

from launcher.errors import UserError
from launcher.facts import Facts
from launcher.manifest.spec import Domain, VirtualMachineInstance


def guest_memory(domain: Domain) -> int:
    """Bytes: memory.guest, else the pod's request, else its limit, as for KubeVirt (GetVirtualMemory)."""
    resources = domain.resources
    memory = domain.memory.guest or resources.requests.get("memory") or resources.limits.get("memory")
    if not memory:
        raise UserError(
            "the manifest gives the guest no memory; expected domain.memory.guest or domain.resources.requests.memory"
        )
    return memory


def memory(vmi: VirtualMachineInstance, facts: Facts) -> list[Element]:
    """<maxMemory> and <memoryBacking>."""
    return []
