"""Whatever happens in whatever order: no GPU has two owners, no guest loses its NVLinks while it runs, and nothing
stays active once its guest is gone.

Each thing that the plugin does happens in a process of its own, which may be killed at any instruction; the manager is
one that stays. `--thorough` does ten thousand rounds, and with `-s` says how far it is. A round takes 0.1 s of a
processor, nearly all of it to start the processes that ask the manager.
"""

import asyncio
import os
import random
import signal
import time
import traceback
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from plugin.fabric.ownership import Partitions
from program.errors import Refusal
from tests.fabric.standin import H100, Call, Manager
from tests.faults import Life
from tests.plugin.fabric.node import Node

_DONE, _REFUSED = 0, 1
_SETS = H100[1]
_ENDS_WITHIN = 300  # seconds, of whatever the plugin does, on a machine that is busy with other work
_HAS_ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT

Work = Callable[[Partitions], Coroutine[Any, Any, None]]

#: What happens, and how often.
_HAPPENS = {
    "allocate": 4,
    "free_one": 4,
    "prepare": 2,
    "unprepare": 2,
    "prepare_what_a_guest_has": 1,
    "two_at_once": 1,
    "restart_manager": 1,
    "restart_kubelet": 1,
    "reconcile": 1,
    "cut_off_reconcile": 1,
}


