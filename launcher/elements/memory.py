"""The guest's memory."""

from launcher.errors import UserError
from launcher.manifest import Domain


def guest_memory(domain: Domain) -> int:
    """Bytes: memory.guest, else the pod's request, else its limit, as for KubeVirt (GetVirtualMemory)."""
    resources = domain.resources
    memory = domain.memory.guest or resources.requests.get("memory") or resources.limits.get("memory")
    if not memory:
        raise UserError(
            "the manifest gives the guest no memory; expected domain.memory.guest or domain.resources.requests.memory"
        )
    return memory
