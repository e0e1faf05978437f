"""gpu-launcher check."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from launcher.commands.local import Local, located
from launcher.commands.options import VMArgument
from launcher.pipeline.pod import SYS
from launcher.pipeline.start import Start, start_of
from launcher.pipeline.this_pod import ThisPod
from launcher.runtime.capabilities import broken_emulation, broken_kvm, names_in
from launcher.runtime.embedded import is_taken, root_of
from launcher.runtime.own_user import start_over
from launcher.runtime.user import switch_to_owner_of
from launcher.vm import checks as written
from launcher.vm import paths
from launcher.vm.checks import error
from launcher.vm.programs import qemu_version, versions
from program.child import spawned
from program.commands import AsJSON
from program.errors import Refusal, UserError
from program.finding import Finding, worst, worst_first
from program.log import log_or_print
from program.output import print_text
from program.problem import Problem, Severity
from program.terminal import is_coloured

_WITHIN = 60.0  # seconds for libvirt to find out what QEMU can do: 0.6, or 4 on a busy machine


@dataclass(frozen=True, kw_only=True)
class _Flags(Local):
    vm: VMArgument = Path(paths.MANIFEST)


def check(
    flags: _Flags,
    dev: Annotated[
        Path | None, typer.Option(help="The directory that stands for /dev.  [default: /dev, none with --sysfs]")
    ] = None,
    as_json: AsJSON = False,
) -> None:
    """Say what keeps a VM from starting here, or from doing well, and what to do about it.

    No guest is started and nothing is left. The exit code is 0 where there is nothing to say, 3 for warnings, 4 for
    errors, with which `run` does not start it.
    """
    start_over(sys.argv[2:], partial(log_or_print, "gpu-launcher"))
    if (flags.user is not None or flags.give or flags.limits) and not flags.is_own_machine:
        raise UserError("--user, --give and --raise", "are for a VM without a cluster here", "leave them out")
    switch_to_owner_of(Path(paths.LIBVIRT_ROOT, "etc"))  # which the launcher of the guest has made
    parsed, pod, uri, own = located(flags)
    if dev is None and flags.sysfs == SYS:
        dev = Path("/dev")
    root = root_of(uri)
    # Also if it is paused, and so not ready: nobody else uses its cards.
    guest_runs = root is not None and is_taken(root)
    place = ThisPod(uri=uri, emulation=flags.emulation, dev=dev, guest_runs=guest_runs, own=own)
    start = start_of(parsed.instance, pod, place)
    findings = worst_first([*start.all_findings, *_of_libvirt(start, place)])
    if as_json:
        print_text(written.as_json(findings))
    else:
        placed = tuple(Finding(finding.severity, parsed.located(finding.problem)) for finding in findings)
        print_text(written.page(placed, coloured=is_coloured(1)))
    raise typer.Exit(worst(findings).exit_code)


def _of_libvirt(start: Start, place: ThisPod) -> list[Finding]:
    """What libvirt and QEMU here are too old for, or do not know. The embedded driver is not connected to: its root may
    be the running guest's."""
    try:
        from launcher.runtime.guest import library_version, unknown_names_at, versions_at

        program = f"qemu-system-{start.guest.qemu_architecture}"
        root = root_of(place.uri)
        libvirt, qemu = versions_at(place.uri) if root is None else (library_version(), qemu_version(program))
        findings = list(versions(start.newer, libvirt, qemu))
        if place.guest_runs:
            return findings  # it shows that they are there, and what would ask QEMU needs memory of the guest's
        if start.xml is None or (root is not None and qemu is None):
            why = "there is no QEMU here" if start.xml is not None else "the errors above leave no domain to look at"
            return [*findings, _not_looked_at(why)]
        if root is None:
            return [*findings, *_errors(unknown_names_at(place.uri, start.xml))]
        return [*findings, *_of_qemu(start, start.xml, root, program)]
    except Refusal as refusal:
        return _errors(refusal.problems)
    except ModuleNotFoundError as missing:
        return [
            error("libvirt", f"the Python package {missing.name} is not there", "pip install 'gpu-launcher[libvirt]'")
        ]


def _of_qemu(start: Start, xml: str, root: Path, program: str) -> list[Finding]:
    """What libvirt and QEMU in this container have not of what the domain names, and whether QEMU can use KVM, or has
    the guest's CPU itself."""
    from launcher.runtime.guest import unknown_names_apart

    try:
        problems = spawned("libvirt", partial(unknown_names_apart, root, xml), within=_WITHIN).answer()
    except OSError as failed:
        return [_not_looked_at(f"there is no place for another libvirt: {failed.strerror}")]
    if problems:
        return _errors(problems)
    broken = (broken_kvm if start.facts.kvm else broken_emulation)(program, names_in(xml))
    return [] if broken is None else [broken]


def _not_looked_at(why: str) -> Finding:
    return Finding(
        Severity.NOTE,
        Problem("machine, CPU model and KVM", f"were not looked at: {why}", "check it in the pod, or with its image"),
    )


def _errors(problems: Iterable[Problem]) -> list[Finding]:
    return [Finding(Severity.ERROR, problem) for problem in problems]
