"""Moves a guest from one launcher to another: it stops, its memory goes over a connection, and it runs there.

The sender saves the paused guest into a pipe; the receiver has it in a file of its pod's, restores it with its CPUs
stopped, and says `loaded`. Until then the guest is the sender's, which has it go on if anything fails. The sender then
writes into its root that this pod runs the guest no more, and says `yours`. The receiver writes into its own root that
the guest is its own, and only then lets it run. A receiver that hears neither `yours` nor `no` runs nothing: somebody
who knows that the sender has ended tells it so (`ctl take`).
"""

import json
import logging
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from launcher.runtime import guest, saving, suspension
from launcher.runtime.events import (
    Arrived,
    NotArrived,
    ReceiveRequested,
    Requested,
    TakeRequested,
)
from launcher.runtime.memory_file import GuestMark, MemoryFile, Restored
from launcher.runtime.plan import RunPlan
from launcher.runtime.progress import wanted_by
from launcher.runtime.vm import VM, StopRequested, having_threads
from program.ending import Ending
from program.errors import Refusal
from program.problem import Problem

if TYPE_CHECKING:  # TLS is imported for a move alone: it has no use beside a guest that stays
    from launcher.runtime.transfer import Invitation, Listener, PeerLink

_log = logging.getLogger(__name__)

_VERSION = 1  # of what the two say to each other
_PIPE = 1 << 16  # bytes that a pipe has
_READY, _LOADED, _YOURS, _NO = "ready", "loaded", "yours", "no"
_INVITED, _ANSWERS = 300.0, 60.0  # seconds for an invited sender to come, and for the other to answer
_LOADS, _SLOWEST = 120.0, 32 << 20  # seconds for QEMU to load a guest, and bytes of its memory a second besides
_HANDED_OVER = 60.0  # seconds for the sender to hand a loaded guest over
#: In the root of the receiver's libvirt driver: the directory for the memory, and the mark that the guest is its own.
_PLACE, _TAKEN = "moved-here", "taken"
_STAYS = "the guest stays where it was"


def not_moved(xml: str) -> Iterator[Problem]:
    """Yield a problem for what of a domain of ours can be suspended but not moved."""
    domain = ElementTree.fromstring(xml)  # noqa: S314 it is ours
    if domain.find("devices/tpm/backend[@persistent_state='yes']") is not None:
        wrong = "keeps its state on a claim, which its swtpm locks until the guest ends"
        yield Problem("tpm", wrong, "suspend the VM, and resume it on the other node")


def has_arrived(root: Path) -> bool:
    """Return whether a guest was handed over to the pod of this root."""
    return (root / _TAKEN).exists()


class ToPeer:
    """Another launcher, at an IP address, by its invitation. `root` is that of this launcher's driver."""

    ending = Ending.MOVED

    def __init__(self, address: str, invitation: "Invitation", root: Path, xml: str) -> None:
        self._address, self._invitation, self._root, self._xml = address, invitation, root, xml
        self._link: PeerLink | None = None
        self._sent, self._memory = 0, 0

    def begin(self, domain: Any, mark: GuestMark, memory: int) -> None:
        if problems := [*not_moved(self._xml)]:
            raise Refusal.of(problems)
        from launcher.runtime.transfer import connected

        self._memory = memory
        self._link = connected(self._address, self._invitation)
        self._link.say(json.dumps({"version": _VERSION, "memory": memory, "mark": mark._asdict()}))
        self._expect(_READY)

    def save(self, domain: Any, mark: GuestMark) -> None:
        assert self._link is not None, "begin() comes first"
        with self._pipe() as file:
            saving.save(domain, file, mark)
        self._link.send_part(b"")
        self._expect(_LOADED, _LOADS + self._memory / _SLOWEST)
        try:
            suspension.mark(self._root, Ending.MOVED)
        except OSError as error:
            raise Refusal(self._root, f"cannot be written to: {error.strerror}", _STAYS) from error
        try:
            self._link.say(_YOURS)
        except Refusal as refusal:
            _log.error("%s; the guest is there: gpu-launcher ctl take lets it run", refusal)
        _log.info("the guest is at %s", self._link.peer)
        self._link.close()

    def drop(self) -> None:
        if self._link is not None:
            with suppress(Refusal):
                self._link.say(_NO)
            self._link.close()

    def written(self) -> int:
        return self._sent

    def _expect(self, word: str, within: float = _ANSWERS) -> None:
        assert self._link is not None, "there is one"
        if (said := self._link.hear(within)) != word:
            raise Refusal(self._link.peer, f"refuses the guest: {said.removeprefix(_NO).strip()[:600]}", _STAYS)

    @contextmanager
    def _pipe(self) -> Iterator[Path]:
        """Send what is written to a file of this name, which may be opened several times."""
        reader, writer = os.pipe()
        errors: list[Exception] = []

        def send() -> None:
            assert self._link is not None, "begin() comes first"
            try:
                while part := os.read(reader, _PIPE):
                    self._link.send_part(part)
                    self._sent += len(part)
            except Exception as error:
                errors.append(error)
            finally:
                os.close(reader)  # whoever writes hears of it

        sender = threading.Thread(target=send, name="send", daemon=True)
        with having_threads("send"):
            sender.start()
        try:
            yield Path(f"/proc/self/fd/{writer}")
        except Refusal as refusal:
            raise (errors or [refusal])[0] from refusal
        finally:
            os.close(writer)
            sender.join()
        if errors:
            raise errors[0]