class NodeLife(Life):
    """The node; `claims` are the modules of each claim, `guests` those of all pods and claims whose guest runs."""

    def __init__(self, manager: Manager, state: Path, seed: int, *, resumes: bool) -> None:
        super().__init__(seed, _HAPPENS)
        self.node = Node(manager, state, resume=resumes)
        self.manager = manager
        self.claims: dict[str, set[int]] = {}
        self.resumes = resumes
        self.counted = 0
        self.takes = 0.3  # seconds, for what is killed at any moment of it

    @property
    def guests(self) -> list[set[int]]:
        return [*self.node.pods.values(), *self.claims.values()]

    @property
    def free(self) -> set[int]:
        return set(range(1, 9)).difference(*self.guests)

    def name(self) -> str:
        self.counted += 1
        return f"default/vm-{self.counted}"

    def some_set(self) -> tuple[int, ...]:
        """Mostly a partition of free cards; or any free cards; or a partition, whosever it is, as a claim."""
        fitting = [each for each in _SETS if self.free.issuperset(each)]
        if fitting and self.chance.random() < 0.8:
            return self.chance.choice(fitting)
        free = sorted(self.free)
        return tuple(self.chance.sample(free, self.chance.randint(1, len(free)))) if free else ()

    def start(self, work: Work, *, every: float) -> int:
        """Have the plugin do something, in a process."""
        child = os.fork()
        if child:
            return child
        code = 2
        try:
            asyncio.run(asyncio.wait_for(work(self.node.partitions(every)), _ENDS_WITHIN))
            code = _DONE
        except Refusal:
            code = _REFUSED
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def end(self, child: int) -> int | None:
        """Wait for it; its exit code, None if it was killed."""
        status = os.waitpid(child, 0)[1]
        if os.WIFSIGNALED(status):
            return None
        assert os.WEXITSTATUS(status) in (_DONE, _REFUSED)
        return os.WEXITSTATUS(status)

    def end_or_kill(self, work: Work, *, every: float) -> int | None:
        """Have the plugin do something; sometimes it is killed at any moment of it, or while the manager activates."""
        chance = self.chance.random()
        if chance < 0.2:
            child = self.start(work, every=every)
            time.sleep(self.chance.uniform(0, self.takes))
            os.kill(child, signal.SIGKILL)
            return self.end(child)
        if chance < 0.3:
            self.manager.hangs(Call.ACTIVATE, having_acted=self.chance.random() < 0.5)
            child = self.start(work, every=every)
            while self.manager.has_to_hang(Call.ACTIVATE) and os.waitid(os.P_PID, child, _HAS_ENDED) is None:
                time.sleep(0.005)
            os.kill(child, signal.SIGKILL)
            code = self.end(child)
            self.manager.hangs(Call.ACTIVATE, times=0)
            return code
        began = time.monotonic()
        code = self.end(self.start(work, every=every))
        if code == _DONE:
            self.takes = time.monotonic() - began
        return code

    def admit(self, holder: dict[str, set[int]], name: str, modules: tuple[int, ...], code: int | None) -> None:
        """The guest starts if the plugin has said yes: its partition has to be active then, if it has one."""
        if code == _DONE:
            assert len(modules) == 1 or tuple(sorted(modules)) in self.manager.active
            assert modules not in [each for each in self.manager.active if set(each) != set(modules)]
            holder[name] = set(modules)
            self.manager.runs(*(module for guest in self.guests for module in guest))

    # What may happen.

    def allocate(self) -> None:
        if modules := self.some_set():
            code = self.end_or_kill(lambda partitions: self.node.allocate(partitions, None, *modules), every=60)
            self.admit(self.node.pods, self.name(), modules, code)

    def prepare(self) -> None:
        if modules := self.some_set():
            name = self.name()
            for _ in range(3):  # the kubelet tries again
                code = self.end_or_kill(lambda partitions: self.node.prepare(partitions, name, *modules), every=60)
                if code is not None:
                    break
            self.admit(self.claims, name, modules, code)
            if name not in self.claims:  # it is given up, and Unprepare is called
                self.end(self.start(lambda partitions: partitions.release(name), every=60))

    def prepare_what_a_guest_has(self) -> None:
        """By a mistake of whoever counts the cards."""
        if self.guests:
            modules = tuple(self.chance.choice(self.guests))
            assert (
                self.end(self.start(lambda partitions: self.node.prepare(partitions, "thief", *modules), every=60))
                == _REFUSED
                or len(modules) == 1
            )

    def two_at_once(self) -> None:
        first, second = self.some_set(), self.some_set()
        if not first or not second:
            return
        names = [self.name(), self.name()]
        children = [
            self.start(lambda partitions, its=its: self.node.allocate(partitions, None, *its), every=60)  # type: ignore[misc]
            for its in (first, second)
        ]
        codes = [self.end(child) for child in children]
        if set(first) & set(second):
            # The kubelet gives a card out once: who asked for it again was refused, or had the other's void allocation.
            codes = [None, None]
        for name, modules, code in zip(names, (first, second), codes, strict=True):
            self.admit(self.node.pods, name, modules, code)

    def free_one(self) -> None:
        if self.node.pods:
            name = self.chance.choice(sorted(self.node.pods))
            del self.node.pods[name]
            self.manager.runs(*(module for guest in self.guests for module in guest))

    def unprepare(self) -> None:
        if self.claims:
            name = self.chance.choice(sorted(self.claims))
            del self.claims[name]
            self.manager.runs(*(module for guest in self.guests for module in guest))
            self.end(self.start(lambda partitions: partitions.release(name), every=60))
            if self.chance.random() < 0.5:
                self.end(self.start(lambda partitions: partitions.release(name), every=60))

    def restart_manager(self) -> None:
        self.manager.restart(initialises=self.chance.randint(0, 1), wants_list_within=60 if self.resumes else 0)
        self.reconcile()

    def restart_kubelet(self) -> None:
        """It lists no pod at first."""
        pods, self.node.pods, self.node.is_whole = self.node.pods, {}, False
        self.reconcile()
        self.node.pods, self.node.is_whole = pods, True

    def reconcile(self) -> int | None:
        return self.end(self.start(reconciled, every=0))

    def cut_off_reconcile(self) -> None:
        child = self.start(lambda partitions: partitions.reconcile(), every=0)
        time.sleep(self.chance.uniform(0, self.takes))
        os.kill(child, signal.SIGKILL)
        self.end(child)

    # What has to be true.

    def check(self) -> None:
        assert self.manager.violations == 0
        active = self.manager.active
        for guest in self.guests:
            its = [set(each) for each in active if guest.intersection(each)]
            assert its == [guest], (guest, active)
        if self.round % 10 == 0:
            self.settle()

    def settle(self) -> None:
        # On a busy machine a question may be given up; the plugin says so, and asks again at the next reconcile.
        assert any(self.reconcile() == _DONE for _ in range(10))
        assert sorted(map(sorted, self.manager.active)) == sorted(map(sorted, self.guests))


async def reconciled(partitions: Partitions) -> None:
    """Refusal if it could not be done."""
    await partitions.reconcile()
    if partitions.sight.trouble is not None:
        raise Refusal(*partitions.sight.trouble)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # pytest-xdist's workers
@pytest.mark.parametrize("resumes", [False, True], ids=["anew", "resumes"])
def test_whatever_happens(resumes: bool, manager: Manager, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    rounds = 5_000 if request.config.getoption("--thorough") else 20
    life = NodeLife(manager, tmp_path / "state", random.randrange(2**32), resumes=resumes)
    life.live(rounds)
