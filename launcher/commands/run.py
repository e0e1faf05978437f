"""gpu-launcher run: makes the plan of a VM. launcher.runtime has the processes that follow the plan."""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from launcher.commands.answers import report_findings
from launcher.commands.local import Local, located
from launcher.manifest.identity import NODE
from launcher.pipeline.start import Start, start_of
from launcher.pipeline.this_pod import ThisPod
from launcher.runtime.embedded import DEFAULT_URI, has_qemu_here, root_of
from launcher.runtime.plan import RunPlan
from launcher.runtime.user import LIMITS, asked_for
from launcher.runtime.vm import VMIdentity
from launcher.runtime.worker import TO_ITS_END
from launcher.vm.domain import domain_name, socket_directory
from launcher.vm.network.guest import refuse_forwarded, script
from launcher.vm.paths import CONTROL_SOCKET, DOWNWARD_METRICS, SOCKET_IN_ROOT, SUSPENDED
from launcher.vm.volumes.files import credentials_of, shares_of
from pci.resource import FABRIC_MANAGER
from program import errors
from program.bootstrap import values_of
from program.errors import UserError
from program.flags import Flag
from program.log import LogFlags, log_or_print
from program.ports import ALLOW_HOST, METAVAR, HTTPPort, host_name, http_port, reached_by
from program.problem import Severity


def run(
    flags: Local,
    logs: LogFlags,
    to_its_end: Annotated[
        bool,
        typer.Option(TO_ITS_END, help="Exit with 16 if the VM is asked to end before its guest has, as in a Job."),
    ] = False,
    receive: Annotated[
        bool,
        typer.Option("--receive", help="Have the guest of another launcher, which `gpu-launcher ctl send` sends."),
    ] = False,
    socket: Annotated[
        Path | None,
        typer.Option(
            help="Where `gpu-launcher ctl` and KubeVirt's clients can ask.  "
            f"[default: {CONTROL_SOCKET}; ROOT/{SOCKET_IN_ROOT} of another root; none of another libvirt]"
        ),
    ] = None,
    metrics: Annotated[
        HTTPPort | None,
        Flag("Serve Prometheus metrics of the VM there, at /metrics.", metavar=METAVAR, parser=http_port),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        Flag(
            "A name by which the metrics are reached, like a Service's; may be given again.",
            metavar="NAME",
            parser=host_name,
        ),
    ] = None,
) -> RunPlan:
    """Define and start a VM, and stay with it until it ends."""
    root_of(flags.connect)  # a wrong URI is the first error
    _refuse_what_was_not_done(flags)
    parsed, pod, uri, own = located(flags)
    if receive and root_of(uri) is None:
        raise UserError("--receive", "is for the libvirt in the launcher", "leave --connect out")
    control = socket or _control_socket(uri, root_of(uri))
    start = start_of(parsed.instance, pod, ThisPod(uri=uri, emulation=flags.emulation, own=own))
    try:
        report_findings(start, parsed)
    except errors.UserError as error:
        # The user has not written the pod's variables.
        raise errors.Refusal.of(error.problems, error.left_out) from error
    if metrics is not None:
        refuse_forwarded(metrics.number, parsed.instance.spec)
        metrics = reached_by(metrics, parsed.instance.metadata.name, *allow_host or ())
    elif allow_host:
        raise UserError(ALLOW_HOST, "is for --metrics", "add --metrics, or leave it out")
    if os.geteuid() == 0 and flags.user is None and root_of(uri) is not None:
        words = "QEMU runs as root, as in no pod that gpu-launcher prints; --user names another user"
        log_or_print("gpu-launcher", words, Severity.WARNING)
    return replace(_plan(start, uri, control), metrics=metrics, sys=flags.sysfs, receives=receive)


def _plan(start: Start, uri: str, control: Path | None) -> RunPlan:
    assert start.xml is not None, "nothing was refused"
    assert start.layout is not None, "nothing was refused"
    vmi, metadata = start.vmi, start.vmi.metadata
    return RunPlan(
        identity=VMIdentity(metadata.namespace, metadata.name, str(metadata.uid or "")),
        domain=domain_name(metadata),
        xml=start.xml,
        numbers=start.layout.numbers(),
        sockets=socket_directory(vmi, start.facts),
        needs=start.needs,
        uri=uri,
        locked=start.locked,
        acpi=vmi.spec.domain.features.acpi.enabled,
        grace=vmi.spec.terminationGracePeriodSeconds,
        paused=vmi.spec.startStrategy == "Paused",
        control=control,
        credentials=credentials_of(vmi),
        shares=shares_of(vmi) if has_qemu_here(uri) else (),
        downward_metrics=_downward_metrics(start),
        node=start.pod.environ.get(NODE) or os.uname().nodename,
        passt=script(start.network_cards),
        asks_nvidia_smi=metadata.annotations.asks_nvidia_smi,
        fabric_manager=start.pod.environ.get(FABRIC_MANAGER),
        suspend_to=Path(SUSPENDED) if metadata.annotations.suspend_to and start.facts.own is None else None,
        suspends_on_drain=metadata.annotations.suspends_on_drain,
    )


def _downward_metrics(start: Start) -> Path | None:
    """Return the disk that is kept fresh for the guest, if this process makes it."""
    is_wanted = any(volume.downwardMetrics is not None for volume in start.vmi.spec.volumes)
    return Path(start.facts.place(DOWNWARD_METRICS)) if is_wanted and start.needs else None


def _refuse_what_was_not_done(flags: Local) -> None:
    """Compare the flags with what the first process has done by its own reading of them (launcher.runtime.user, and
    own_user on an own machine)."""
    limits = flags.limits or []
    if flags.user is None and (flags.give or limits) and not flags.is_own_machine:
        raise UserError("--give and --raise", "are for nobody", "expected --user=UID as well, whom they are for")
    read: dict[str, Sequence[str | Path]] = {
        "--user": [] if flags.user is None else [flags.user],
        "--give": flags.give or [],
        "--raise": limits,
        "--gpu": flags.gpu or [],
        "--disk": flags.disk or [],
        "--port": flags.port or [],
    }
    ahead: dict[str, Sequence[str | Path]] = {flag: values_of(flag, sys.argv[2:]) for flag in read}
    ahead |= {"--user": ahead["--user"][-1:], "--give": [*map(Path, ahead["--give"])]}
    is_number = flags.user is None or asked_for(sys.argv[2:]) is not None
    if ahead != read or not (is_number or flags.is_own_machine):
        wrong = "are read before any other flag, which was not understood so"
        fix = "write each as one word, like --user=107, in a pod in digits"
        raise UserError(", ".join(read), wrong, fix)
    if unknown := [limit for limit in limits if limit not in LIMITS]:
        raise UserError(f"--raise={unknown[0]}", "is no limit that it raises", f"expected {' or '.join(LIMITS)}")


def _control_socket(uri: str, root: Path | None) -> Path | None:
    """KubeVirt's place in a pod. Elsewhere there may be several launchers, and each has its socket in its own root;
    without a root there is none, and the VM is controlled through its libvirt."""
    if uri == DEFAULT_URI:
        return Path(CONTROL_SOCKET)
    return None if root is None else root / SOCKET_IN_ROOT
