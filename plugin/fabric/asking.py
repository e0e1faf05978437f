"""Asks the Fabric Manager: a process for each question (plugin.fabric.library), ended when it takes too long."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from plugin.cards.config import Fabric
from plugin.fabric.abi import AddressType, Code
from plugin.fabric.partitions import Partition, Table
from program.errors import Refusal

_ENDS_WITHIN = 5.0  # seconds from SIGKILL


def _program() -> tuple[str, ...]:
    return (sys.executable, "-P", "-m", "plugin.fabric.library", str(os.getpid()))


class NoLibrary(Refusal):
    """There is no libnvfm to ask with."""


class Unanswered(Refusal):
    """The manager did not answer in time; whether it does what it was asked is not known."""


class ManagerError(Refusal):
    """The manager answered with an error; `code` is a Code, or a number that this program does not know."""

    def __init__(self, subject: str, operation: str, code: int) -> None:
        name = Code(code).name if code in {*Code} else "an unknown error"
        wrong = f"the Fabric Manager cannot {_WORDS[operation]}: {name} ({code})"
        super().__init__(subject, wrong, _FIXES.get(code, "look into the Fabric Manager's log"))
        self.code = code


_WORDS = {
    "table": "list its partitions",
    "activate": "activate it",
    "deactivate": "deactivate it",
    "give_back": "take its active partitions back",
}

_FIXES: dict[int, str] = {
    Code.NOT_SUPPORTED: "set FABRIC_MODE=1 in fabricmanager.cfg, if guests are to have partitions",
    Code.VERSION_MISMATCH: "install libnvfm and the Fabric Manager of one version",
    Code.IN_USE: "see with gpu-plugin inventory which active partition it overlaps",
    Code.NOT_CONFIGURED: "wait until it is initialised, or set resume: true below fabric in the config if it runs "
    "with FABRIC_MODE_RESTART=1",
    Code.CONNECTION_NOT_VALID: "see whether it runs, and whether fabric.manager in the config is its address",
    Code.NVLINK_ERROR: "no NVLink trained: reset its GPUs, and restart the Fabric Manager and gpu-plugin",
}


@dataclass(frozen=True, slots=True)
class Manager:
    """The manager that a config names. Refusal from all: NoLibrary, Unanswered or ManagerError.

    A question and a change are given up after so many seconds. To activate a partition is to train the links of all its
    GPUs. `lock` is an open file that the process which asks has as well: it stays locked while that may still ask, also
    if this one was killed.
    """

    settings: Fabric
    lock: int | None = None
    table_within: float = 10.0
    change_within: float = 45.0

    async def table(self) -> Table:
        return _table(await self._ask("table", "the Fabric Manager", (), self.table_within))

    async def activate(self, partition: Partition) -> None:
        await self._ask("activate", f"partition {partition.id}", (partition.id,), self.change_within)

    async def deactivate(self, partition: Partition) -> None:
        await self._ask("deactivate", f"partition {partition.id}", (partition.id,), self.change_within)

    async def give_back(self, partition_ids: Sequence[int]) -> None:
        await self._ask("give_back", "the Fabric Manager", (list(partition_ids),), self.change_within)

    def table_now(self) -> Table:
        """Ask for the table and wait, for a command that does nothing else meanwhile."""
        question = self._question("table", ())
        try:
            done = subprocess.run(  # noqa: S603 (this program)
                _program(),
                input=question,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=self.table_within,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise self._unanswered("the Fabric Manager", self.table_within) from None
        return _table(self._value("table", "the Fabric Manager", done.stdout))

    async def _ask(self, operation: str, subject: str, arguments: tuple[Any, ...], within: float) -> Any:
        try:
            process = await asyncio.create_subprocess_exec(
                *_program(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                pass_fds=() if self.lock is None else (self.lock,),
            )
        except OSError as error:
            wrong = f"cannot be asked: no process can be started: {error.strerror}"
            raise Unanswered(subject, wrong, "see whether the container may have more processes") from error
        try:
            async with asyncio.timeout(within):
                output, _ = await process.communicate(self._question(operation, arguments))
        except TimeoutError:
            raise self._unanswered(subject, within) from None
        finally:
            await _end(process)
        return self._value(operation, subject, output)

    def _question(self, operation: str, arguments: tuple[Any, ...]) -> bytes:
        kind, address = _address(self.settings.manager)
        question = {
            "library": self.settings.library,
            "kind": kind,
            "address": address,
            "operation": operation,
            "arguments": arguments,
        }
        return json.dumps(question).encode()

    def _unanswered(self, subject: str, within: float) -> Unanswered:
        wrong = f"the Fabric Manager at {self.settings.manager} does not answer within {within:g} s"
        return Unanswered(subject, wrong, "look into its log, and restart it")

    def _value(self, operation: str, subject: str, output: bytes) -> Any:
        try:
            answer = json.loads(output.rstrip().rpartition(b"\n")[2])
        except ValueError:
            wrong = f"{self.settings.library} ended the process that asked with it"
            raise Unanswered(subject, wrong, "install libnvfm of the Fabric Manager's version") from None
        if "no_library" in answer:
            wrong = f"cannot be loaded: {answer['no_library']}"
            raise NoLibrary(
                self.settings.library, wrong, "mount the host's, and name it as fabric.library in the config"
            )
        if "code" in answer:
            raise ManagerError(subject, operation, answer["code"])
        return answer["value"]


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a process that may have ended; one that hangs in the kernel is left behind."""
    with suppress(ProcessLookupError):
        process.kill()
    with suppress(TimeoutError):
        async with asyncio.timeout(_ENDS_WITHIN):
            await process.wait()


def _address(manager: str) -> tuple[AddressType, str]:
    if manager.startswith("/"):
        return AddressType.UNIX, manager
    if manager.startswith("vsock:"):
        return AddressType.VSOCK, manager.removeprefix("vsock:")
    return AddressType.INET, manager


def _table(value: Any) -> Table:
    partitions = (Partition(each["id"], tuple(each["modules"]), each["active"]) for each in value["partitions"])
    return Table(tuple(partitions), tuple(value["failed"]), tuple(value["unsupported"]))
