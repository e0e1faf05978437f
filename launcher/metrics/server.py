"""The page of metrics, at /metrics. libvirt is asked in a thread, with a deadline, and never twice at once; nobody
waits for the guest's answer."""

import asyncio
import socket
import threading
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from launcher.metrics.families import MEDIA_TYPE, families, text_of
from launcher.metrics.gpus import Questions
from launcher.metrics.samples import DomainSample, names_in, sample_domain, sample_pod
from launcher.runtime import guest
from launcher.runtime.vm import VM, Phase
from program.errors import Refusal
from program.http import Answer, serving

_PATIENCE = 3.0  # seconds for libvirt to answer: less than a connection and Prometheus have
_AGENT = 3  # seconds for the guest's agent to answer, and as many for it to listen
_SCRAPES_APART = 0.5  # seconds; more frequent requests get the same text


async def serve(
    listener: socket.socket, names: Collection[str], end: int, vm: VM, xml: str, sys: Path, proc: Path = Path("/proc")
) -> None:
    """Serve the metrics of a VM until the eventfd `end` is written to. `names` are those by which the listener may be
    requested, `xml` is the VM's domain, `sys` and `proc` stand for /sys and /proc."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(end, ended.set)
    page = _Page(vm, xml, sys, proc)
    async with serving(listener, {"/metrics": page.answer}, names):
        await ended.wait()


class _Page:
    """Makes the page. Requests that come meanwhile wait for the same page."""

    def __init__(self, vm: VM, xml: str, sys: Path, proc: Path) -> None:
        self._vm, self._names, self._sys, self._proc = vm, names_in(xml, vm.numbers), sys, proc
        self._guest = Questions(lambda text: guest.ask_agent(vm.domain(), text, _AGENT))
        self._clock = asyncio.get_running_loop().time
        self._made, self._since = asyncio.create_task(self._make()), self._clock()
        self._asked: asyncio.Future[DomainSample | None] | None = None

    async def answer(self) -> Answer:
        if self._made.done() and self._clock() - self._since > _SCRAPES_APART:
            self._made, self._since = asyncio.create_task(self._make()), self._clock()
        return Answer(200, await asyncio.shield(self._made), MEDIA_TYPE)

    async def _make(self) -> bytes:
        phase = self._vm.phase
        # While libvirt starts a domain, which takes minutes with VFIO, it answers nobody.
        domain = await self._domain() if phase in (Phase.RUNNING, Phase.STOPPING) else None
        if phase is Phase.RUNNING and self._vm.asks_nvidia_smi:
            self._guest.begin()
        pod = sample_pod(self._sys, self._proc, self._names.functions)
        return text_of(families(phase, domain, pod, self._names, self._guest.answer)).encode()

    async def _domain(self) -> DomainSample | None:
        """Return libvirt's answer; None if it is late. The next call then waits for the same answer."""
        if self._asked is None:
            self._asked = _in_a_thread(self._vm)
        await asyncio.wait([self._asked], timeout=_PATIENCE)
        if not self._asked.done():
            return None
        sample, self._asked = self._asked.result(), None
        return sample


def _in_a_thread(vm: VM) -> asyncio.Future[DomainSample | None]:
    """Ask libvirt in a daemon thread, which keeps no process from ending. None if libvirt refuses, or no thread
    can start."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[DomainSample | None] = loop.create_future()

    def ask() -> None:
        sample = None
        try:
            with suppress(Refusal):  # the domain is gone
                sample = sample_domain(vm.domain())
        finally:
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(answer.set_result, sample)

    try:
        threading.Thread(target=ask, name="metrics' question", daemon=True).start()
    except RuntimeError:
        answer.set_result(None)
    return answer
