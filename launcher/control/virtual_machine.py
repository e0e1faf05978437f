"""What `gpu-launcher ctl` asks: gpu_launcher.v1.VirtualMachine, a function for each method of api/vm.proto."""

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from grpclib.const import Handler

from launcher.control.api import vm_pb2 as api
from launcher.control.changes import changes_of
from launcher.control.methods import methods_of
from launcher.control.threads import Threads
from launcher.runtime import agent, guest, operations
from launcher.runtime.vm import VM, Phase, StopRequested
from program.errors import Refusal

_log = logging.getLogger(__name__)

_STATE = 3.0  # seconds for libvirt to say more than the phase
_AGENT = 4  # seconds for the agent to answer, as many for it to listen at all: both before `Threads` gives up
_SCREENSHOT = 30.0  # seconds for all of a screenshot to be taken by its caller
_SCREENSHOTS = 2  # at once: libvirt has a file and a thread for each
_FIRST_LOOK, _LAST_LOOKS = 0.05, 1.0  # seconds between two looks at whether a program in the guest has ended
_SERVICE = api.DESCRIPTOR.services_by_name["VirtualMachine"]
_T = TypeVar("_T")

#: When libvirt is asked: while it starts a domain, which takes minutes with VFIO, it keeps whoever asks waiting.
_STARTED = (Phase.RUNNING, Phase.STOPPING)

#: The path of the one method that is answered whatever else is at work.
KILL = f"/{_SERVICE.full_name}/Kill"


class VMService:
    def __init__(self, vm: VM) -> None:
        self._vm = vm
        self._libvirt = Threads(
            "libvirt", ", and may still do what it is asked to; `gpu-launcher ctl kill` ends the VM all the same"
        )
        self._screenshots = 0  # that are being taken
        self._killer: threading.Thread | None = None

    def __mapping__(self) -> dict[str, Handler]:
        return methods_of(_SERVICE, self)

    async def GetState(self, request: api.GetStateRequest) -> api.State:
        vm, phase = self._vm.identity, self._vm.phase
        answer = api.State(namespace=vm.namespace, name=vm.name, uid=vm.uid, phase=phase.value)
        if phase in _STARTED:
            try:
                async with asyncio.timeout(_STATE):
                    state = await self._asked(operations.state)
            except TimeoutError:
                state = operations.VMState("unknown", "libvirt does not answer")
            answer.state, answer.reason = state.state, state.reason
        return answer

    async def GetXML(self, request: api.GetXMLRequest) -> api.XML:
        return api.XML(xml=await self._asked(operations.xml))

    async def GetConsole(self, request: api.GetConsoleRequest) -> api.Console:
        return api.Console(path=await self._asked(operations.console))

    async def GetScreen(self, request: api.GetScreenRequest) -> api.Screen:
        return api.Screen(path=await self._asked(operations.screen))

    async def TakeScreenshot(self, request: api.TakeScreenshotRequest) -> AsyncGenerator[api.Screenshot]:
        if self._screenshots >= _SCREENSHOTS:
            raise Refusal(
                self._vm.identity, f"has {_SCREENSHOTS} screenshots taken of it", "ask again when one is done"
            )
        self._screenshots += 1
        picture = None
        try:
            # Also where the caller takes no more: it is cancelled then, wherever it is.
            async with asyncio.timeout(_SCREENSHOT):
                picture = await self._asked(operations.screenshot)
                mime_type = picture.mime_type
                while data := await self._libvirt.run(picture.read):
                    yield api.Screenshot(mime_type=mime_type, data=data)
                    mime_type = ""
                picture = None
        finally:
            self._screenshots -= 1
            if picture is not None:
                threading.Thread(target=picture.close, name="screenshot", daemon=True).start()

    async def WatchChanges(self, request: api.WatchChangesRequest) -> AsyncGenerator[api.Change]:
        async with aclosing(changes_of(self._vm)) as changes:
            async for change, lost in changes:
                yield api.Change(
                    time=change.time, phase=change.phase.value, event=change.event, reason=change.reason, lost=lost
                )

    async def Pause(self, request: api.PauseRequest) -> api.PauseResponse:
        await self._asked(operations.pause)
        self._report("paused")
        return api.PauseResponse()

    async def Resume(self, request: api.ResumeRequest) -> api.ResumeResponse:
        await self._asked(operations.resume)
        self._report("resumed")
        return api.ResumeResponse()

    async def Reset(self, request: api.ResetRequest) -> api.ResetResponse:
        await self._asked(operations.reset)
        self._report("reset")
        return api.ResetResponse()

    async def Shutdown(self, request: api.ShutdownRequest) -> api.ShutdownResponse:
        self._vm.request(StopRequested.SHUTDOWN)
        self._report("asked to shut down")
        return api.ShutdownResponse()

    async def Kill(self, request: api.KillRequest) -> api.KillResponse:
        self._vm.request(StopRequested.KILL)
        self._report("told to end at once")
        # Whoever makes the VM live may wait for libvirt itself, with all threads that ask; so libvirt hears it from one
        # more. It ends QEMU first and then waits, so that those others' waiting ends, too.
        if self._killer is None or not self._killer.is_alive():
            self._killer = threading.Thread(target=self._end, name="kill", daemon=True)
            with suppress(RuntimeError):  # no more threads: whoever makes the VM live has heard it
                self._killer.start()
        return api.KillResponse()

    async def PingGuest(self, request: api.PingGuestRequest) -> api.PingGuestResponse:
        await self._agent(agent.ping, request.seconds)
        return api.PingGuestResponse()

    async def GetGuestInfo(self, request: api.GetGuestInfoRequest) -> api.GuestInfo:
        info = await self._agent(agent.info, request.seconds)
        return api.GuestInfo(
            agent=info.agent,
            host_name=info.host_name,
            system=info.system,
            kernel=info.kernel,
            interfaces=[
                api.GuestInterface(name=one.name, mac=one.mac, addresses=one.addresses) for one in info.interfaces
            ],
        )

    async def ExecInGuest(self, request: api.ExecInGuestRequest) -> api.ExecInGuestResponse:
        pause, path, seconds = _FIRST_LOOK, request.path, max(request.seconds, 1)
        try:
            async with asyncio.timeout(seconds):
                pid = await self._agent(lambda ask: agent.start(ask, path, request.arguments), seconds)
                while (ended := await self._agent(lambda ask: agent.ended(ask, pid), seconds)) is None:
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _LAST_LOOKS)
        except TimeoutError as error:
            raise Refusal(path, f"has not ended in the guest in {seconds} s", "give it more with --timeout") from error
        return api.ExecInGuestResponse(code=ended.code, signal=ended.signal, out=ended.out, err=ended.err)

    def _end(self) -> None:
        with suppress(Refusal):  # it is not defined
            guest.end(self._vm.domain())

    async def _asked(self, operation: Callable[[Any], _T]) -> _T:
        """What libvirt answers. Refusal where the guest has not started, or libvirt refuses."""
        if self._vm.phase not in _STARTED:
            raise Refusal(self._vm.identity, f"is {self._vm.phase.value}", "ask again when it is running")
        domain = self._vm.domain()
        return await self._libvirt.run(lambda: operation(domain))

    async def _agent(self, question: Callable[[agent.AskAgent], _T], seconds: int) -> _T:
        """What the guest's agent answers. Refusal where there is none, it is silent for so long, or it refuses."""
        patience = min(max(seconds, 1), _AGENT)
        return await self._asked(lambda domain: question(lambda text: guest.ask_agent(domain, text, patience)))

    def _report(self, words: str) -> None:
        _log.info("%s has been %s over the control socket", self._vm.identity, words)
