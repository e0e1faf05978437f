"""Which card each entry gets, if KubeVirt took a companion from another entry's card for it.

An older device plugin writes every function of an IOMMU group into its variable, and KubeVirt takes them one by one: a
VM with two GPUs gets one GPU and its audio (KubeVirt's issue 13925, issue 67 of NVIDIA's plugin). A sidecar sees the
node's sysfs, but not that variable, which the compute container has. If the node has exactly as many other cards of
that model for guests as there are such entries, these cards are the pod's.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from launcher.vm.cards.claims import Claim, EntryKind
from pci.address import PCIAddress
from pci.cards import listed_with
from pci.functions import is_gpu, is_on_vfio, what
from pci.host import Function, Host
from program.problem import Problem


class Corrected(NamedTuple):
    """`claims`: in their order, each with its own card if that is known. `warnings`: one for each claim that had, or
    still has, a companion of another entry's card."""

    claims: tuple[Claim, ...]
    warnings: tuple[Problem, ...]


def corrected(claims: tuple[Claim, ...], host: Host) -> Corrected:
    """Return the claims with their own cards. An entry that requested an audio resource keeps its audio function."""
    wrong = dict(_companions_as_gpus(claims, host))
    right: dict[Claim, Claim] = {}
    warnings = []
    for pci_id in dict.fromkeys(gpu.pci_id for gpu in wrong.values()):
        without = [claim for claim in claims if claim in wrong and wrong[claim].pci_id == pci_id]
        others = _free_of_model(pci_id, claims, host)
        known = len(others) == len(without)
        for number, claim in enumerate(without):
            function = _function(claim, host)
            assert function is not None
            taken = f"got {what(function)} of another entry's card, {wrong[claim].address}, from an older device plugin"
            if known:
                right[claim] = replace(claim, device=others[number].address)
                fix = f"it has {others[number].address} instead, since only so many cards of its model are for guests"
            else:
                taken += f", and which card is meant is not known: {len(others)} others of its model are for guests"
                fix = "expected a device plugin that writes one address a card: update it, or take gpu-plugin"
            warnings.append(Problem(str(claim.entry), taken, fix))
    return Corrected(tuple(right.get(claim, claim) for claim in claims), tuple(warnings))


def _companions_as_gpus(claims: tuple[Claim, ...], host: Host) -> Iterator[tuple[Claim, Function]]:
    """Yield each claim whose function is no GPU, with the GPU of that card, which another entry of the same resource
    has."""
    gpus = {
        (claim.entry.wants, function.address)
        for claim in claims
        if (function := _function(claim, host)) is not None and is_gpu(function)
    }
    for claim in claims:
        function, resource = _function(claim, host), claim.entry.wants
        if function is None or is_gpu(function) or function.is_virtual:
            continue
        if not isinstance(resource, str) or (not resource and claim.entry.kind is not EntryKind.GPU):
            continue
        for other in listed_with(host, function.address):
            if (resource, other.address) in gpus:
                yield claim, other
                break


def _free_of_model(pci_id: str, claims: tuple[Claim, ...], host: Host) -> list[Function]:
    """Return the GPUs of this model that may be meant, ascending: on VFIO, in an IOMMU group that no entry has a
    function of. For an older plugin, an IOMMU group is one device, of its first GPU's model."""
    taken = {function.iommu_group for claim in claims if (function := _function(claim, host)) is not None}
    leads: dict[int | None, Function] = {}
    for function in host.functions.values():
        if is_gpu(function) and is_on_vfio(function) and not function.is_virtual:
            leads.setdefault(function.iommu_group, function)
    return [lead for group, lead in leads.items() if group not in taken and lead.pci_id == pci_id]


def _function(claim: Claim, host: Host) -> Function | None:
    return host.functions.get(claim.device) if isinstance(claim.device, PCIAddress) else None
