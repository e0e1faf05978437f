"""`gpu-plugin vgpus`: cuts cards into vGPUs and virtual functions as the config says."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from pci.address import PCIAddress
from pci.sysfs.functions import read_host
from pci.vgpus import CutCard
from plugin.cards.config import Config
from plugin.cards.vgpu_configs import rules_of
from plugin.changes.engine import Failed, NodeChange, NodeIO
from plugin.changes.processes import read_processes, refuse_unseen
from plugin.changes.users import users
from plugin.commands.users import UsersFlags
from plugin.config_file import config_of
from plugin.flags import words
from plugin.kinds.cut import Survey, look
from plugin.kinds.vgpus import Plan, apply, can_become, plan, vgpus_of
from plugin.state_files import Broken
from plugin.sysfs_child import ask
from program.child import NoAnswer, output
from program.commands import AsJSON
from program.errors import Refusal, UserError
from program.finding import Finding
from program.output import print_text
from program.problem import Problem, Severity, one_line, summary

_PROGRAM_WITHIN = 120.0  # seconds; sriov-manage unbinds the card and binds it again
_MOST = 24  # types in a line


class Action(StrEnum):
    APPLY = "apply"


@dataclass(frozen=True, kw_only=True)
class VGPUsFlags(UsersFlags):
    """What is to be done, the config, and where to look for the cards' users."""

    action: Annotated[
        Action | None, typer.Argument(metavar="apply", help="Make what the config asks for.", show_default=False)
    ] = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")] = False
    undo: Annotated[
        bool,
        typer.Option("--undo", help="Take away what gpu-plugin has made and nobody uses, whatever the config says."),
    ] = False
    config: Annotated[Path | None, typer.Option(help="The config, whose `vgpus` are rules by card (YAML).")] = None
    vgpu_configs: Annotated[
        Path | None, typer.Option(help="In place of the config's rules: the file of NVIDIA's vgpu-device-manager.")
    ] = None
    vgpu_config: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which of its configurations.  [default: default]")
    ] = None
    sriov_manage: Annotated[
        str,
        typer.Option(
            metavar="COMMAND",
            help="What turns on the virtual functions of NVIDIA's cards; elsewhere: 'chroot DIR "
            "/usr/lib/nvidia/sriov-manage'.",
        ),
    ] = "/usr/lib/nvidia/sriov-manage"
    nvidia_smi: Annotated[
        str, typer.Option(metavar="COMMAND", help="The driver's nvidia-smi; elsewhere: 'chroot DIR nvidia-smi'.")
    ] = "nvidia-smi"

    @property
    def changes_cards(self) -> bool:
        return self.action is not None and not self.dry_run

    @property
    def programs(self) -> Mapping[str, Sequence[str]]:
        """The words of each program's command."""
        return {
            "sriov-manage": words("--sriov-manage", self.sriov_manage),
            "nvidia-smi": words("--nvidia-smi", self.nvidia_smi),
        }

    @property
    def wishes(self) -> Config:
        """The config with the rules that count."""
        config = config_of(self.config)
        if self.vgpu_configs is not None:
            host, _ = ask(read_host, self.sysfs)
            config = replace(config, vgpus=rules_of(self.vgpu_configs, self.vgpu_config or "default", host))
        elif self.vgpu_config is not None:
            raise UserError("--vgpu-config", "is there without --vgpu-configs", "expected both, or none")
        return replace(config, vgpus=()) if self.undo else config


def vgpus(flags: VGPUsFlags, as_json: AsJSON = False) -> None:
    """Show what cards are cut into; with `apply`, cut them into vGPUs and virtual functions as the config says.

    Nothing that is in use or that somebody else made is touched. With --json also what `apply` would do, and why it
    could not do all of it.
    """
    if as_json and (flags.action is not None or flags.dry_run):
        raise UserError("--json", "shows what is there and what would be done", "leave out apply and --dry-run")
    roots, programs, config = flags.roots, flags.programs, flags.wishes
    if flags.changes_cards:
        flags.require_claims("a vGPU of a claim would be taken away")
    try:
        roots.journal.read()
    except Broken as error:
        if not flags.changes_cards or flags.undo:
            raise
        _warn(f"no card is cut: {error}")  # the node's other cards are served
        return
    try:
        flags.claimed()
        knows_claims = True
    except Broken as error:
        _warn(f"which claims have what is not known, and nothing is taken away: {error}")
        knows_claims = False
    survey = partial(_survey, flags, config, knows_claims=knows_claims)
    if flags.changes_cards:
        with roots.journal.alone():
            run = partial(call, programs)
            node = NodeIO.of(roots, user=lambda name: survey().users.get(name), run=run)
            _tell(*_cut(node, survey(), config), knows_claims=knows_claims)
    elif flags.dry_run:
        _say_what_is_unseen(seen := survey())
        wanted = plan(seen, config)
        for card, changes in wanted.changes.items():
            for change in changes:
                _print(card, change)
        _tell(bool(wanted.changes), wanted.problems, knows_claims=knows_claims)
    else:
        _say_what_is_unseen(seen := survey(every=True))
        if as_json:
            print_text(json.dumps(_as_json(seen, plan(seen, config)), indent=2) + "\n")
            return
        print_text("".join(f"{line}\n" for line in lines(seen)) or "This node has no card that can be cut.\n")


