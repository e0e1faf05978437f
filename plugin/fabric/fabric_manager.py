"""Asks the Fabric Manager: each question has a process (plugin.fabric.library), which is ended if it takes too long."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from plugin.cards.config import Fabric
from plugin.fabric.abi import AddressType, Code
from plugin.fabric.library import FabricError, NoLibraryError, answer
from plugin.fabric.partitions import Partition, Table
from program.child import Late, NoAnswer, spawned
from program.errors import Refusal


class NoLibrary(Refusal):
    """libnvfm cannot be loaded."""


class Unanswered(Refusal):
    """The manager did not answer in time, and may still carry out the request."""


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
    """The manager that a config names. Each method raises NoLibrary, Unanswered or ManagerError.

    `table_within` and `change_within` are seconds: activating a partition trains the links of all its GPUs, and the
    kubelet waits 45 s for a claim. `lock` is the descriptor of a locked file. The asking process gets it too, and so
    keeps the lock even if this one is killed.
    """

    settings: Fabric
    lock: int | None = None
    table_within: float = 10.0
    change_within: float = 30.0

    async def table(self) -> Table:
        return cast("Table", await self._ask("table", "the Fabric Manager", (), self.table_within))

    async def activate(self, partition: Partition) -> None:
        await self._ask("activate", f"partition {partition.id}", (partition.id,), self.change_within)

    async def deactivate(self, partition: Partition) -> None:
        await self._ask("deactivate", f"partition {partition.id}", (partition.id,), self.change_within)

    async def give_back(self, partition_ids: Sequence[int]) -> None:
        await self._ask("give_back", "the Fabric Manager", (list(partition_ids),), self.change_within)

    async def _ask(self, operation: str, subject: str, arguments: tuple[Any, ...], within: float) -> Any:
        library, manager = self.settings.library, self.settings.manager
        call = partial(answer, library, *_address(manager), operation, arguments)
        keep = () if self.lock is None else (self.lock,)
        try:
            return await spawned(f"the Fabric Manager at {manager}", call, within=within, keep=keep).answer_async()
        except Late as late:
            wrong = f"{late.problem.subject} {late.problem.wrong}"
            raise Unanswered(subject, wrong, "look into its log, and restart it") from None
        except NoAnswer:
            wrong = f"{library} ended the process that asked with it"
            raise Unanswered(subject, wrong, "install libnvfm of the Fabric Manager's version") from None
        except NoLibraryError as error:
            fix = "mount the host's, and name it as fabric.library in the config"
            raise NoLibrary(library, f"cannot be loaded: {error}", fix) from None
        except FabricError as error:
            raise ManagerError(subject, operation, error.code) from None
        except OSError as error:
            wrong = f"cannot be asked: no process can be started: {error.strerror}"
            raise Unanswered(subject, wrong, "see whether the container may have more processes") from error


def _address(manager: str) -> tuple[AddressType, str]:
    if manager.startswith("/"):
        return AddressType.UNIX, manager
    if manager.startswith("vsock:"):
        return AddressType.VSOCK, manager.removeprefix("vsock:")
    return AddressType.INET, manager
