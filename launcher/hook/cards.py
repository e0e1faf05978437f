"""Which card each entry gets, where KubeVirt has taken a function of another entry's for one.

An older device plugin writes every function of a card into its variable, and KubeVirt takes them one by one: two GPUs
are asked for, and the second is the audio of the first (KubeVirt's issue 13925, NVIDIA's plugin's issue 67). The
variable is the compute container's; a sidecar sees the node's sysfs alone. Where the node has just as many other cards
of that model for guests as there are such entries, they are this pod's.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from launcher.claims import Claim, EntryKind
from pci.address import PCIAddress
from pci.cards import listed_with
from pci.functions import is_gpu, is_on_vfio, what
from pci.host import Function, Host
from program.problem import Problem


class Corrected(NamedTuple):
    """`claims` in their order, each with its own card where that is known; `warnings` say which were others, and which
    still are."""

    claims: tuple[Claim, ...]
    warnings: tuple[Problem, ...]


def corrected(claims: tuple[Claim, ...], host: Host) -> Corrected:
    """Only entries of one resource are looked at: audio that has a resource of its own is what was asked for."""
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
    """Claims of what is no GPU, each with the GPU of the same card that an entry of the same resource has."""
    gpus = {
        (claim.entry.wants, function.address): function
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
    """The GPUs of this model that VFIO has, and no entry anything of; ascending."""
    taken = {
        other.address
        for claim in claims
        if isinstance(claim.device, PCIAddress)
        for other in listed_with(host, claim.device)
    }
    return [
        function
        for function in host.functions.values()
        if function.pci_id == pci_id
        and is_gpu(function)
        and is_on_vfio(function)
        and not function.is_virtual
        and function.address not in taken
    ]


def _function(claim: Claim, host: Host) -> Function | None:
    return host.functions.get(claim.device) if isinstance(claim.device, PCIAddress) else None
