"""`gpu-plugin vgpus` on a tree of tests.vgpu_kernel, without a process for each read and write."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from uuid import UUID

from pci.host import Host
from pci.sysfs.functions import read_host
from plugin.cards.config import Config, Serve
from plugin.cards.inventory import Inventory, take_inventory
from plugin.cards.names import PCIIDs
from plugin.cards.vgpu_rules import VGPURule
from plugin.changes import engine
from plugin.changes.journal import Journal, JournalFile
from plugin.changes.users import Assignment, KubeletList, Users, users
from plugin.dra.checkpoint import Checkpoint, Prepared, PreparedDevice, claimed
from plugin.kinds.cut import Survey, look, types_of
from plugin.kinds.vgpus import Plan, apply, plan
from plugin.state_files import boot_id
from program.problem import Problem
from tests.faults import Faults, FaultyJournal
from tests.vgpu_kernel import Card, Kernel


def _uuids() -> Iterator[UUID]:
    return (UUID(int=number) for number in count(0xA0))


class Node(Kernel):
    """A node with these cards, and its config.

    `apply` is killed at the moment `kill_at` of its `faults`, from 1. `gone` have been given to pods before a boot, and
    the kubelet still lists them. A guest opens what is in `arriving` right before that is looked at.
    """

    def __init__(self, root: Path, *cards: Card, drivers: tuple[str, ...] = ("vfio-pci",)) -> None:
        super().__init__(root, *cards, drivers=drivers)
        self.config = Config()
        self.gone: dict[str, str] = {}
        self.arriving: set[str] = set()
        self.waited = 0.0
        self.kill_at, self.faults = 0, Faults()
        self._claims = root / "dra"
        self._uuids = _uuids()

    def wants(self, *rules: VGPURule) -> None:
        self.config = Config(vgpus=rules, serve=Serve.DRA)

    def boot(self) -> None:
        gone = dict(self.pods)
        super().boot()
        self.gone = gone

    @property
    def journal(self) -> Journal:
        return JournalFile(self.state, boot_id(self.proc)).read()

    def claim(self, name: str) -> None:
        """The DRA driver prepares a claim for what has this name."""
        self.claims[name] = f"ResourceClaim default/{name}"
        self._prepare()

    def unclaim(self, name: str) -> None:
        del self.claims[name]
        self._prepare()

    def _prepare(self) -> None:
        Checkpoint(self._claims, boot_id(self.proc)).write(
            {
                f"uid-{name}": Prepared("default", name, True, (PreparedDevice("gpu", f"pci-{name}", name),))
                for name in self.claims
            }
        )

    def users(self, host: Host) -> Users:
        """Who has what by the kubelet's list and the DRA driver's file."""
        pods = {**self.gone, **self.pods}
        assignments = frozenset(Assignment(pod, "nvidia.com/vgpu", name) for name, pod in pods.items())
        prepared = claimed(Checkpoint(self._claims, boot_id(self.proc)).read())
        return users(host, KubeletList(assignments=assignments), prepared)

    def survey(self) -> Survey:
        return look(self.sys, self.config, self.journal, self.processes, self.users)

    def inventory(self, pci_ids: PCIIDs) -> Inventory:
        """What the plugin offers of the node."""
        host = read_host(self.sys)
        return take_inventory(replace(host, vgpu_types=types_of(host, self.journal)), self.config, pci_ids)

    def plan(self) -> Plan:
        return plan(self.survey(), self.config)

    def steps(self) -> list[str]:
        """What a dry run prints."""
        return [f"{card}: {step}" for card, steps in self.plan().changes.items() for step in steps]

    def apply(self) -> tuple[Problem, ...]:
        return self.carry_out(self.plan())

    def carry_out(self, planned: Plan) -> tuple[Problem, ...]:
        faults = self.faults = Faults(self.kill_at)
        node = engine.NodeIO(
            sys=self.sys,
            journal=FaultyJournal(self.state, boot_id(self.proc), faults),
            write=faults.around(self.write),
            ask=lambda read, sys, *arguments: read(sys, *arguments),
            user=self._user,
            run=faults.around(self.run),
            wait=self._wait,
            uuid=lambda: next(self._uuids),
        )
        return (*planned.problems, *apply(node, planned, self.survey(), lambda card, change: None))

    def _user(self, name: str) -> str | None:
        if name in self.arriving:
            self.arriving.discard(name)
            self.guests[name] = "qemu-system-x86 (pid 812)"
        return self.survey().users.get(name)

    def _wait(self, seconds: float) -> None:
        self.waited += seconds
