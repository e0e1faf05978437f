"""All that it takes to run a VM once its manifest is understood; made in a process of its own, which then ends.

What reads, checks and renders manifests takes 20 MB that are of no use beside a running guest.
"""

import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.runtime.grace import HEADER
from launcher.runtime.vm import Identity
from launcher.storage.credentials import AgentCredential
from launcher.storage.media import Need
from launcher.storage.shares import Share


@dataclass(frozen=True)
class RunPlan:
    """A domain, where it runs, and how it ends.

    `domain` is the domain's name in `xml`; `numbers` are the bus numbers that the guest will have, by index of the
    controller. `sockets` is the directory of the domain's sockets, and `needs` what else of it has to be on disk.
    `locked` are the bytes that QEMU has to be able to lock, 0 where it is not this pod's or has no card. `grace` are
    the seconds that the guest has to shut down, which a guest without `acpi` is not asked to. One that is to start
    `paused` waits for somebody to resume it. `control` is the socket on which the VM can be asked, None for nowhere.
    `credentials` are for the guest's agent, and `shares` for virtiofsd to serve.
    `passt` is the program that libvirt is to call for passt, as text; None where the guest has no network.
    """

    identity: Identity
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
    credentials: tuple[AgentCredential, ...] = ()
    shares: tuple[Share, ...] = ()
    passt: str | None = None


def keep(plan: RunPlan, place: int) -> None:
    """Write the plan into that file, for processes that outlive this one."""
    os.write(place, HEADER.pack(plan.grace) + pickle.dumps(plan))


def plan_in(place: int) -> RunPlan | None:
    """The plan that was kept there; None where none was."""
    size = os.fstat(place).st_size - HEADER.size
    return pickle.loads(os.pread(place, size, HEADER.size)) if size > 0 else None  # noqa: S301 our own process wrote it