def _survey(flags: UsersFlags, config: Config, *, knows_claims: bool, every: bool = False) -> Survey:
    roots = flags.roots
    ask_users = partial(users, listed=flags.list_assignments(), claimed=flags.claimed() if knows_claims else {})
    processes = partial(read_processes, roots.proc)
    seen: Survey = ask(look, roots.sys, config, roots.journal.read(), processes, ask_users, every=every)[0]
    return seen if knows_claims else seen.all_used("a claim, perhaps")


def _cut(node: NodeIO, survey: Survey, config: Config) -> tuple[bool, tuple[Problem, ...]]:
    """Cut the cards; return whether there was anything to do, and what could not be done."""
    wanted = plan(survey, config)
    if wanted.changes:
        refuse_unseen(survey.unseen)
    return bool(wanted.changes), (*wanted.problems, *apply(node, wanted, survey, _print))


def _tell(is_something: bool, problems: Sequence[Problem], *, knows_claims: bool) -> None:
    """Say what could not be done: Refusal, unless it may be for a claim that is not known."""
    if not is_something and not problems:
        print_text("nothing to do\n")
    if problems and knows_claims:
        raise Refusal.of(problems)
    for problem in problems:
        _warn(str(problem))


def call(programs: Mapping[str, Sequence[str]], name: str, *arguments: str) -> None:
    """Call a program of NVIDIA's driver; Failed if it says that it failed, Refusal if it cannot be run."""
    command = [*programs[name], *arguments]
    program, fix = " ".join(command), f"install NVIDIA's vGPU manager, or name its program with --{name}"
    try:
        done = output(command, within=_PROGRAM_WITHIN)
    except OSError as error:
        raise Refusal(program, f"cannot be run: {error.strerror}", fix) from error
    except NoAnswer as error:
        raise Failed(program, error.problem.wrong, fix) from error
    if done.returncode:
        last = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()[-1:]
        raise Failed(program, f"ends with {done.returncode}{''.join(f': {line}' for line in last)}", fix)


def lines(survey: Survey) -> Iterator[str]:
    """Yield what cards are cut into: each vGPU with its user and its maker, and what can be made beside them."""
    for card in survey.cards:
        yield one_line(f"{card.address}: {_functions(survey, card)}")
        for vgpu in vgpus_of(survey, card):
            maker = "made by gpu-plugin" if vgpu.ours else "made by others"
            use = "free" if vgpu.user is None else f"in use by {vgpu.user}"
            yield one_line(f"  {vgpu.where}: {vgpu.name or 'a type without a name'}, {maker}, {use}")
        if card.places:
            yield one_line(f"  one more can be: {summary(can_become(card), _MOST) or 'none'}")


def _as_json(survey: Survey, wanted: Plan) -> dict[str, Any]:
    """Return what cards are cut into, what `apply` would do, and as findings what it could not."""
    findings = [Finding(Severity.ERROR, problem) for problem in wanted.problems]
    findings += [] if survey.unseen is None else [Finding(Severity.WARNING, survey.unseen)]
    return {
        "cards": [
            {
                "address": str(card.address),
                "driver": card.function.driver,
                "functions": len(card.functions),
                "possibleFunctions": card.possible,
                "vgpus": [
                    {"where": str(vgpu.where), "type": vgpu.name or None, "ours": vgpu.ours, "user": vgpu.user}
                    for vgpu in vgpus_of(survey, card)
                ],
                "oneMore": list(can_become(card)),
                "changes": list(map(str, wanted.changes.get(card.address, ()))),
            }
            for card in survey.cards
        ],
        "findings": [finding.as_json() for finding in findings],
    }


def _functions(survey: Survey, card: CutCard) -> str:
    driver = f"on {card.function.driver or 'no driver'}"
    if not card.possible:
        return driver
    ours = ", made by gpu-plugin" if str(card.address) in survey.journal.functions else ""
    used = sum(str(one.address) in survey.users for one in card.functions)
    in_use = f", {used} in use" if used else ""
    return f"{driver}, {len(card.functions)} of {card.possible} virtual functions{ours}{in_use}"


def _print(card: PCIAddress, change: NodeChange) -> None:
    print_text(f"{card}: {change}\n")


def _say_what_is_unseen(survey: Survey) -> None:
    if (unseen := survey.unseen) is not None:
        _warn(f"who uses the cards was not wholly seen: {unseen}")


def _warn(line: str) -> None:
    print(f"gpu-plugin: {one_line(line)}", file=sys.stderr)
