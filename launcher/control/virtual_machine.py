"""The service gpu_launcher.v1.VirtualMachine of `gpu-launcher ctl`, a function for each method in api/vm.proto."""

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict
from typing import Any, TypeVar

from grpclib.const import Handler
from grpclib.exceptions import GRPCError

from launcher.control.api import vm_pb2 as api
from launcher.control.changes import changes_of
from launcher.control.methods import methods_of
from launcher.control.threads import Threads
from launcher.runtime import agent, guest, nvidia_smi, operations
from launcher.runtime.events import SuspendRequested
from launcher.runtime.vm import VM, Phase, StopRequested
from pci.address import PCIAddress
from program.errors import Refusal
from program.problem import one_line

_log = logging.getLogger(__name__)

_STATE = 3.0  # seconds for libvirt to tell more than the phase
_AGENT = 4  # seconds for the agent to answer, and as many for it to listen: together less than `Threads` waits
_SCREENSHOT = 30.0  # seconds for a caller to read a whole screenshot
_SIGN_OF_LIFE = 5.0  # seconds between two to a caller who waits for something long
_SCREENSHOTS = 2  # at once: libvirt needs a file and a thread for each
_FIRST_LOOK, _LAST_LOOKS = 0.05, 1.0  # seconds between two looks at whether a program in the guest has ended
_SERVICE = api.DESCRIPTOR.services_by_name["VirtualMachine"]
_T = TypeVar("_T")

#: The phases in which libvirt is asked: while it starts a domain, which takes minutes with VFIO, it answers nobody.
_STARTED = (Phase.RUNNING, Phase.STOPPING)

