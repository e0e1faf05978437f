"""Everything that running a VM needs once its manifest is understood. A process of its own makes the plan and ends: the
modules that read, check and render manifests take 20 MB, of no use beside a running guest.
"""

import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.runtime.supervise import GRACE
from launcher.runtime.vm import VMIdentity
from launcher.vm.credentials.files import AgentCredential
from launcher.vm.volumes.media import Need, Share
from program.ports import HTTPPort


@dataclass(frozen=True)
class RunPlan:
    """A domain, where it runs, and how it ends.

    `domain`: the domain's name in `xml`. `numbers`: the guest's bus numbers, by the index of their controllers.
    `sockets`: the directory of the domain's sockets; `needs`: other files that have to be on disk. `locked`: the bytes
    that QEMU has to be able to lock, 0 for another libvirt or without cards. `grace`: the seconds that the guest has to
    shut down; a guest without `acpi` is not asked to. `paused`: the VM starts paused, until somebody resumes it.
    `control`: the control socket, None for none. `metrics`: the port for metrics, None for none. `sys` stands for /sys.
    `credentials` are for the guest's agent, `shares` for virtiofsd. `downward_metrics`: the guest's disk with metrics
    of its host, None for none; `node`: the host's name in them. `passt`: the script that libvirt calls as passt; None
    if the guest has no network. `asks_nvidia_smi`: the guest's agent may be asked to run it. `fabric_manager`: the
    version of the one that gave the guest's GPUs their NVLinks. `suspend_to`: where the claim for the guest's memory is
    mounted, None for none; `suspends_on_drain`: whether SIGTERM suspends the guest. `receives`: the guest comes from
    another launcher.
    """

    identity: VMIdentity
    domain: str
    xml: str
    numbers: Mapping[int, int]
    sockets: Path
    needs: tuple[Need, ...]
    uri: str
    locked: int
    acpi: bool
    grace: float
    paused: bool = False
    control: Path | None = None
    metrics: HTTPPort | None = None
    sys: Path = Path("/sys")
    credentials: tuple[AgentCredential, ...] = ()
    shares: tuple[Share, ...] = ()
    downward_metrics: Path | None = None
    node: str = ""
    passt: str | None = None
    asks_nvidia_smi: bool = False
    fabric_manager: str | None = None
    suspend_to: Path | None = None
    suspends_on_drain: bool = False
    receives: bool = False


def keep(plan: RunPlan, place: int) -> None:
    """Write the plan into the file `place`, for processes that outlive this one."""
    os.write(place, GRACE.pack(plan.grace) + pickle.dumps(plan))


def plan_in(place: int) -> RunPlan | None:
    """Read the plan from the file `place`; None if there is none."""
    size = os.fstat(place).st_size - GRACE.size
    return pickle.loads(os.pread(place, size, GRACE.size)) if size > 0 else None  # noqa: S301 our own process wrote it
