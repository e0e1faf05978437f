"""What the guest's driver reports of its GPUs: asked in a thread of its own, so that a scrape never waits for the
guest.

The guest may be hostile and its agent silent. Its answers are checked and bounded by launcher.runtime.agent and
nvidia_smi, each question has a deadline, and at most one nvidia-smi of ours runs in the guest.
"""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from launcher.runtime import agent, nvidia_smi
from launcher.runtime.agent import AskAgent, Ended
from launcher.runtime.nvidia_smi import GPUReading
from pci.address import PCIAddress
from program.errors import Refusal

_APART = 15.0  # seconds from one question to the next: without a persistent driver each wakes the cards
_WITHIN = 10.0  # seconds for nvidia-smi to end
_FIRST_LOOK, _LAST_LOOKS = 0.05, 1.0  # seconds between two looks at whether it has
_VERSIONS = 16  # of the driver in a guest's life: each is a series of its own in Prometheus


@dataclass(frozen=True, slots=True)
class GuestAnswer:
    """The guest's answer about its `gpus`, by their addresses in the guest, at `time`, in seconds since 1970. `gpus` is
    None if the guest refused or timed out."""

    time: float
    gpus: Mapping[PCIAddress, GPUReading] | None


class Questions:
    """Asks the guest's agent at most every 15 s, and stops once the guest's answers are not credible. `answer`: the
    last one, None before the first."""

    def __init__(self, ask: AskAgent, apart: float = _APART, within: float = _WITHIN) -> None:
        self._ask, self._apart, self._within = ask, apart, within
        self._begun = -inf
        self._thread: threading.Thread | None = None
        self._left: int | None = None  # the process in the guest that has not ended in time
        self._versions: frozenset[str] = frozenset()
        self.answer: GuestAnswer | None = None

    def begin(self) -> None:
        """Begin a question without waiting, unless one is open, the last one is too recent, or the guest
        invents versions."""
        now = time.monotonic()
        if now - self._begun < self._apart or (self._thread is not None and self._thread.is_alive()):
            return
        if len(self._versions) > _VERSIONS:
            return  # no answer counts any more, and each would have more versions to remember
        self._begun = now
        # Such threads keep no process from ending.
        self._thread = threading.Thread(target=self._question, name="question to nvidia-smi", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # there can be no more threads
            self._thread, self.answer = None, GuestAnswer(time.time(), None)

    def _question(self) -> None:
        gpus = None
        try:
            if (ended := self._ended()) is not None:
                gpus = nvidia_smi.parse_output(ended)
                self._versions |= {gpu.driver_version for gpu in gpus.values()}
        except Refusal:  # `ctl guest gpus` says it
            self._left = None  # an agent that was started again does not know that process
        self.answer = GuestAnswer(time.time(), gpus if len(self._versions) <= _VERSIONS else None)

    def _ended(self) -> Ended | None:
        """Run nvidia-smi in the guest to its end; None if it, or the run before it, does not end in time."""
        deadline = time.monotonic() + self._within
        if self._left is not None and agent.ended(self._ask, self._left) is None:
            return None
        self._left = agent.start(self._ask, nvidia_smi.PROGRAM, nvidia_smi.ARGUMENTS)
        pause = _FIRST_LOOK
        while (ended := agent.ended(self._ask, self._left)) is None:
            if time.monotonic() + pause > deadline:
                return None
            time.sleep(pause)
            pause = min(2 * pause, _LAST_LOOKS)
        self._left = None
        return ended
