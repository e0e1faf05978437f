"""The pod that a command is about: its variables, its /sys, what DRA gave it, and what the stages read there."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from launcher.claims import DeviceID, Entry, Request
from launcher.cpus.host import address_bits, processors_of
from launcher.guest import Guest
from launcher.manifest.hostdevices import ResourceClaim
from launcher.pipeline.environ import variables
from pci.host import Host
from pci.processors import UNKNOWN, Processors
from pci.sysfs.attribute import CannotLook
from pci.sysfs.functions import NotSysfs, read_host
from program.errors import Refusal, UserError

SYS = Path("/sys")
_CPUINFO = Path("/proc/cpuinfo")


class Pod(NamedTuple):
    """The pod whose devices are passed on: this one, or what the flags say of one; None for what they don't say.

    `offline`: whether it is another one than the pod that this process is in.
    """

    environ: Mapping[str, str]
    sysfs: Path | None
    dra: Path | None = None
    offline: bool = False


def this_pod(sysfs: Path) -> Pod:
    """Return the pod that this process is in, with the directory that stands for its /sys."""
    return Pod(environ=os.environ, sysfs=sysfs)


def pod_of(env: list[str] | None, env_file: Path | None, sysfs: Path | None, dra: Path | None) -> Pod:
    """Return the pod that the flags of `render` describe, which without --env and --env-file is this one."""
    if env is None and env_file is None:
        return Pod(environ=os.environ, sysfs=sysfs or SYS, dra=dra)
    return Pod(environ=variables(env or [], env_file), sysfs=sysfs, dra=dra, offline=True)


def host_in(entries: tuple[Entry, ...], pod: Pod) -> Host | None:
    """Read the node's devices; UserError where the pod's sysfs is none, Refusal where it cannot be listed.

    A VM without devices starts where there is no /sys at all; what a flag names is looked at in any case.
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
    """Read what DRA gave to this entry, which is empty for one that is no request; UserError where that is not told."""
    if not isinstance(entry.wants, Request):
        return {}
    from launcher.dra import read_allocated
    from pci.device_metadata import IN_CONTAINER

    directory = pod.dra if pod.offline else pod.dra or IN_CONTAINER
    return read_allocated((entry,), claims, directory)


def processors_in(guest: Guest, pod: Pod) -> Processors:
    """Read those of the node, where the guest is to get some of them; Refusal where that cannot be read."""
    asked = guest.has_own_cpus or guest.topology != "none"
    return processors_of(pod.sysfs) if asked and pod.sysfs is not None else UNKNOWN


def address_bits_in(pod: Pod) -> int | None:
    """Return those of this machine's CPUs; None where it is another machine that it is about."""
    return None if pod.offline or pod.sysfs != SYS else address_bits(_CPUINFO)
