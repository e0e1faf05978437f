"""The pod that a command is about: its variables, its /sys, and what the stages read there."""

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from launcher.claims import DeviceID, Entry, LeftOver, Request
from launcher.cpus.host import address_bits, processors_of
from launcher.errors import UserError
from launcher.hostdevs import Card, passed_on
from launcher.manifest.spec import VirtualMachineInstance
from pci.host import Host
from pci.processors import UNKNOWN, Processors
from pci.sysfs.functions import NotSysfs, read_host

SYS = Path("/sys")
_CPUINFO = Path("/proc/cpuinfo")


class Pod(NamedTuple):
    """The pod whose devices are passed on: this one, or what the flags say of one; None for what they don't say."""

    environ: Mapping[str, str]
    sysfs: Path | None
    dra: Path | None
    offline: bool


def pod_of(env: list[str] | None, env_file: Path | None, sysfs: Path | None, dra: Path | None) -> Pod:
    if env is None and env_file is None:
        return Pod(environ=os.environ, sysfs=sysfs or SYS, dra=dra, offline=False)
    return Pod(environ=_environ(env or [], env_file), sysfs=sysfs, dra=dra, offline=True)


def passed_on_in(vmi: VirtualMachineInstance, pod: Pod) -> tuple[tuple[Card, ...], tuple[LeftOver, ...], Host | None]:
    host = host_in(vmi, pod)
    entries, companions = vmi.spec.domain.devices.entries, vmi.metadata.annotations.companions
    return *passed_on(entries, pod.environ, host, allocated_in(vmi, pod, entries), companions), host


def host_in(vmi: VirtualMachineInstance, pod: Pod) -> Host | None:
    # A VM without devices renders where there is no /sys at all; what a flag names is looked at in any case.
    devices = vmi.spec.domain.devices
    return _host(pod.sysfs) if devices.gpus or devices.hostDevices or pod.sysfs != SYS else None


def allocated_in(vmi: VirtualMachineInstance, pod: Pod, asking: tuple[Entry, ...]) -> Mapping[Request, DeviceID]:
    """What DRA gave to these entries."""
    if not any(isinstance(entry.wants, Request) for entry in asking):
        return {}
    from launcher.dra import read_allocated
    from pci.device_metadata import IN_CONTAINER

    directory = pod.dra if pod.offline else pod.dra or IN_CONTAINER
    return read_allocated(asking, vmi.spec.resourceClaims, directory)


def processors_in(vmi: VirtualMachineInstance, sysfs: Path | None) -> Processors:
    """Those of the node, where the guest is to get some of them."""
    asked = vmi.spec.domain.cpu.dedicatedCpuPlacement or vmi.metadata.annotations.topology != "none"
    if sysfs is None or not asked:
        return UNKNOWN
    return processors_of(sysfs)


def address_bits_in(pod: Pod) -> int | None:
    """Those of this machine's CPUs, where it is this machine that it is about."""
    return None if pod.offline or pod.sysfs != SYS else address_bits(_CPUINFO)


def _host(sysfs: Path | None) -> Host | None:
    if sysfs is None:
        return None
    try:
        return read_host(sysfs)
    except NotSysfs as error:
        raise UserError(str(error)) from error


def _environ(settings: list[str], path: Path | None) -> Mapping[str, str]:
    """Variables from --env-file, then from --env, which win."""
    variables = _env_file(path) if path is not None else {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not (name and equals):
            raise UserError(f"--env {setting}: expected NAME=VALUE")
        variables[name] = value
    return variables


def _env_file(path: Path) -> dict[str, str]:
    """NAME=VALUE lines, as `env` prints them in a pod; or as `export` does there, with quotes."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise UserError(f"{path}: cannot read the variables: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: cannot read the variables: {error}") from error
    variables = {}
    for number, line in enumerate(lines, start=1):
        setting = _unexported(line)
        if not setting.strip() or setting.startswith("#"):
            continue
        name, equals, value = setting.partition("=")
        if not (name and equals) or " " in name:
            raise UserError(f"{path}: line {number}: expected NAME=VALUE, found {line[:60]!r}")
        variables[name] = value
    return variables


def _unexported(line: str) -> str:
    """NAME=VALUE of a line as the shell's `export` prints it; empty for a name that is exported without a value."""
    exported = re.match(r"(?:export|declare -[a-z]*x[a-z]*) (.*)", line)
    if exported is None:
        return line
    try:
        words = shlex.split(exported[1])
    except ValueError:
        return line  # a quote that is never closed
    if len(words) != 1:
        return line
    return words[0] if "=" in words[0] else ""
