"""vGPUs of either kind: the changes that cut cards as the config asks, and the changes for a claim.

Existing vGPUs count, whoever made them. Only unused vGPUs that gpu-plugin made are removed, and before others are made:
vGPUs of one size keep other sizes from being made. The function of a new vGPU is chosen when its turn comes: each vGPU
changes the types that functions can become.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from pci.address import PCIAddress, address_or_none
from pci.host import Host
from pci.sysfs.functions import read_host
from pci.sysfs.vgpus import read_card
from pci.vgpus import CutCard
from plugin.cards.config import Config
from plugin.cards.vgpu_rules import VGPURule, When
from plugin.cards.vgpu_types import instance_of, plain
from plugin.changes.engine import Failed, NodeChange, NodeIO, Roots, carry_out, do
from plugin.changes.processes import read_processes, refuse_unseen
from plugin.changes.users import AskUsers, Name
from plugin.kinds import mediated, nvidia_vgpu, virtual_function
from plugin.kinds.cut import VGPU, CardChange, Survey, is_whole, look
from plugin.sysfs_child import ask
from program.errors import ProgramError, Refusal, together
from program.problem import Problem, summary


@dataclass(frozen=True, slots=True)
class Plan:
    """The changes of each card, in order, and the reasons why parts of the config cannot be met."""

    changes: Mapping[PCIAddress, tuple[NodeChange, ...]]
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class Make(CardChange):
    """The making of a vGPU or mediated device of the type `name`, as people write it."""

    name: str

    def __str__(self) -> str:
        return f"make a vGPU of type {self.name}"

    def do(self, node: NodeIO) -> tuple[NodeChange, ...]:
        card = self.read(node)
        change = nvidia_vgpu.one_more(card, self.name) or mediated.one_more(card, self.name, node.uuid())
        if change is not None:
            return do(node, change)
        names = can_become(card)
        fix = f"it can become {summary(names, 12)}" if names else "it can become nothing more: remove a vGPU first"
        raise Failed(self.card, f"can become no further vGPU of type {self.name}", fix)


def plan(survey: Survey, config: Config) -> Plan:
    """Return the changes from the cards' present parts to those that the config asks for."""
    changes: dict[PCIAddress, tuple[NodeChange, ...]] = {}
    problems: list[Problem] = []
    for card in survey.cards:
        wanted = tuple(_wanted(survey, card, config.vgpus_of(card.function)))
        problems += [each for each in wanted if isinstance(each, Problem)]
        if its := tuple(each for each in wanted if isinstance(each, NodeChange)):
            changes[card.address] = its
    return Plan(changes, tuple(problems))


def apply(
    node: NodeIO, plan: Plan, survey: Survey, done: Callable[[PCIAddress, NodeChange], None]
) -> tuple[Problem, ...]:
    """Do the changes: all or none of a card's, and each card's even if another's fail. Return why some could not be
    done. `done` is called with each."""
    problems = []
    node.journal.change(lambda _: survey.journal)
    for card, changes in plan.changes.items():
        if (shortfall := carry_out(node, changes, partial(done, card))) is not None:
            subject, wrong, fix = shortfall.outcome("the card is as it was before")
            problems.append(Problem(subject if str(card) in subject else f"{card}: {subject}", wrong, fix))
    return tuple(problems)


def _wanted(survey: Survey, card: CutCard, rule: VGPURule | None) -> Iterator[NodeChange | Problem]:
    for unfinished in (nvidia_vgpu.unfinished, virtual_function.unfinished):
        changes, card = unfinished(survey, card)
        yield from changes
    if rule is not None and is_whole(card):
        wrong = f"is on {card.function.driver}, for guests that get it whole, and the config cuts it into vGPUs"
        yield Problem(str(card.address), wrong, f"gpu-plugin unbind {card.address}, or leave it out of vgpus")
    elif rule is not None and rule.when is When.CLAIMED:
        yield from _claimable(survey, card, rule)
    elif rule is not None and rule.functions is not None:
        yield from virtual_function.wanted(survey, card, rule.functions, rule.quota)
    else:
        yield from _types(survey, card, {} if rule is None else rule.types, mix=rule is not None and rule.mixed_sizes)


def _types(survey: Survey, card: CutCard, wanted: Mapping[str, int], *, mix: bool) -> Iterator[NodeChange | Problem]:
    """Yield the changes that give the card the `wanted` vGPUs of each type; if none, ours are removed."""
    counts = Counter({plain(name): count for name, count in wanted.items()})
    vgpus = list(vgpus_of(survey, card))
    left = counts - Counter(one.name for one in vgpus if not one.ours)
    # The mode of several sizes is set while there is no vGPU. Turning the functions off or on ends it, and so does a
    # boot, and sysfs does not tell it.
    sets_mode = (
        mix
        and bool(counts - Counter(one.name for one in vgpus))
        and all(isinstance(one.where, PCIAddress) and one.ours and one.user is None for one in vgpus)
    )
    kept = 0
    # vGPUs in use first: they stay in any case.
    for one in sorted((one for one in vgpus if one.ours), key=lambda one: one.user is None):
        if left[one.name] and not sets_mode:
            left[one.name] -= 1
            kept += 1
        elif one.user is None:
            yield one.removal
        else:
            wrong = f"is of type {one.name}, for which the config has no place, and is in use by {one.user}"
            yield Problem(str(one.where), wrong, "apply again when that has ended")
            kept += 1
    if not counts:
        is_ours = str(card.address) in survey.journal.functions and all(one.ours for one in vgpus)
        if is_ours and card.functions and not kept:
            kind = nvidia_vgpu if card.function.driver == nvidia_vgpu.DRIVER else virtual_function
            yield from kind.given_back(survey, card)
        return
    missing = [name for name, count in sorted(left.items()) for _ in range(count)]
    if not missing:
        return
    if (first := nvidia_vgpu.turned_on(card)) is not None:
        yield first
        if isinstance(first, Problem):
            return
    if sets_mode:
        yield nvidia_vgpu.Mix(card.address)
    for name in missing:
        yield Make(card.address, name)


