"""Makes the vGPU of a claim and takes it away. A vGPU that others made is left alone."""

from collections.abc import Iterable
from functools import partial

from pci.address import PCIAddress
from pci.sysfs.functions import read_host
from pci.sysfs.vgpus import read_card
from plugin.binding.former_drivers import locked
from plugin.binding.processes import read_processes
from plugin.binding.rebind import Failed, Roots, sysfs_writer
from plugin.cards.config import Config
from plugin.cards.vgpu_types import plain
from plugin.state_files import boot_id
from plugin.sysfs_child import ask
from plugin.vgpus.made import Type, made_file, read_made
from plugin.vgpus.plan import Clear, can_become
from plugin.vgpus.steps import Types, become, clear, forget_type
from plugin.vgpus.survey import Survey, look
from program.errors import ProgramError, Refusal, together
from program.problem import listed


def make_for_claim(roots: Roots, config: Config, function: PCIAddress, name: str) -> None:
    """Make a vGPU of the type with this name of a virtual function, unless an earlier call has. Refusal if that fails:
    nothing is left of it then, except what the kernel is still at."""
    with locked(roots.state):
        types = _types(roots, config)
        try:
            make(types, function, name, _card_of(roots, function))
        except Failed as failed:
            raise Refusal(*failed.problem) from failed


def remove_for_claims(roots: Roots, config: Config, functions: Iterable[PCIAddress]) -> None:
    """Take away the vGPUs that were made of these virtual functions, also after half of that. Refusal, at the end, for
    those that are in use or stay."""
    errors: list[ProgramError] = []
    with locked(roots.state):
        types = _types(roots, config)
        for function in functions:
            try:
                remove(types, function, _card_of(roots, function))
            except Failed as failed:
                errors.append(Refusal(*failed.problem))
            except ProgramError as error:
                errors.append(error)
    if errors:
        raise together(errors)


def make(types: Types, function: PCIAddress, name: str, card: PCIAddress | None) -> None:
    """Make a vGPU of the type with this name of a virtual function of `card`, None if it is gone; Failed as of `do`."""
    cut = None if card is None else types.read(card)
    place = next((one for one in cut.places if one.function.address == function), None) if cut is not None else None
    if card is None or cut is None or place is None or not place.takes_type:
        raise Failed(function, "can become no vGPU any more", "gpu-plugin vgpus apply turns on virtual functions")
    if (now := place.function.vgpu_type) is not None:
        made = types.ours.types.get(str(function))
        if made is not None and made.number == now and plain(made.name) == name:
            return
        raise Failed(function, f"has become a vGPU of type {now} meanwhile", "another one is taken for the claim")
    for number, listed_name in place.creatable.items():
        if plain(listed_name) == name:
            become(types, card, function, Type(number, listed_name))
            return
    can = can_become(cut)
    fix = f"it can become {listed(can, 12)}" if can else "wait until its other vGPUs are given back"
    raise Failed(card, f"can become no further vGPU of type {name}", fix)


def remove(types: Types, function: PCIAddress, card: PCIAddress | None) -> None:
    """Take away the vGPU that we made of a virtual function of `card`, None if it is gone; Failed as of `do`."""
    made = types.ours.types.get(str(function))
    if made is None:
        return
    cut = None if card is None else types.read(card)
    now = None if cut is None else {one.address: one.vgpu_type for one in cut.functions}.get(function)
    if card is None or now != made.number:
        forget_type(types, function)  # what it is now, if anything, is not ours
    else:
        clear(types, Clear(card, function, made))


def _card_of(roots: Roots, function: PCIAddress) -> PCIAddress | None:
    host, _ = ask(read_host, roots.sys)
    found = host.functions.get(function)
    return None if found is None else found.physical_function


def _types(roots: Roots, config: Config) -> Types:
    boot = boot_id(roots.proc)

    def survey() -> Survey:
        processes = partial(read_processes, roots.proc)
        return ask(look, roots.sys, config, read_made(roots.state, boot), processes, {})[0]

    def user(name: str) -> str | None:
        found = survey()
        if (unseen := found.unseen) is not None:
            raise Refusal("who uses the cards", f"cannot be seen: {unseen.subject} {unseen.wrong}", unseen.fix)
        return found.users.get(name)

    return Types(
        read=lambda card: ask(read_card, roots.sys, card)[0],
        user=user,
        write=sysfs_writer(roots.sys),
        made=made_file(roots.state),
        boot=boot,
    )
