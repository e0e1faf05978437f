"""The answers to `gpu-launcher ctl`, a function for each method."""

import asyncio
import base64
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict
from typing import Any, TypeVar

from launcher.control import messages
from launcher.control.changes import changes_of
from launcher.control.threads import Threads
from launcher.runtime import agent, guest, nvidia_smi, operations
from launcher.runtime.events import ReceiveRequested, Requested, SendRequested, SuspendRequested, TakeRequested
from launcher.runtime.vm import VM, Phase, StopRequested
from pci.address import PCIAddress
from program.errors import Refusal
from program.problem import one_line

_log = logging.getLogger(__name__)

_STATE = 3.0  # seconds for libvirt to tell more than the phase
_AGENT = 4  # seconds for the agent to answer, and as many for it to listen: together less than `Threads` waits
_SCREENSHOT = 30.0  # seconds for a caller to read a whole screenshot
_ASKED = 15.0  # seconds for a VM that takes a guest to answer; it makes a key meanwhile
_SIGN_OF_LIFE = 5.0  # seconds between two to a caller who waits for something long
_SCREENSHOTS = 2  # at once: libvirt needs a file and a thread for each
_FIRST_LOOK, _LAST_LOOKS = 0.05, 1.0  # seconds between two looks at whether a program in the guest has ended
_LONGEST_WAIT = 365 * 86400  # seconds for the guest, as many as a caller may ask for
_T = TypeVar("_T")

#: The phases in which libvirt is asked: while it starts a domain, which takes minutes with VFIO, it answers nobody.
_STARTED = (Phase.RUNNING, Phase.STOPPING)


