"""`gpu-plugin bind` and `gpu-plugin unbind`."""

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from pci.address import InvalidPCIAddress, PCIAddress
from pci.cards import Card
from pci.host import Host
from plugin import nvml
from plugin.cards.config import Config
from plugin.cards.inventory import take_inventory
from plugin.cards.names import PCI_IDS, read_pci_ids
from plugin.changes.engine import Roots
from plugin.changes.users import AskUsers, KubeletList, Users, users
from plugin.commands.users import UsersFlags
from plugin.config_file import config_of
from plugin.fabric.modules import ask_nvidia_smi, keep
from plugin.flags import PCIIDsFile, words
from plugin.kinds.card import (
    Plan,
    cards_to_bind,
    named_cards,
    offered_cards,
    plan_bind,
    plan_unbind,
    planned,
    rebind,
)
from plugin.kinds.survey import Survey
from plugin.sysfs_child import ask
from program.child import NoAnswer, output
from program.errors import Refusal, UserError
from program.output import print_text
from program.problem import one_line

T = TypeVar("T")

_IDS_WITHIN = 30.0  # seconds; without the persistence daemon the driver wakes every card first


@dataclass(frozen=True, kw_only=True)
class BindFlags(UsersFlags):
    """The cards, the config, and where to look for the cards' users."""

    addresses: Annotated[
        list[str] | None,
        typer.Argument(metavar="ADDRESS", help="Any function of each card, like 0000:41:00.0 or 41:00.0."),
    ] = None
    every: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Every NVIDIA, AMD and Intel GPU, and what --config offers; bind leaves the processor's own GPU "
            "alone.",
        ),
    ] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the writes, and do none.")] = False
    config: Annotated[
        Path | None,
        typer.Option(
            help="What --all means beyond NVIDIA, AMD and Intel GPUs, and what bind sets by its rules (YAML)."
        ),
    ] = None


def bind(
    flags: BindFlags,
    nvidia_smi: Annotated[
        str,
        typer.Option(
            metavar="COMMAND",
            help="What tells module IDs and UUIDs of cards that the nvidia driver has; elsewhere: 'chroot DIR "
            "nvidia-smi'.",
        ),
    ] = "nvidia-smi",
    pci_ids: PCIIDsFile = PCI_IDS,
) -> None:
    """Give whole cards to vfio, so that guests can have them."""

    def plan(survey: Survey, cards: tuple[Card, ...], config: Config) -> Plan:
        return plan_bind(survey, cards, config=config, skip=flags.every)

    def ask_users(host: Host) -> Users:
        # A card that a guest has is on vfio, and stays there: what cannot be asked keeps no node from its start.
        listed = _or_warned("which pods have what is not known", flags.list_assignments, KubeletList())
        nothing: Mapping[str, str] = {}
        claims = _or_warned("which claims have what is not known", flags.claimed, nothing)
        return users(host, _of_others(host, listed, config_of(flags.config), pci_ids), claims)

    _rebind(flags, cards_to_bind, plan, ask_users, nvidia_smi)


def unbind(flags: BindFlags) -> None:
    """Give cards back to the drivers that they had before."""

    def ask_users(host: Host) -> Users:
        return users(host, flags.list_assignments(), flags.claimed())

    if not flags.dry_run:
        flags.require_claims("a card of a claim would be taken away")
    _rebind(flags, offered_cards, lambda survey, cards, _: plan_unbind(survey, cards), ask_users)


def _or_warned(unknown: str, ask_for: Callable[[], T], otherwise: T) -> T:
    try:
        return ask_for()
    except Refusal as error:
        _warn(f"{unknown}: {error}")
        return otherwise


