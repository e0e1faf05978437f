"""The devices of the node that a claim gets: those that the scheduler chose. A chosen vGPU gets the virtual function of
which it is made, or the UUID of its mediated device."""

from collections.abc import Mapping
from uuid import UUID, uuid5

from plugin.cards.inventory import Device
from plugin.dra.checkpoint import Prepared, PreparedDevice
from plugin.dra.claims import DriverClaim, Reference
from plugin.dra.slices import device_name
from plugin.kinds.vgpus import NotMade
from plugin.node.snapshot import Snapshot
from program.errors import Refusal

#: An arbitrary UUID: the namespace of mediated devices' UUIDs.
_MEDIATED = UUID("0b8e3c0c-9d0a-5f0e-8a44-5a1d6f6a6c35")


def chosen(
    claim: DriverClaim, snapshot: Snapshot, before: tuple[PreparedDevice, ...], others: Mapping[str, Prepared]
) -> tuple[PreparedDevice, ...]:
    """Return the claim's devices, with the functions to bind, as an earlier attempt recorded them (`before`). Refusal
    if the node lacks a device or one of the `others` has it; NotMade if a card has too few virtual functions."""
    bound = {device.id: device.bound for device in before}
    by_name = {device_name(device): device for device in snapshot.inventory.published}
    ids = {**{name: device.id for name, device in by_name.items()}, **_to_make(claim, snapshot, before, others)}
    for result in claim.results:
        if result.device not in ids:
            raise Refusal(
                f"{result.device} of claim {claim.reference}",
                "is not a device of this node, or not one that is served by DRA",
                "delete the pod, to have its claim allocated anew",
            )
    devices = tuple(
        PreparedDevice(
            result.request,
            result.device,
            ids[result.device],
            bound.get(ids[result.device]) or _to_bind(by_name.get(result.device)),
        )
        for result in claim.results
    )
    _refuse_overlap(claim.reference, devices, others)
    return devices


def _to_bind(device: Device | None) -> tuple[str, ...]:
    if device is None or not device.to_bind:
        return ()
    return tuple(str(function.address) for function in device.functions)


def _to_make(
    claim: DriverClaim, snapshot: Snapshot, before: tuple[PreparedDevice, ...], others: Mapping[str, Prepared]
) -> Mapping[str, str]:
    """Return the address or UUID of each vGPU to make for the claim, by the vGPU's name: the virtual function of an
    earlier attempt, or a free one that is no vGPU; for a mediated device the UUID that it gets."""
    cards = {vgpu.name: card for card in snapshot.claimable for vgpu in card.vgpus}
    ids = {device.name: device.id for device in before if device.is_made and device.name in cards}
    taken = {device.id for prepared in others.values() for device in prepared.devices} | {*ids.values()}
    for result in claim.results:
        if (card := cards.get(result.device)) is None or result.device in ids:
            continue
        if card.mediated:
            ids[result.device] = str(uuid5(_MEDIATED, f"{claim.reference.uid}/{result.device}"))
            continue
        free = (str(one.address) for one in card.functions if one.vgpu_type is None and str(one.address) not in taken)
        if (function := next(free, None)) is None:
            wrong = f"has no virtual function left for {result.device} of claim {claim.reference}"
            fix, names = "wait until one of its vGPUs is given back", (vgpu.name for vgpu in card.vgpus)
            raise NotMade(card.function.address, wrong, fix, names=names)
        ids[result.device] = function
        taken.add(function)
    return ids


def _refuse_overlap(reference: Reference, devices: tuple[PreparedDevice, ...], others: Mapping[str, Prepared]) -> None:
    """Raise Refusal if another claim has one of the devices: schedulers have given out devices twice (Kubernetes issues
    133602 and 141471)."""
    for other in others.values():
        for device in devices:
            if any(device.id == its.id or device.name == its.name for its in other.devices):
                raise Refusal(
                    f"{device.name if device.is_made else device.id} of claim {reference}",
                    f"is prepared for claim {other} already",
                    "delete this pod, to have its claim allocated anew",
                )