class Arrival:
    """The guest that a launcher is to have from another one."""

    def __init__(self, root: Path, domain: Any, plan: RunPlan) -> None:
        self._root, self._domain, self._xml = root, domain, plan.xml
        self._memory = MemoryFile(root / _PLACE, plan.identity.name)
        self._taken = Future[None]()
        self._link: PeerLink | None = None
        self._listener: Listener | None = None
        self._receiver: threading.Thread | None = None

    def wait(self, vm: VM) -> Ending | None:
        """Wait until a guest is here; return how the VM ended if it ends before."""
        vm.takes_guest = True
        _log.info("waiting for the guest of another launcher: gpu-launcher ctl receive")
        while True:
            match vm.events.get():
                case StopRequested():
                    self.give_up()
                    return Ending.NOT_STARTED
                case Ending() as ending:
                    self.give_up()
                    return ending
                case ReceiveRequested() as request:
                    self._receive(vm, request)
                case TakeRequested() as request:
                    if self._is_here():
                        self.take(request)
                        return None
                    request.refuse(Refusal(vm.identity, "has no guest to take", "invite a sender: ctl receive"))
                case Requested() as other:
                    other.refuse(Refusal(vm.identity, "waits for its guest", "ask again when it is running"))
                case Arrived():
                    return None
                case NotArrived(error):
                    _log.error("the guest has not come: %s", error)

    def restored(self) -> Restored | None:
        """Restore the guest, and wait until it is handed over; None if it has run here before. Raise Refusal, and end
        the domain, if it is not."""
        try:
            restored = saving.restore(self._domain, self._xml, self._memory)
            if has_arrived(self._root):
                return restored
            if restored is None:
                raise Refusal(self._memory.whole, "is gone", "invite a sender anew: ctl receive")
            if not self._taken.done():
                self._ask_for_it()
            self._taken.result()
            try:
                (self._root / _TAKEN).touch()
            except OSError as error:
                raise Refusal(self._root, f"cannot be written to: {error.strerror}", "make room there") from error
        except Exception as error:
            self._refuse(error)
            guest.end(self._domain)
            raise
        return restored

    def take(self, request: TakeRequested) -> None:
        """Let the guest run: it runs nowhere else."""
        self._decide()
        request.done(None)

    def give_up(self) -> None:
        """Wait for nothing any more."""
        with suppress(InvalidStateError):
            self._taken.set_exception(Refusal("the guest", "was not handed over before the end", _STAYS))
        if self._listener is not None:
            self._listener.close()
        if self._link is not None:
            self._link.close()

    def _is_here(self) -> bool:
        try:
            return self._memory.found() is not None
        except Refusal as refusal:
            _log.error("%s", refusal)
            return False

    def _decide(self) -> None:
        with suppress(InvalidStateError):
            self._taken.set_result(None)

    def _ask_for_it(self) -> None:
        assert self._link is not None, "the guest has come over it"
        try:
            self._link.say(_LOADED)
            word = self._link.hear(_HANDED_OVER)
        except Refusal as refusal:
            _log.error(
                "%s; the guest is here and waits: if it runs nowhere else, gpu-launcher ctl take lets it run", refusal
            )
            return
        if word != _YOURS:
            raise Refusal(self._link.peer, "has its guest go on", "see its log, and invite it anew")
        self._decide()

    def _receive(self, vm: VM, request: ReceiveRequested) -> None:
        if self._receiver is not None and self._receiver.is_alive():
            request.refuse(Refusal(vm.identity, "waits for a sender already", "ask again in five minutes"))
            return

        def receive() -> None:
            from launcher.runtime.transfer import Listener

            try:
                with Listener(request.port) as self._listener:
                    self._memory.clear()
                    request.done(self._listener.invitation)
                    self._link = self._listener.accepted(_INVITED)
                self._have(self._link)
            except Exception as error:
                request.refuse(error)
                self._refuse(error)
                self._memory.drop()
                vm.events.put(NotArrived(error))
            else:
                vm.events.put(Arrived())

        self._receiver = threading.Thread(target=receive, name="receive", daemon=True)
        try:
            with having_threads("receive"):
                self._receiver.start()
        except Refusal as refusal:
            request.refuse(refusal)

    def _have(self, link: "PeerLink") -> None:
        """Write the guest into the memory file."""
        mark, memory = _hello(link)
        if memory != (its := wanted_by(self._xml).memory):
            raise Refusal("the guest", f"has {memory} bytes of memory, and here are {its}", "give both one manifest")
        saving.refuse_other_node(self._domain, self._xml, mark, "the guest")
        self._memory.begin(memory)
        link.say(_READY)
        status = os.statvfs(self._memory.directory)
        room = status.f_bavail * status.f_frsize
        try:
            with self._memory.half.open("xb") as file:
                for part in link.parts():
                    if (room := room - len(part)) < 0:
                        raise Refusal(self._memory.directory, "has no more room for the guest", "make room there")
                    file.write(part)
        except OSError as error:
            raise Refusal(self._memory.half, f"cannot be written: {error.strerror}", "make room there") from error
        self._memory.finish_stream()

    def _refuse(self, error: Exception) -> None:
        if self._link is not None:
            with suppress(Refusal):
                self._link.say(f"{_NO} {' '.join(str(error).split())[:600]}")
            self._link.close()


def _hello(link: "PeerLink") -> tuple[GuestMark, int]:
    """Return the mark of the sender's guest, and the bytes of its memory."""
    try:
        match json.loads(link.hear()):
            case {
                "version": version,
                "memory": int(memory),
                "mark": {"qemu": str(qemu), "processor": str(processor), "ran": bool(ran)},
            } if version == _VERSION:
                return GuestMark(qemu[:100], processor[:100], ran), memory
    except (ValueError, RecursionError):
        pass
    raise Refusal(link.peer, "sends no guest that this launcher understands", "expected the same image in both")