def _of_others(host: Host, listed: KubeletList, config: Config, pci_ids: Path) -> KubeletList:
    """Return the list without the devices that pods have from gpu-plugin: for a guest, which needs them on vfio. After
    a boot the kubelet may list pods from before, and none of them would ever start or end."""
    if not listed.assignments or not os.path.exists(pci_ids):  # noqa: PTH110 (it may raise)
        return listed
    inventory = take_inventory(host, config, read_pci_ids(pci_ids))
    ours = {(device.resource, device.id) for device in inventory.devices}
    others = (each for each in listed.assignments if (each.resource, each.device_id) not in ours)
    return replace(listed, assignments=frozenset(others))


def _rebind(
    flags: BindFlags,
    all_cards: Callable[[Host, Config], tuple[Card, ...]],
    plan: Callable[[Survey, tuple[Card, ...], Config], Plan],
    ask_users: AskUsers,
    nvidia_smi: str = "",
) -> None:
    addresses, every, state = flags.addresses or [], flags.every, flags.state
    if every == bool(addresses):
        wrong = "are both there" if every else "are both missing"
        raise UserError("ADDRESS and --all", wrong, "expected one: any function of each card, or all on offer")
    try:
        named = [PCIAddress.parse_short(address) for address in addresses]
    except InvalidPCIAddress as error:
        raise UserError("ADDRESS", error.wrong, error.fix) from error
    command = words("--nvidia-smi", nvidia_smi)
    rules = config_of(flags.config)
    roots = flags.roots

    def choose(host: Host) -> tuple[Card, ...]:
        return all_cards(host, rules) if every else named_cards(host, named)

    def decide(survey: Survey, cards: tuple[Card, ...]) -> Plan:
        decided = plan(survey, cards, rules)
        for problem in decided.skipped:
            _warn(f"skipped {problem}")
        return decided

    def before(decided: Plan) -> None:
        on_nvidia = [move.address for move in decided.moves if move.now.driver == nvml.DRIVER]
        if not command or not on_nvidia:
            return
        if rules.fabric is not None:
            _keep_module_ids(state, command)
        elif unknown := _without_uuid(roots, on_nvidia):
            _use(unknown, command)

    if flags.dry_run:
        decided, survey = planned(roots, choose, decide, ask_users)
        if survey.unseen is not None:
            _warn(f"who uses the cards was not wholly seen: {survey.unseen}")
        for move in decided.moves:
            for write in move.writes:
                print_text(f"{write}\n")
        return
    decided = rebind(roots, choose, decide, ask_users, before)
    for move in decided.moves:
        target = "as the kernel chose" if move.target is None else move.target.driver or "no driver"
        print_text(f"{move.address}: {move.now.driver or 'no driver'} -> {target}\n")
    if not decided.moves:
        print_text("nothing to do\n")


def _keep_module_ids(state: Path, nvidia_smi: Sequence[str]) -> None:
    """Read the cards' module IDs while their driver still tells them."""
    try:
        keep(state, ask_nvidia_smi(nvidia_smi, _IDS_WITHIN))
    except Refusal as error:
        _warn(f"module IDs are not known, and those cards go only to guests of one GPU: {error}")


def _without_uuid(roots: Roots, addresses: Iterable[PCIAddress]) -> list[str]:
    """Return the cards whose UUIDs their driver does not know yet: nobody has used these since it has them."""
    cards, _ = ask(lambda _: nvml.read_information(roots.proc), roots.sys)
    return [name for name in map(str, addresses) if name in cards and cards[name].identity.uuid is None]


def _use(cards: Sequence[str], nvidia_smi: Sequence[str]) -> None:
    """Have nvidia-smi use these cards for a moment: from then on their driver knows their UUIDs."""
    try:
        output([*nvidia_smi, "-L"], within=_IDS_WITHIN)
    except (OSError, NoAnswer) as error:
        why = f"{nvidia_smi[0]} {error.strerror}" if isinstance(error, OSError) else error
        _warn(f"NVML's UUID of {', '.join(cards)} is not known, and no VM can ask for it: {why}")


def _warn(line: str) -> None:
    print(f"gpu-plugin: {one_line(line)}", file=sys.stderr)
