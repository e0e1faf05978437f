"""The pod that a command is about: its variables, its /sys, its devices by DRA, and what the stages read there."""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from launcher.pipeline.own_machine import variables_of
from launcher.vm.cards.claims import DeviceID, Entry, Request
from launcher.vm.cards.manifest import ResourceClaim
from launcher.vm.cpu.facts import address_bits
from launcher.vm.spec import VirtualMachineInstance
from pci.host import Host, TransparentPages
from pci.sysfs.attribute import CannotLook, Unreadable
from pci.sysfs.functions import NotSysfs, read_host
from pci.sysfs.huge_pages import read_transparent
from program.errors import Refusal, UserError
from program.input import read_input_bytes

SYS = Path("/sys")
_CPUINFO = Path("/proc/cpuinfo")
_LARGEST = 4 << 20  # twice what Linux gives a process
_VARIABLE = "expected NAME=VALUE"
_VARIABLES = f"{_VARIABLE} on each line of a file of text"


class Pod(NamedTuple):
    """The pod whose devices are passed on: the pod of this process, or one that flags describe (then `offline`), with
    None for what they leave out.
    """

    environ: Mapping[str, str]
    sysfs: Path | None
    dra: Path | None = None
    offline: bool = False


def this_pod(sysfs: Path) -> Pod:
    """Return the pod that this process is in, with the directory that stands for its /sys."""
    return Pod(environ=os.environ, sysfs=sysfs)


def pod_of(env: list[str] | None, env_file: Path | None, sysfs: Path | None, dra: Path | None) -> Pod:
    """Return the pod that the flags of `render` describe, which without --env and --env-file is this one.

    --env wins over --env-file. UserError for what is not NAME=VALUE.
    """
    if env is None and env_file is None:
        return Pod(environ=os.environ, sysfs=sysfs or SYS, dra=dra)
    environ = _variables_in(env_file) if env_file is not None else {}
    for setting in env or []:
        name, equals, value = setting.partition("=")
        if not (name and equals):
            raise UserError(f"--env {setting}", "has no name and value", _VARIABLE)
        environ[name] = value
    return Pod(environ=environ, sysfs=sysfs, dra=dra, offline=True)


def with_gpus(pod: Pod, gpus: Sequence[str], vmi: VirtualMachineInstance) -> Pod:
    """Return the pod with the variables of these cards, by the addresses that --gpu has."""
    return pod._replace(environ={**pod.environ, **variables_of(gpus, vmi.spec.domain.devices.entries)})


def _variables_in(path: Path) -> dict[str, str]:
    """Read NAME=VALUE lines as `env` prints them in a pod, or as `export` does, with quotes."""
    try:
        lines = read_input_bytes(path, _LARGEST, _VARIABLES).decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(path, f"cannot read the variables: {error}", _VARIABLES) from error
    values = {}
    for number, line in enumerate(lines, start=1):
        setting = _unexported(line)
        if not setting.strip() or setting.startswith("#"):
            continue
        name, equals, value = setting.partition("=")
        if not (name and equals) or " " in name:
            raise UserError(f"{path}: line {number}", f"found {line[:60]!r}", _VARIABLE)
        values[name] = value
    return values


def _unexported(line: str) -> str:
    """NAME=VALUE of a line that the shell's `export` prints; empty for a name that is exported without a value."""
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


def host_in(entries: tuple[Entry, ...], pod: Pod) -> Host | None:
    """Read the node's devices. None without a sysfs, or for a VM without devices, unless a flag names the sysfs.

    UserError if the directory is no sysfs, Refusal if it cannot be listed.
    """
    if pod.sysfs is None or not (entries or pod.sysfs != SYS):
        return None
    try:
        return read_host(pod.sysfs)
    except NotSysfs as error:
        raise UserError(pod.sysfs, error.wrong, error.fix) from error
    except CannotLook as error:
        raise Refusal(*error.words(pod.sysfs)) from error


def allocated_in(claims: tuple[ResourceClaim, ...], pod: Pod, entry: Entry) -> Mapping[Request, DeviceID]:
    """Read what DRA gave to this entry; empty for an entry that is no request. UserError if nothing says that."""
    if not isinstance(entry.wants, Request):
        return {}
    from launcher.vm.cards.dra import read_allocated
    from pci.device_metadata import IN_CONTAINER

    directory = pod.dra if pod.offline else pod.dra or IN_CONTAINER
    return read_allocated((entry,), claims, directory)


def transparent_in(pod: Pod) -> TransparentPages:
    """Read the node's settings of transparent huge pages; a setting that cannot be read is unknown."""
    try:
        return TransparentPages() if pod.sysfs is None else read_transparent(pod.sysfs)
    except Unreadable:
        return TransparentPages()


def address_bits_in(pod: Pod) -> int | None:
    """Return the physical address bits of this machine's CPUs; None if the pod is on another machine."""
    return None if pod.offline or pod.sysfs != SYS else address_bits(_CPUINFO)
