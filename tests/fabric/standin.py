"""A Fabric Manager where there is none: nvfm.c, compiled with the system's cc, and what a test may do to it."""

import ctypes
import os
import shutil
import subprocess
from enum import IntEnum
from itertools import chain
from pathlib import Path

_SOURCE = Path(__file__).with_name("nvfm.c")
SOCKET = "/run/nvidia-fabricmanager/socket"

Sets = tuple[tuple[int, ...], ...]


def _singles(most: int) -> Sets:
    return tuple((module,) for module in range(1, most + 1))


#: The partitions by default (Fabric Manager's user guide, "GPU Partitions"): the first ID, and the modules of each.
H100: tuple[int, Sets] = (
    0,
    (tuple(range(1, 9)), (1, 2, 3, 4), (5, 6, 7, 8), (1, 3), (2, 4), (5, 7), (6, 8), *_singles(8)),
)
B200: tuple[int, Sets] = (
    1,
    (tuple(range(1, 9)), (1, 2, 3, 4), (5, 6, 7, 8), (1, 2), (3, 4), (5, 6), (7, 8), *_singles(8)),
)
_QUARTERS: Sets = ((1, 2, 3, 4), (5, 6, 7, 8), (9, 10, 11, 12), (13, 14, 15, 16))
A100_16: tuple[int, Sets] = (
    0,
    (
        tuple(range(1, 17)),
        tuple(range(1, 9)),
        tuple(range(9, 17)),
        *(tuple(chain(_QUARTERS[low], _QUARTERS[high])) for low, high in ((0, 2), (1, 3), (0, 3), (1, 2))),
        *_QUARTERS,
        *((module, module + 1) for module in range(1, 17, 2)),
        *_singles(16),
    ),
)


class Call(IntEnum):
    INIT = 0
    SHUTDOWN = 1
    CONNECT = 2
    DISCONNECT = 3
    GET = 4
    ACTIVATE = 5
    DEACTIVATE = 6
    SET = 7
    FAILED = 8
    UNSUPPORTED = 9


def compiled(directory: Path) -> Path:
    """The library, made in that directory."""
    library = directory / "libnvfm.so.1"
    if not library.exists():
        new = directory / f"libnvfm.{os.getpid()}"
        subprocess.run(["cc", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", new, _SOURCE], check=True)
        new.rename(library)
    return library


class Manager:
    """One manager, which is a file beside a copy of the library of its own: whoever loads that asks this manager."""

    def __init__(
        self, libnvfm: Path, directory: Path, table: tuple[int, Sets] = H100, address: str = SOCKET, kind: int = 2
    ) -> None:
        self.library = directory / "libnvfm.so.1"
        shutil.copy(libnvfm, self.library)
        self._library = ctypes.CDLL(str(self.library))
        self.first, self.sets = table
        self._address, self._kind = address, kind
        self._do("start", address.encode(), kind, _masks(self.sets), len(self.sets), self.first)

    def id_of(self, *modules: int) -> int:
        return self.first + self.sets.index(tuple(sorted(modules)))

    @property
    def active(self) -> set[tuple[int, ...]]:
        """The partitions that are active, by their modules."""
        numbered = enumerate(self.sets, start=self.first)
        return {modules for number, modules in numbered if self._do("is_active", number)}

    @property
    def log(self) -> list[str]:
        """What it did, in order: `activate 3`, `deactivate 3`, `set 1,2`."""
        path = Path(f"{self.library}.log")
        return path.read_text().splitlines() if path.exists() else []

    def mode(self, mode: int) -> None:
        self._do("mode", mode)

    def knows_parameters(self, version: int) -> None:
        self._do("newest", version)

    def claims(self, number: int) -> None:
        """It says that it has so many partitions, and so many GPUs in the first."""
        self._do("claims", number)

    def answers(self, call: Call, code: int, times: int = 1) -> None:
        """The next calls are answered with that code, and nothing else is done."""
        self._do("provoke", call, code, times)

    def hangs(self, call: Call, times: int = 1, *, having_acted: bool = False) -> None:
        """The next calls never return."""
        self._do("hang", call, times, having_acted)

    def has_to_hang(self, call: Call) -> bool:
        """Whether a call that is never to return has not come yet."""
        return bool(self._do("hangs", call))

    def stop(self) -> None:
        self._do("stop")

    def restart(self, *, initialises: int = 0, wants_list_within: float = 0) -> None:
        self._do("restart", initialises, ctypes.c_double(wants_list_within))

    def breaks_links(self, *modules: int) -> None:
        self._do("links", _mask(modules))

    def runs(self, *modules: int) -> None:
        """A guest runs on these GPUs, and no other does."""
        self._do("runs", _mask(modules))

    def activated_by_another(self, *modules: int, active: bool = True) -> None:
        self._do("set_active", self.id_of(*modules), active)

    @property
    def violations(self) -> int:
        """How often a partition was deactivated under a guest."""
        return self._do("violations")

    @property
    def is_down(self) -> bool:
        return bool(self._do("is_down"))

    def _do(self, name: str, *arguments: object) -> int:
        return int(getattr(self._library, f"standin_{name}")(*arguments))


def sizes(library: Path) -> list[int]:
    """Of each structure, as the C compiler has it."""
    handle = ctypes.CDLL(str(library))
    return list((ctypes.c_uint32 * 10).in_dll(handle, "standin_sizes"))


def _mask(modules: tuple[int, ...]) -> int:
    return sum(1 << module for module in modules)


def _masks(sets: Sets) -> ctypes.Array[ctypes.c_uint32]:
    return (ctypes.c_uint32 * len(sets))(*map(_mask, sets))