def _claimable(survey: Survey, card: CutCard, rule: VGPURule) -> Iterator[NodeChange | Problem]:
    """Yield the changes that let the DRA driver make vGPUs of the card."""
    if (first := nvidia_vgpu.turned_on(card)) is not None:
        yield first
        if isinstance(first, Problem):
            return
    if any(vgpus_of(survey, card)):
        return  # a card with vGPUs lists fewer types, and keeps its mode
    known = {*survey.types.values(), *(kind.name for place in card.places for kind in place.mdev_types)}
    # A GPU instance can be made when the virtual functions are on, so its types may be listed later.
    wanted = {plain(one) for one in rule.types if instance_of(one) is None}
    unknown = sorted(wanted - {plain(one) for one in known})
    if card.places and unknown:
        wrong = f"can become no vGPU of type {summary(unknown)}"
        yield Problem(str(card.address), wrong, f"name {summary(can_become(card), 12)}")
    elif rule.mixed_sizes:
        yield nvidia_vgpu.Mix(card.address)


def vgpus_of(survey: Survey, card: CutCard) -> Iterator[VGPU]:
    """Yield the existing vGPUs of a card, by their functions' addresses, then mediated devices by UUID."""
    yield from nvidia_vgpu.there(survey, card)
    yield from mediated.there(survey, card)


def can_become(card: CutCard) -> tuple[str, ...]:
    """Return the names of the types of which one more can be made now, as people write them, sorted."""
    return tuple(sorted({*nvidia_vgpu.can_become(card), *mediated.can_become(card)}))


# For claims. A vGPU is known by its virtual function, or by the UUID of its mediated device.


def named(text: str) -> Name:
    """Return the name of a vGPU in the text; ValueError if it is neither an address nor a UUID."""
    return address_or_none(text) or UUID(text)


class NotMade(Refusal):
    """A card does not make a vGPU; `names` are those in the slices that it does not make either, if they are known."""

    def __init__(self, subject: object, wrong: str, fix: str, *more: Problem, names: Iterable[str] = ()) -> None:
        super().__init__(subject, wrong, fix, *more)
        self.names = frozenset(names)


def make_for_claim(roots: Roots, config: Config, vgpu: Name, card: PCIAddress, kind: str, ask_users: AskUsers) -> None:
    """Make a vGPU of the type `kind` of a card, unless an earlier call has. NotMade if the card does not make it:
    then nothing is left of it, except a write that the kernel has not finished. Refusal if another change goes on."""
    with roots.journal.alone():
        host, _ = ask(read_host, roots.sys)
        try:
            make(_node(roots, config, ask_users), vgpu, kind, card if card in host.functions else None)
        except Failed as failed:
            raise NotMade(*failed.problem) from failed


def remove_for_claims(roots: Roots, config: Config, vgpus: Iterable[Name], ask_users: AskUsers) -> None:
    """Remove these vGPUs if they were made, also after an interrupted call. Refusal, at the end, for vGPUs that are in
    use or cannot be removed."""
    errors: list[ProgramError] = []
    with roots.journal.alone():
        node = _node(roots, config, ask_users)
        for vgpu in vgpus:
            host, _ = ask(read_host, roots.sys)
            try:
                remove(node, vgpu, card_of(host, node, vgpu))
            except Failed as failed:
                errors.append(Refusal(*failed.problem))
            except ProgramError as error:
                errors.append(error)
    if errors:
        raise together(errors)


def make(node: NodeIO, vgpu: Name, name: str, card: PCIAddress | None) -> None:
    """Make a vGPU of the type `name` of a virtual function of `card`, or as the mediated device with this UUID; `card`
    is None if it is gone. Raise Failed as plugin.changes.engine.do does."""
    cut = None if card is None else node.ask(read_card, node.sys, card)
    change = (
        mediated.for_claim(node, vgpu, name, cut)
        if isinstance(vgpu, UUID)
        else nvidia_vgpu.for_claim(node, vgpu, name, cut)
    )
    if change is not None:
        do(node, change)


def remove(node: NodeIO, vgpu: Name, card: PCIAddress | None) -> None:
    """Remove a vGPU of `card` (None if it is gone) if gpu-plugin made it. Failed as in plugin.changes.engine.do."""
    journal = node.journal.read()
    if str(vgpu) not in {*journal.types, *journal.mdevs}:
        return
    cut = None if card is None else node.ask(read_card, node.sys, card)
    change = (
        mediated.no_longer_claimed(node, vgpu, cut)
        if isinstance(vgpu, UUID)
        else nvidia_vgpu.no_longer_claimed(node, vgpu, cut)
    )
    if change is not None:
        do(node, change)


def card_of(host: Host, node: NodeIO, vgpu: Name) -> PCIAddress | None:
    """Return the card of a vGPU; None if it is gone, or if gpu-plugin made no such mediated device."""
    where = node.journal.read().mdevs.get(str(vgpu)) if isinstance(vgpu, UUID) else str(vgpu)
    function = None if where is None else host.functions.get(PCIAddress.parse(where))
    return None if function is None else function.card


def _node(roots: Roots, config: Config, ask_users: AskUsers) -> NodeIO:
    def user(name: str) -> str | None:
        processes = partial(read_processes, roots.proc)
        survey, _ = ask(look, roots.sys, config, roots.journal.read(), processes, ask_users)
        refuse_unseen(survey.unseen)
        return survey.users.get(name)

    return NodeIO.of(roots, user=user)
