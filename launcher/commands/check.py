"""gpu-launcher check."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from launcher import paths
from launcher.checks import finding as written
from launcher.checks.finding import error
from launcher.checks.programs import machine_type, qemu_version, versions
from launcher.commands.options import Local, VMArgument, one_vm
from launcher.pipeline.pod import SYS, this_pod
from launcher.pipeline.start import Start, start_of
from launcher.pipeline.this_pod import Here
from launcher.runtime.embedded import is_taken, root_of
from launcher.runtime.user import become_owner_of
from program.commands import AsJSON
from program.errors import Refusal
from program.finding import Finding, worst, worst_first
from program.output import print_text
from program.problem import Severity
from program.terminal import is_coloured


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

    Nothing is started and nothing is written. The exit code is 0 where there is nothing to say, 3 for warnings, 4 for
    errors, with which `run` does not start it.
    """
    become_owner_of(Path(paths.LIBVIRT_ROOT, "etc"))  # which the launcher of the guest has made
    pod = this_pod(flags.sysfs)
    given = one_vm(flags, pod.environ)
    if dev is None and flags.sysfs == SYS:
        dev = Path("/dev")
    root = root_of(flags.connect)
    # Also if it is paused, and so not ready: nobody else uses its cards.
    guest_runs = root is not None and is_taken(root)
    here = Here(uri=flags.connect, emulation=flags.emulation, dev=dev, guest_runs=guest_runs)
    start = start_of(given.instance, pod, here)
    findings = worst_first([*start.all_findings, *_of_versions(start, flags.connect)])
    if as_json:
        print_text(written.as_json(findings))
    else:
        placed = tuple(Finding(finding.severity, given.located(finding.problem)) for finding in findings)
        print_text(written.page(placed, coloured=is_coloured(1)))
    raise typer.Exit(worst(findings).exit_code)


def _of_versions(start: Start, uri: str) -> list[Finding]:
    """What libvirt or QEMU here is too old for. The embedded driver is not connected to: its root may be the running
    guest's."""
    try:
        from launcher.runtime.guest import library_version, versions_at

        if root_of(uri) is not None:
            libvirt, qemu = library_version(), qemu_version(f"qemu-system-{start.guest.qemu_architecture}")
        else:
            libvirt, qemu = versions_at(uri)
    except Refusal as refusal:
        return [Finding(Severity.ERROR, problem) for problem in refusal.problems]
    except ModuleNotFoundError as missing:
        return [
            error("libvirt", f"the Python package {missing.name} is not there", "pip install 'gpu-launcher[libvirt]'")
        ]
    finding = machine_type(start.guest.machine, qemu)
    return [*([] if finding is None else [finding]), *versions(start.newer, libvirt, qemu)]