#: The path of the one method that is answered no matter how many calls are open.
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
            # Also for a caller that stops reading: the call is cancelled then.
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
        await self._asked(self._alone("paused", operations.pause))
        self._report("paused")
        return api.PauseResponse()

    async def Resume(self, request: api.ResumeRequest) -> api.ResumeResponse:
        await self._asked(self._alone("resumed", operations.resume))
        self._report("resumed")
        return api.ResumeResponse()

    async def Reset(self, request: api.ResetRequest) -> api.ResetResponse:
        await self._asked(self._alone("reset", operations.reset))
        self._report("reset")
        return api.ResetResponse()

    async def Suspend(self, request: api.SuspendRequest) -> AsyncGenerator[api.SuspendProgress]:
        self._refuse_unless_started(Phase.RUNNING)
        asked = SuspendRequested()
        self._vm.events.put(asked)
        outcome = asyncio.wrap_future(asked.outcome)
        yield api.SuspendProgress(saved=False)
        while not (await asyncio.wait({outcome}, timeout=_SIGN_OF_LIFE))[0]:
            yield api.SuspendProgress(saved=False)
        outcome.result()
        self._report("suspended")
        yield api.SuspendProgress(saved=True)

    async def Shutdown(self, request: api.ShutdownRequest) -> api.ShutdownResponse:
        self._vm.request(StopRequested.SHUTDOWN)
        self._report("asked to shut down")
        return api.ShutdownResponse()

    async def Kill(self, request: api.KillRequest) -> api.KillResponse:
        self._vm.request(StopRequested.KILL)
        self._report("told to end at once")
        # The thread that runs the VM may be waiting for libvirt, and all threads that ask; so one more thread tells
        # libvirt, which ends QEMU before it waits itself, and so ends the waiting of the others.
        if self._killer is None or not self._killer.is_alive():
            self._killer = threading.Thread(target=self._end, name="kill", daemon=True)
            with suppress(RuntimeError):  # no more threads; the thread that runs the VM has the request
                self._killer.start()
        return api.KillResponse()

    async def PingGuest(self, request: api.PingGuestRequest) -> api.PingGuestResponse:
        await self._agent(agent.ping, request.seconds)
        return api.PingGuestResponse()

    async def GetGuestInfo(self, request: api.GetGuestInfoRequest) -> api.GuestInfo:
        return api.GuestInfo(**asdict(await self._agent(agent.info, request.seconds)))

    async def GetGuestUsers(self, request: api.GetGuestUsersRequest) -> api.GuestUsers:
        users = await self._agent(agent.users, request.seconds)
        return api.GuestUsers(users=[api.GuestUser(**asdict(user)) for user in users])

    async def GetGuestFilesystems(self, request: api.GetGuestFilesystemsRequest) -> api.GuestFilesystems:
        found = await self._agent(agent.filesystems, request.seconds)
        return api.GuestFilesystems(filesystems=[api.GuestFilesystem(**asdict(each)) for each in found])

    async def GetGuestGPUs(self, request: api.GetGuestGPUsRequest) -> api.GuestGPUs:
        devices = await self._asked(lambda domain: guest.hostdevs(domain, self._vm.numbers))
        told, silence = await self._nvidia_smi(request.seconds)
        return api.GuestGPUs(
            gpus=[
                api.GuestGPU(
                    name=device.name,
                    host=device.host,
                    guest=str(device.guest),
                    **(asdict(told[device.guest]) if device.guest in told else {}),
                )
                for device in devices
                if device.alias and isinstance(device.guest, PCIAddress)
            ],
            silence=silence,
            mismatch=nvidia_smi.other_driver(told, self._vm.fabric_manager),
        )

    async def _nvidia_smi(self, seconds: int) -> tuple[Mapping[PCIAddress, nvidia_smi.Told], str]:
        """Return what it tells, and why it tells nothing."""
        if not self._vm.asks_nvidia_smi:
            return (
                {},
                "the guest is not asked: its owner allows it by the annotation gpu-launcher.dev/ask-guest: nvidia-smi",
            )
        try:
            return nvidia_smi.told(await self._ran(nvidia_smi.PROGRAM, nvidia_smi.ARGUMENTS, seconds)), ""
        except Refusal as refusal:
            return {}, one_line(refusal)
        except GRPCError as error:
            return {}, one_line(error.message)

    async def ExecInGuest(self, request: api.ExecInGuestRequest) -> api.ExecInGuestResponse:
        return api.ExecInGuestResponse(**asdict(await self._ran(request.path, request.arguments, request.seconds)))

    async def _ran(self, path: str, arguments: Sequence[str], seconds: int) -> agent.Ended:
        """Have the guest's agent run a program, and wait for its end. Refusal if it has not ended in time."""
        pause, seconds = _FIRST_LOOK, max(seconds, 1)
        try:
            async with asyncio.timeout(seconds):
                pid = await self._agent(lambda ask: agent.start(ask, path, arguments), seconds)
                while (ended := await self._agent(lambda ask: agent.ended(ask, pid), seconds)) is None:
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _LAST_LOOKS)
        except TimeoutError as error:
            raise Refusal(path, f"has not ended in the guest in {seconds} s", "give it more with --timeout") from error
        return ended

    def _end(self) -> None:
        with suppress(Refusal):  # it is not defined
            guest.end(self._vm.domain())

    async def _asked(self, operation: Callable[[Any], _T]) -> _T:
        """Return libvirt's answer; Refusal if the guest has not started, or libvirt refuses."""
        self._refuse_unless_started(*_STARTED)
        domain = self._vm.domain()
        return await self._libvirt.run(lambda: operation(domain))

    def _refuse_unless_started(self, *phases: Phase) -> None:
        if self._vm.phase not in phases:
            raise Refusal(self._vm.identity, f"is {self._vm.phase.value}", "ask again when it is running")

    def _alone(self, what: str, operation: Callable[[Any], None]) -> Callable[[Any], None]:
        """Return an operation that changes whether the guest's CPUs run, refused while it is suspended."""

        def alone(domain: Any) -> None:
            with self._vm.changing_cpus(what):
                operation(domain)

        return alone

    async def _agent(self, question: Callable[[agent.AskAgent], _T], seconds: int) -> _T:
        """Return the answer of the guest's agent; Refusal if there is none, it is silent for so long, or it refuses."""
        patience = min(max(seconds, 1), _AGENT)
        return await self._asked(lambda domain: question(lambda text: guest.ask_agent(domain, text, patience)))

    def _report(self, words: str) -> None:
        _log.info("%s has been %s over the control socket", self._vm.identity, words)
