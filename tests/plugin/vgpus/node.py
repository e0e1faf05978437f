"""`gpu-plugin vgpus` on a tree of tests.vgpu_kernel, without a process for each read and write."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from uuid import UUID

from pci.sysfs.vgpus import read_card, read_quotas
from plugin.cards.config import Config, Serve
from plugin.cards.vgpu_rules import VGPURule
from plugin.state_files import boot_id
from plugin.vgpus.apply import apply
from plugin.vgpus.made import Made, made_file, read_made
from plugin.vgpus.plan import Plan, plan
from plugin.vgpus.steps import World
from plugin.vgpus.survey import Survey, look
from program.problem import Problem
from tests.vgpu_kernel import Card, Kernel


def _uuids() -> Iterator[UUID]:
    return (UUID(int=number) for number in count(0xA0))


class Node(Kernel):
    """A node with these cards, and its config."""

    def __init__(self, root: Path, *cards: Card, drivers: tuple[str, ...] = ("vfio-pci",)) -> None:
        super().__init__(root, *cards, drivers=drivers)
        self.config = Config()
        self.pods: dict[str, str] = {}
        self.waited = 0.0
        self._uuids = _uuids()

    def wants(self, *rules: VGPURule) -> None:
        self.config = Config(vgpus=rules, serve=Serve.DRA)

    @property
    def made(self) -> Made:
        return read_made(self.state, boot_id(self.proc))

    def survey(self) -> Survey:
        return look(self.sys, self.config, self.made, self.processes, self.pods)

    def plan(self) -> Plan:
        return plan(self.survey(), self.config)

    def steps(self) -> list[str]:
        """What a dry run prints."""
        return [f"{card}: {step}" for card, steps in self.plan().steps.items() for step in steps]

    def apply(self) -> tuple[Problem, ...]:
        return self.carry_out(self.plan())

    def carry_out(self, planned: Plan) -> tuple[Problem, ...]:
        world = World(
            read=lambda card: read_card(self.sys, card),
            user=lambda name: self.survey().users.get(name),
            quota=lambda card, number: read_quotas(self.sys, card, number),
            write=self.write,
            sriov_manage=self.sriov_manage,
            nvidia_smi=self.nvidia_smi,
            wait=self._wait,
            uuid=lambda: next(self._uuids),
            made=made_file(self.state),
            boot=boot_id(self.proc),
        )
        return (*planned.problems, *apply(world, planned, self.survey().made, lambda card, step: None))

    def _wait(self, seconds: float) -> None:
        self.waited += seconds
