"""Faults on the way of what changes a node: a kill at any moment, a write or a call that fails, and whatever may
happen, in an order that a seed decides. For cards that are bound, vGPUs, claims and partitions alike."""

import errno
import os
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import ParamSpec

from plugin.changes.journal import Journal, JournalFile

P = ParamSpec("P")


class Killed(BaseException):
    """The process ends right here."""


class Faults:
    """What befalls a process at the moment `at`, from 1: it is killed, or what it does fails with `error`. Right before
    each thing that it does is a moment, and right after it another; `moments` is how many there were. Who was killed
    does nothing more."""

    def __init__(self, at: int = 0, error: Exception | None = None) -> None:
        self.at, self.error = at, error
        self.moments = 0
        self._is_dead = False

    def moment(self, *, can_fail: bool = True) -> None:
        assert not self._is_dead, "a process that was killed does nothing more"
        self.moments += 1
        if self.moments != self.at:
            return
        if self.error is None:
            self._is_dead = True
            raise Killed
        if can_fail:
            raise self.error

    def around(self, does: Callable[P, None]) -> Callable[P, None]:
        """Return what does the same, with a moment before and after it."""

        def between_moments(*arguments: P.args, **named: P.kwargs) -> None:
            self.moment()
            does(*arguments, **named)
            self.moment()

        return between_moments


@dataclass(frozen=True)
class FaultyJournal(JournalFile):
    """The journal, whose writer may be killed while its successor is half written."""

    faults: Faults

    def write(self, journal: Journal) -> None:
        self.faults.moment()
        (self.state / "journal.json.new").write_text('{"boot": ')
        self.faults.moment()
        JournalFile.write(self, journal)
        self.faults.moment()


def refuses(*numbers: int) -> Callable[[int], OSError | None]:
    """The kernel refuses the writes with these numbers."""
    return lambda number: OSError(errno.EIO, os.strerror(errno.EIO)) if number in numbers else None


class Life:
    """Whatever may happen to a node, in an order that a seed decides: the methods that `happens` names, each with how
    often; `at_once` of them before what must hold is checked."""

    def __init__(self, seed: int, happens: Mapping[str, int], *, at_once: int = 1) -> None:
        self.seed, self.chance = seed, Random(seed)
        self.round = 0
        self._happens, self._at_once = happens, at_once

    def check(self) -> None:
        """Check what must hold after each round."""
        raise NotImplementedError

    def live(self, rounds: int) -> None:
        history: deque[str] = deque(maxlen=20)
        for self.round in range(1, rounds + 1):
            try:
                for what in self.chance.choices([*self._happens], [*self._happens.values()], k=self._at_once):
                    history.append(what)
                    getattr(self, what)()
                self.check()
            except BaseException as error:
                error.add_note(f"round {self.round} of seed {self.seed}: {', '.join(history)}")
                raise
            if self.round % 100 == 0:
                print(f"{self.round} rounds of seed {self.seed}", flush=True)
