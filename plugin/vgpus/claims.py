"""Makes the vGPU of a claim and takes it away. A vGPU that others made is left alone."""

import time
from collections.abc import Iterable
from functools import partial
from typing import TypeAlias
from uuid import UUID

from pci.address import PCIAddress, address_or_none
from pci.host import Host
from pci.sysfs.functions import read_host
from pci.sysfs.vgpus import read_card
from pci.vgpus import CutCard
from plugin.cards.config import Config
from plugin.cards.vgpu_types import instance_of, plain
from plugin.changes.engine import Failed, Roots, sysfs_writer
from plugin.changes.journal import VGPUType
from plugin.changes.processes import read_processes, refuse_unseen
from plugin.changes.users import NOBODY
from plugin.sysfs_child import ask, read_or_refused
from plugin.vgpus.plan import Clear, Remove, can_become
from plugin.vgpus.steps import Types, become, clear, create, forget_mdev, forget_type, make_instance
from plugin.vgpus.steps import remove as remove_mdev
from plugin.vgpus.survey import Survey, look
from program.errors import ProgramError, Refusal, together
from program.problem import listed

#: A vGPU is known by its virtual function, or by the UUID of its mediated device.
Name: TypeAlias = PCIAddress | UUID


def named(text: str) -> Name:
    """Return the name of a vGPU in the text; ValueError if it is neither an address nor a UUID."""
    return address_or_none(text) or UUID(text)


def make_for_claim(roots: Roots, config: Config, vgpu: Name, card: PCIAddress, kind: str) -> None:
    """Make a vGPU of the type with the name `kind` of a card, unless an earlier call has. Refusal if that fails:
    nothing is left of it then, except what the kernel is still at."""
    with roots.journal.alone():
        types = _types(roots, config)
        host, _ = ask(read_host, roots.sys)
        try:
            make(types, vgpu, kind, card if card in host.functions else None)
        except Failed as failed:
            raise Refusal(*failed.problem) from failed


def remove_for_claims(roots: Roots, config: Config, vgpus: Iterable[Name]) -> None:
    """Take away these vGPUs if they were made, also after an interrupted call. Refusal, at the end, for those that are
    in use or stay."""
    errors: list[ProgramError] = []
    with roots.journal.alone():
        types = _types(roots, config)
        for vgpu in vgpus:
            host, _ = ask(read_host, roots.sys)
            try:
                remove(types, vgpu, card_of(host, types, vgpu))
            except Failed as failed:
                errors.append(Refusal(*failed.problem))
            except ProgramError as error:
                errors.append(error)
    if errors:
        raise together(errors)


def make(types: Types, vgpu: Name, name: str, card: PCIAddress | None) -> None:
    """Make a vGPU of the type with this name of a virtual function of `card`, or as the mediated device with this UUID;
    `card` is None if it is gone. Failed as of `do`."""
    if isinstance(vgpu, UUID):
        _make_mediated(types, vgpu, name, card)
    else:
        _make_virtual(types, vgpu, name, card)


def _make_mediated(types: Types, uuid: UUID, name: str, card: PCIAddress | None) -> None:
    if card is None:
        raise Failed(uuid, "can be made no more: its card is gone", "delete the pod, to have its claim allocated anew")
    cut = types.read(card)
    if (there := next((mdev for mdev in cut.mdevs if mdev.uuid == uuid), None)) is not None:
        if str(uuid) in types.journal.read().mdevs and plain(there.type_name) == name:
            return
        raise Failed(uuid, f"is there already, of type {plain(there.type_name)}", "remove it, unless a guest has it")
    for place in cut.places:
        for kind in place.mdev_types:
            if plain(kind.name) == name and kind.available:
                create(types, card, place, kind, uuid)
                return
    raise _no_further(cut, name)


def _no_further(cut: CutCard, name: str) -> Failed:
    if instance_of(name) is not None:
        fix = f"wait until one is given back, or {make_instance(cut.address)}"
    elif can := can_become(cut):
        fix = f"it can become {listed(can, 12)}"
    else:
        fix = "wait until its other vGPUs are given back"
    return Failed(cut.address, f"can become no further vGPU of type {name}", fix)


def _make_virtual(types: Types, function: PCIAddress, name: str, card: PCIAddress | None) -> None:
    cut = None if card is None else types.read(card)
    place = next((one for one in cut.places if one.function.address == function), None) if cut is not None else None
    if card is None or cut is None or place is None or not place.takes_type:
        raise Failed(function, "can become no vGPU any more", "gpu-plugin vgpus apply turns on virtual functions")
    if (now := place.function.vgpu_type) is not None:
        made = types.journal.read().types.get(str(function))
        if made is not None and made.number == now and plain(made.name) == name:
            return
        raise Failed(function, f"has become a vGPU of type {now} meanwhile", "another one is taken for the claim")
    for number, listed_name in place.creatable.items():
        if plain(listed_name) == name:
            become(types, card, function, VGPUType(number, listed_name))
            return
    raise _no_further(cut, name)


def remove(types: Types, vgpu: Name, card: PCIAddress | None) -> None:
    """Take away a vGPU of `card`, None if that is gone, if we made it; Failed as of `do`."""
    if isinstance(vgpu, UUID):
        _remove_mediated(types, vgpu, card)
    else:
        _remove_virtual(types, vgpu, card)


def _remove_mediated(types: Types, uuid: UUID, card: PCIAddress | None) -> None:
    if (parent := types.journal.read().mdevs.get(str(uuid))) is None:
        return
    mdevs = () if card is None else types.read(card).mdevs
    mdev = next((one for one in mdevs if one.uuid == uuid and str(one.parent) == parent), None)
    if card is None or mdev is None:
        forget_mdev(types, uuid)  # somebody removed it, or it never was
    else:
        remove_mdev(types, Remove(card, uuid, mdev.type_name))


def _remove_virtual(types: Types, function: PCIAddress, card: PCIAddress | None) -> None:
    made = types.journal.read().types.get(str(function))
    if made is None:
        return
    cut = None if card is None else types.read(card)
    now = None if cut is None else {one.address: one.vgpu_type for one in cut.functions}.get(function)
    if card is None or now != made.number:
        forget_type(types, function)  # what it is now, if anything, is not ours
    else:
        clear(types, Clear(card, function, made))


def card_of(host: Host, types: Types, vgpu: Name) -> PCIAddress | None:
    """Return the card of a vGPU; None if it is gone, or if we made no such mediated device."""
    where = types.journal.read().mdevs.get(str(vgpu)) if isinstance(vgpu, UUID) else str(vgpu)
    found = None if where is None else host.functions.get(PCIAddress.parse(where))
    return None if found is None else found.card


def _types(roots: Roots, config: Config) -> Types:
    def survey() -> Survey:
        processes = partial(read_processes, roots.proc)
        return ask(look, roots.sys, config, roots.journal.read(), processes, lambda _: NOBODY)[0]

    def user(name: str) -> str | None:
        found = survey()
        refuse_unseen(found.unseen)
        return found.users.get(name)

    def read(card: PCIAddress) -> CutCard:
        with read_or_refused(roots.sys):
            return ask(read_card, roots.sys, card)[0]

    return Types(
        read=read,
        user=user,
        write=sysfs_writer(roots.sys),
        wait=time.sleep,
        journal=roots.journal,
    )