class VMService:
    """Answers for one VM. `methods` has a coroutine function for each method, from the request's fields to the answer,
    or an asynchronous generator function to the answers. They raise ProgramError if they cannot answer."""

    def __init__(self, vm: VM) -> None:
        self._vm = vm
        self._libvirt = Threads(
            "libvirt", "it may still do what it is asked to: `gpu-launcher ctl kill` ends the VM all the same"
        )
        self._screenshots = 0  # that are being taken
        self._killer: threading.Thread | None = None
        self.methods: Mapping[messages.Method[Any], Callable[..., Any]] = {
            messages.STATE: self._state,
            messages.GET_XML: self._xml,
            messages.CONSOLE: self._console,
            messages.SCREEN: self._screen,
            messages.SCREENSHOT: self._screenshot,
            messages.EVENTS: self._events,
            messages.PAUSE: self._pause,
            messages.RESUME: self._resume,
            messages.RESET: self._reset,
            messages.SUSPEND: self._suspend,
            messages.SEND: self._send,
            messages.RECEIVE: self._receive,
            messages.TAKE: self._take,
            messages.SHUTDOWN: self._shutdown,
            messages.KILL: self._kill,
            messages.GUEST_PING: self._guest_ping,
            messages.GUEST_INFO: self._guest_info,
            messages.GUEST_USERS: self._guest_users,
            messages.GUEST_FILESYSTEMS: self._guest_filesystems,
            messages.GUEST_GPUS: self._guest_gpus,
            messages.GUEST_EXEC: self._guest_exec,
        }

    async def _state(self) -> messages.State:
        vm, phase = self._vm.identity, self._vm.phase
        state = operations.VMState("", "")
        if phase in _STARTED:
            try:
                async with asyncio.timeout(_STATE):
                    state = await self._of_libvirt(operations.state)
            except TimeoutError:
                state = operations.VMState("unknown", "libvirt does not answer")
        return messages.State(vm.namespace, vm.name, vm.uid, phase.value, state.state, state.reason)

    async def _xml(self) -> messages.XML:
        return messages.XML(xml=await self._of_libvirt(operations.xml))

    async def _console(self) -> messages.SocketPath:
        return messages.SocketPath(path=await self._of_libvirt(operations.console))

    async def _screen(self) -> messages.SocketPath:
        return messages.SocketPath(path=await self._of_libvirt(operations.screen))

    async def _screenshot(self) -> AsyncGenerator[messages.ScreenshotPart]:
        if self._screenshots >= _SCREENSHOTS:
            raise Refusal(
                self._vm.identity, f"has {_SCREENSHOTS} screenshots taken of it", "ask again when one is done"
            )
        self._screenshots += 1
        picture = None
        try:
            # Also for a caller that stops reading: the call is cancelled then.
            async with asyncio.timeout(_SCREENSHOT):
                picture = await self._of_libvirt(operations.screenshot)
                mime_type = picture.mime_type
                while data := await self._libvirt.run(picture.read):
                    yield messages.ScreenshotPart(mime_type, base64.b64encode(data).decode())
                    mime_type = ""
                picture = None
        finally:
            self._screenshots -= 1
            if picture is not None:
                threading.Thread(target=picture.close, name="screenshot", daemon=True).start()

    async def _events(self) -> AsyncGenerator[messages.VMEvent]:
        async with aclosing(changes_of(self._vm)) as changes:
            async for change, lost in changes:
                yield messages.VMEvent(
                    time=change.time, phase=change.phase.value, event=change.event, reason=change.reason, lost=lost
                )

    async def _pause(self) -> messages.Nothing:
        await self._of_libvirt(self._alone("paused", operations.pause))
        self._report("paused")
        return messages.Nothing()

    async def _resume(self) -> messages.Nothing:
        await self._of_libvirt(self._alone("resumed", operations.resume))
        self._report("resumed")
        return messages.Nothing()

    async def _reset(self) -> messages.Nothing:
        await self._of_libvirt(self._alone("reset", operations.reset))
        self._report("reset")
        return messages.Nothing()

    async def _suspend(self) -> AsyncGenerator[messages.SuspendProgress]:
        async with aclosing(self._saved(SuspendRequested(), "suspended")) as signs:
            async for each in signs:
                yield each

    async def _send(
        self, address: str, port: int, fingerprint: str, token: str
    ) -> AsyncGenerator[messages.SuspendProgress]:
        from launcher.runtime.transfer import Invitation

        asked = SendRequested(address, Invitation(port, fingerprint, token))
        async with aclosing(self._saved(asked, "moved")) as signs:
            async for each in signs:
                yield each

    async def _receive(self, port: int) -> messages.ReceiverInvitation:
        invitation = await self._done(ReceiveRequested(port))
        return messages.ReceiverInvitation(*invitation)

    async def _take(self) -> messages.Nothing:
        await self._done(TakeRequested())
        self._report("told to have the guest that it was sent")
        return messages.Nothing()

    async def _done(self, asked: Requested[_T]) -> _T:
        """Return the outcome of a request to a VM that takes a guest; Refusal for any other one."""
        if not self._vm.takes_guest:
            raise Refusal(self._vm.identity, "waits for no guest", "expected one of gpu-launcher run --receive")
        self._vm.events.put(asked)
        try:
            async with asyncio.timeout(_ASKED):
                return await asyncio.wrap_future(asked.outcome)
        except TimeoutError as error:
            raise Refusal(self._vm.identity, f"has not answered in {_ASKED:.0f} s", "its log says why") from error

    async def _saved(self, asked: Requested[None], how: str) -> AsyncGenerator[messages.SuspendProgress]:
        self._refuse_unless_started(Phase.RUNNING)
        self._vm.events.put(asked)
        outcome = asyncio.wrap_future(asked.outcome)
        yield messages.SuspendProgress(saved=False)
        while not (await asyncio.wait({outcome}, timeout=_SIGN_OF_LIFE))[0]:
            yield messages.SuspendProgress(saved=False)
        outcome.result()
        self._report(how)
        yield messages.SuspendProgress(saved=True)

    async def _shutdown(self) -> messages.Nothing:
        self._vm.request(StopRequested.SHUTDOWN)
        self._report("asked to shut down")
        return messages.Nothing()

    async def _kill(self) -> messages.Nothing:
        self._vm.request(StopRequested.KILL)
        self._report("told to end at once")
        # The thread that runs the VM may be waiting for libvirt, and all threads that ask; so one more thread tells
        # libvirt, which ends QEMU before it waits itself, and so ends the waiting of the others.
        if self._killer is None or not self._killer.is_alive():
            self._killer = threading.Thread(target=self._end, name="kill", daemon=True)
            with suppress(RuntimeError):  # no more threads; the thread that runs the VM has the request
                self._killer.start()
        return messages.Nothing()

    async def _guest_ping(self, seconds: int) -> messages.Nothing:
        await self._agent(agent.ping, seconds)
        return messages.Nothing()

    async def _guest_info(self, seconds: int) -> agent.GuestInfo:
        return await self._agent(agent.info, seconds)

    async def _guest_users(self, seconds: int) -> messages.GuestUsers:
        return messages.GuestUsers(await self._agent(agent.users, seconds))

    async def _guest_filesystems(self, seconds: int) -> messages.GuestFilesystems:
        return messages.GuestFilesystems(await self._agent(agent.filesystems, seconds))

    async def _guest_gpus(self, seconds: int) -> messages.GuestGPUs:
        devices = await self._of_libvirt(lambda domain: guest.hostdevs(domain, self._vm.numbers))
        readings, silence = await self._nvidia_smi(seconds)
        return messages.GuestGPUs(
            gpus=tuple(
                messages.GuestGPU(
                    name=device.name,
                    host=device.host,
                    guest=str(device.guest),
                    **(asdict(readings[device.guest]) if device.guest in readings else {}),
                )
                for device in devices
                if device.alias and isinstance(device.guest, PCIAddress)
            ),
            silence=silence,
            mismatch=nvidia_smi.other_driver(readings, self._vm.fabric_manager),
        )

    async def _nvidia_smi(self, seconds: int) -> tuple[Mapping[PCIAddress, nvidia_smi.GPUReading], str]:
        """Return nvidia-smi's readings by the GPU's address in the guest, and why there are none."""
        if not self._vm.asks_nvidia_smi:
            return (
                {},
                "the guest is not asked: its owner allows it by the annotation gpu-launcher.dev/ask-guest: nvidia-smi",
            )
        try:
            return nvidia_smi.parse_output(await self._ran(nvidia_smi.PROGRAM, nvidia_smi.ARGUMENTS, seconds)), ""
        except Refusal as refusal:
            return {}, one_line(refusal)

    async def _guest_exec(self, path: str, arguments: tuple[str, ...], seconds: int) -> messages.ProgramEnd:
        its = await self._ran(path, arguments, seconds)
        out, err = (base64.b64encode(data).decode() for data in (its.out, its.err))
        return messages.ProgramEnd(its.code, its.signal, out, err)

    async def _ran(self, path: str, arguments: Sequence[str], seconds: int) -> agent.Ended:
        """Have the guest's agent run a program, and wait for its end. Refusal if it has not ended in time."""
        pause, seconds = _FIRST_LOOK, min(max(seconds, 1), _LONGEST_WAIT)
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

    async def _of_libvirt(self, operation: Callable[[Any], _T]) -> _T:
        """Return libvirt's answer; Refusal if the guest has not started, or libvirt refuses."""
        self._refuse_unless_started(*_STARTED)
        domain = self._vm.domain()
        return await self._libvirt.run(lambda: operation(domain))

    def _refuse_unless_started(self, *phases: Phase) -> None:
        if self._vm.phase not in phases:
            raise Refusal(self._vm.identity, f"is {self._vm.phase.value}", "ask again when it is running")

    def _alone(self, what: str, operation: Callable[[Any], None]) -> Callable[[Any], None]:
        """Return an operation that changes whether the guest's CPUs run, refused while the guest is being suspended."""

        def alone(domain: Any) -> None:
            with self._vm.changing_cpus(what):
                operation(domain)

        return alone

    async def _agent(self, question: Callable[[agent.AskAgent], _T], seconds: int) -> _T:
        """Return the answer of the guest's agent; Refusal if there is none, it refuses, or takes more than so many
        `seconds`."""
        patience = min(max(seconds, 1), _AGENT)
        return await self._of_libvirt(lambda domain: question(lambda text: guest.ask_agent(domain, text, patience)))

    def _report(self, words: str) -> None:
        _log.info("%s has been %s over the control socket", self._vm.identity, words)
