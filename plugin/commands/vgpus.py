"""`gpu-plugin vgpus`: cuts cards into vGPUs and virtual functions as the config says."""

import asyncio
import os
import sys
import time
from collections.abc import Mapping, Sequence
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
from plugin.binding.former_drivers import locked
from plugin.binding.rebind import Failed, sysfs_writer
from plugin.cards.config import Config
from plugin.changes.processes import read_processes, refuse_unseen
from plugin.changes.users import Listed, users
from plugin.config_file import config_of
from plugin.dra.checkpoint import Checkpoint, claimed
from plugin.flags import DRA_STATE, POD_RESOURCES, STATE, StateDirectory, require_directory, words
from plugin.state_files import Broken, boot_id
from plugin.sysfs_child import ask
from plugin.vgpus.apply import apply
from plugin.vgpus.listing import lines
from plugin.vgpus.made import made_file, read_made
from plugin.vgpus.plan import Step, plan
from plugin.vgpus.steps import World
from plugin.vgpus.survey import Survey, look
from plugin.vgpus.vgpu_configs import rules_of
from program.child import NoAnswer, forked, output
from program.errors import Refusal, UserError
from program.output import print_text
from program.problem import one_line

_PROGRAM_WITHIN = 120.0  # seconds; sriov-manage unbinds the card and binds it again
_KUBELET_WITHIN = 20.0
_SYS = Path("/sys")


class Action(StrEnum):
    APPLY = "apply"


def vgpus(
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
    sysfs: Annotated[
        Path, typer.Option(help="The directory that stands for /sys; its neighbours for /proc and /dev.")
    ] = _SYS,
    pod_resources: Annotated[
        Path | None,
        typer.Option(help="The kubelet's pod resources socket.  [default: the kubelet's, none with --sysfs]"),
    ] = None,
    dra_state: Annotated[
        Path | None,
        typer.Option(help=f"Where the DRA driver keeps its claims.  [default: {DRA_STATE}, none with --sysfs]"),
    ] = None,
    state: StateDirectory = STATE,
) -> None:
    """Show what cards are cut into; with `apply`, cut them into vGPUs and virtual functions as the config says.

    Nothing that is in use or that somebody else made is touched.
    """
    script, smi = words("--sriov-manage", sriov_manage), words("--nvidia-smi", nvidia_smi)
    rules = config_of(config)
    if vgpu_configs is not None:
        host, _ = ask(read_host, sysfs)
        rules = replace(rules, vgpus=rules_of(vgpu_configs, vgpu_config or "default", host))
    elif vgpu_config is not None:
        raise UserError("--vgpu-config", "is there without --vgpu-configs", "expected both, or none")
    if undo:
        rules = replace(rules, vgpus=())
    is_this_node = sysfs == _SYS
    sockets = pod_resources or (POD_RESOURCES if is_this_node and os.path.exists(POD_RESOURCES) else None)  # noqa: PTH110
    require_directory("--dra-state", dra_state)
    if action is not None and not dry_run and not (is_this_node or dra_state):
        wrong, fix = "is there without --dra-state", "name where the DRA driver of that node keeps its claims"
        raise UserError(f"--sysfs {sysfs}", f"{wrong}: a vGPU of a claim would be taken away", fix)
    proc = sysfs.absolute().parent / "proc"
    boot = boot_id(proc)
    checkpoint = Checkpoint(dra_state or DRA_STATE, boot) if is_this_node or dra_state else None
    try:
        read_made(state, boot)
    except Broken as error:
        if action is None or dry_run or undo:
            raise
        _warn(f"no card is cut: {error}")  # the node's other cards are served
        return
    try:
        _claimed(checkpoint)
        knows_claims = True
    except Broken as error:
        _warn(f"which claims have what is not known, and nothing is taken away: {error}")
        knows_claims = False

    def survey(config: Config, *, every: bool = False) -> Survey:
        listed, claims = _listed(sockets), _claimed(checkpoint) if knows_claims else {}
        made, processes = read_made(state, boot), partial(read_processes, proc)
        given = partial(users, listed=listed, claimed=claims)
        seen: Survey = ask(look, sysfs, config, made, processes, given, every=every)[0]
        return seen if knows_claims else seen.all_used("a claim, perhaps")

    if action is None and not dry_run:
        found = survey(rules, every=True)
        _say_what_is_unseen(found)
        print_text("".join(f"{line}\n" for line in lines(found)) or "This node has no card that can be cut.\n")
        return
    lock: AbstractContextManager[object] = nullcontext() if dry_run else locked(state)
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
                made=made_file(state, boot),
                boot=boot,
            )
            problems = (*wanted.problems, *apply(world, wanted, found.made, _print))
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


def _listed(socket: Path | None) -> Listed:
    """Return what the kubelet has given out; Refusal if it does not answer."""
    if socket is None:
        return Listed()
    # In a child: grpc has threads, and a process with threads must not fork.
    return forked(f"the kubelet at {socket}", partial(_pods, socket), within=_KUBELET_WITHIN).answer()


def _pods(socket: Path) -> Listed:
    from plugin.watch import podresources

    return asyncio.run(podresources.list_pods(socket, at_most=_KUBELET_WITHIN / 2))


def _claimed(checkpoint: Checkpoint | None) -> Mapping[str, str]:
    return {} if checkpoint is None else claimed(checkpoint.read())


def _print(card: PCIAddress, step: Step) -> None:
    print_text(f"{card}: {step}\n")


def _say_what_is_unseen(survey: Survey) -> None:
    if (unseen := survey.unseen) is not None:
        _warn(f"who uses the cards was not wholly seen: {unseen}")


def _warn(line: str) -> None:
    print(f"gpu-plugin: {one_line(line)}", file=sys.stderr)
