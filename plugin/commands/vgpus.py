"""`gpu-plugin vgpus`: cuts cards into vGPUs and virtual functions as the config says."""

import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated
from uuid import uuid4

import typer

from pci.address import PCIAddress
from pci.sysfs.functions import read_host
from pci.sysfs.vgpus import read_card, read_quotas
from plugin.cards.config import Config
from plugin.changes.engine import Failed, sysfs_writer
from plugin.changes.processes import read_processes, refuse_unseen
from plugin.changes.users import users
from plugin.commands.users import UsersFlags
from plugin.config_file import config_of
from plugin.flags import words
from plugin.state_files import Broken
from plugin.sysfs_child import ask
from plugin.vgpus.apply import apply
from plugin.vgpus.listing import lines
from plugin.vgpus.plan import Step, plan
from plugin.vgpus.steps import World
from plugin.vgpus.survey import Survey, look
from plugin.vgpus.vgpu_configs import rules_of
from program.child import NoAnswer, output
from program.errors import Refusal, UserError
from program.output import print_text
from program.problem import one_line

_PROGRAM_WITHIN = 120.0  # seconds; sriov-manage unbinds the card and binds it again


class Action(StrEnum):
    APPLY = "apply"


def vgpus(
    flags: UsersFlags,
    action: Annotated[
        Action | None, typer.Argument(metavar="apply", help="Make what the config asks for.", show_default=False)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")] = False,
    undo: Annotated[
        bool,
        typer.Option("--undo", help="Take away what gpu-plugin has made and nobody uses, whatever the config says."),
    ] = False,
    config: Annotated[Path | None, typer.Option(help="The config, whose `vgpus` are rules by card (YAML).")] = None,
    vgpu_configs: Annotated[
        Path | None, typer.Option(help="In place of the config's rules: the file of NVIDIA's vgpu-device-manager.")
    ] = None,
    vgpu_config: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which of its configurations.  [default: default]")
    ] = None,
    sriov_manage: Annotated[
        str,
        typer.Option(
            metavar="COMMAND",
            help="What turns on the virtual functions of NVIDIA's cards; elsewhere: 'chroot DIR "
            "/usr/lib/nvidia/sriov-manage'.",
        ),
    ] = "/usr/lib/nvidia/sriov-manage",
    nvidia_smi: Annotated[
        str, typer.Option(metavar="COMMAND", help="The driver's nvidia-smi; elsewhere: 'chroot DIR nvidia-smi'.")
    ] = "nvidia-smi",
) -> None:
    """Show what cards are cut into; with `apply`, cut them into vGPUs and virtual functions as the config says.

    Nothing that is in use or that somebody else made is touched.
    """
    roots = flags.roots
    sysfs, proc = roots.sys, roots.proc
    script, smi = words("--sriov-manage", sriov_manage), words("--nvidia-smi", nvidia_smi)
    rules = config_of(config)
    if vgpu_configs is not None:
        host, _ = ask(read_host, sysfs)
        rules = replace(rules, vgpus=rules_of(vgpu_configs, vgpu_config or "default", host))
    elif vgpu_config is not None:
        raise UserError("--vgpu-config", "is there without --vgpu-configs", "expected both, or none")
    if undo:
        rules = replace(rules, vgpus=())
    if action is not None and not dry_run and not (flags.is_this_node or flags.dra_state):
        wrong, fix = "is there without --dra-state", "name where the DRA driver of that node keeps its claims"
        raise UserError(f"--sysfs {sysfs}", f"{wrong}: a vGPU of a claim would be taken away", fix)
    journal = roots.journal
    try:
        journal.read()
    except Broken as error:
        if action is None or dry_run or undo:
            raise
        _warn(f"no card is cut: {error}")  # the node's other cards are served
        return
    try:
        flags.claimed()
        knows_claims = True
    except Broken as error:
        _warn(f"which claims have what is not known, and nothing is taken away: {error}")
        knows_claims = False

    def survey(config: Config, *, every: bool = False) -> Survey:
        listed, claims = flags.listed(), flags.claimed() if knows_claims else {}
        ours, processes = journal.read(), partial(read_processes, proc)
        given = partial(users, listed=listed, claimed=claims)
        seen: Survey = ask(look, sysfs, config, ours, processes, given, every=every)[0]
        return seen if knows_claims else seen.all_used("a claim, perhaps")

    if action is None and not dry_run:
        found = survey(rules, every=True)
        _say_what_is_unseen(found)
        print_text("".join(f"{line}\n" for line in lines(found)) or "This node has no card that can be cut.\n")
        return
    lock: AbstractContextManager[object] = nullcontext() if dry_run else journal.alone()
    with lock:
        found = survey(rules)
        wanted = plan(found, rules)
        if dry_run:
            _say_what_is_unseen(found)
            for card, steps in wanted.steps.items():
                for step in steps:
                    _print(card, step)
            problems = wanted.problems
        else:
            if wanted.steps:
                refuse_unseen(found.unseen)
            world = World(
                read=lambda card: ask(read_card, sysfs, card)[0],
                user=lambda name: survey(rules).users.get(name),
                quota=lambda card, number: ask(read_quotas, sysfs, card, number)[0],
                write=sysfs_writer(sysfs),
                sriov_manage=lambda flag, card: call([*script, flag, str(card)], "--sriov-manage"),
                nvidia_smi=lambda arguments: call([*smi, *arguments], "--nvidia-smi"),
                wait=time.sleep,
                uuid=uuid4,
                journal=journal,
            )
            problems = (*wanted.problems, *apply(world, wanted, found.journal, _print))
    if not wanted.steps and not problems:
        print_text("nothing to do\n")
    if problems and knows_claims:
        raise Refusal.of(problems)
    for problem in problems:
        _warn(str(problem))


def call(command: Sequence[str], flag: str) -> None:
    """Call a program of NVIDIA's driver; Failed if it says that it failed, Refusal if it cannot be run."""
    program, fix = " ".join(command), f"install NVIDIA's vGPU manager, or name its program with {flag}"
    try:
        done = output(command, within=_PROGRAM_WITHIN)
    except OSError as error:
        raise Refusal(program, f"cannot be run: {error.strerror}", fix) from error
    except NoAnswer as error:
        raise Failed(program, error.problem.wrong, fix) from error
    if done.returncode:
        last = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()[-1:]
        raise Failed(program, f"ends with {done.returncode}{''.join(f': {line}' for line in last)}", fix)


def _print(card: PCIAddress, step: Step) -> None:
    print_text(f"{card}: {step}\n")


def _say_what_is_unseen(survey: Survey) -> None:
    if (unseen := survey.unseen) is not None:
        _warn(f"who uses the cards was not wholly seen: {unseen}")


def _warn(line: str) -> None:
    print(f"gpu-plugin: {one_line(line)}", file=sys.stderr)
