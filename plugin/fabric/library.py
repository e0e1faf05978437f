"""Calls of libnvfm, for a process that does nothing else: each call may block for ever.

Each question has its own connection: a kept connection would end with the manager, and show that only at its next use.
The process ends with its answer; plugin.fabric.fabric_manager ends a process that does not answer.
"""

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from ctypes import POINTER, byref, c_int32, c_uint32, c_void_p
from typing import Any

from plugin.fabric import abi
from plugin.fabric.abi import Code
from plugin.fabric.partitions import Partition, Table

_CONNECT_WITHIN = 2000  # milliseconds; 0 fails at once


class NoLibraryError(Exception):
    """The library cannot be loaded; the text says why."""


class FabricError(Exception):
    """A call of the library has failed, with this code."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(call, code)
        self.code = code


class Library:
    """libnvfm, loaded and initialised, with its connection to the manager."""

    def __init__(self, name: str) -> None:
        try:
            self._library = ctypes.CDLL(name)
            for call, arguments in _ARGUMENTS.items():
                function = getattr(self._library, call)
                function.argtypes = arguments
                function.restype = c_int32
        except (OSError, AttributeError) as error:
            raise NoLibraryError(str(error)) from error
        self._handle = c_void_p()
        self._call("fmLibInit")

    def connect(self, kind: int, address: str) -> None:
        """Connect to the manager with the newer parameters, or the older ones if it does not know the newer."""
        newer = abi.versioned(abi.ConnectParams, 2)
        older = abi.versioned(abi.ConnectParamsV1, 1)
        for params in (newer, older):
            params.addressInfo = address.encode()
            params.timeoutMs = _CONNECT_WITHIN
            params.addressIsUnixSocket = kind == abi.AddressType.UNIX
        newer.addressType = kind
        try:
            self._call("fmConnect", byref(newer), byref(self._handle))
        except FabricError as error:
            if error.code != Code.VERSION_MISMATCH or kind == abi.AddressType.VSOCK:
                raise
            self._call("fmConnect", byref(older), byref(self._handle))

    def disconnect(self) -> None:
        self._call("fmDisconnect", self._handle)

    def close(self) -> None:
        self._call("fmLibShutdown")

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code != Code.SUCCESS:
            raise FabricError(name, code)

    def table(self) -> Table:
        """Return the manager's partitions; FabricError if it counts more than its structures have room for."""
        partitions = abi.versioned(abi.PartitionList, 1)
        self._call("fmGetSupportedFabricPartitions", self._handle, byref(partitions))
        rows = [
            Partition(
                partition.partitionId,
                tuple(sorted(gpu.physicalId for gpu in _first("numGpus", partition.numGpus, partition.gpuInfo))),
                is_active=bool(partition.isActive),
            )
            for partition in _first("numPartitions", partitions.numPartitions, partitions.partitionInfo)
        ]
        return Table(tuple(rows), *self._broken())

    def _broken(self) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Return the broken devices and partitions; none from managers of newer boards, which do not tell them."""
        devices, unsupported = abi.versioned(abi.FailedDevices, 1), abi.versioned(abi.UnsupportedList, 1)
        try:
            self._call("fmGetNvlinkFailedDevices", self._handle, byref(devices))
            self._call("fmGetUnsupportedFabricPartitions", self._handle, byref(unsupported))
        except FabricError as error:
            if error.code != Code.NOT_SUPPORTED:
                raise
            return (), ()
        gpus = _first("numGpus", devices.numGpus, devices.gpuInfo)
        switches = _first("numSwitches", devices.numSwitches, devices.switchInfo)
        broken = _first("numPartitions", unsupported.numPartitions, unsupported.partitionInfo)
        failed = (
            f"{device.uuid.decode(errors='replace')} at {device.pciBusId.decode(errors='replace')}"
            for device in (*gpus, *switches)
        )
        return tuple(failed), tuple(partition.partitionId for partition in broken)

    def activate(self, partition_id: int) -> None:
        self._call("fmActivateFabricPartition", self._handle, partition_id)

    def deactivate(self, partition_id: int) -> None:
        self._call("fmDeactivateFabricPartition", self._handle, partition_id)

    def give_back(self, partition_ids: Sequence[int]) -> None:
        """Tell a manager that was started again which partitions are active."""
        activated = abi.versioned(abi.ActivatedList, 1)
        activated.numPartitions = len(partition_ids)
        for index, partition_id in enumerate(partition_ids):
            activated.partitionIds[index] = partition_id
        self._call("fmSetActivatedFabricPartitions", self._handle, byref(activated))


_ARGUMENTS: dict[str, list[Any]] = {
    "fmLibInit": [],
    "fmLibShutdown": [],
    "fmConnect": [c_void_p, POINTER(c_void_p)],
    "fmDisconnect": [c_void_p],
    "fmGetSupportedFabricPartitions": [c_void_p, c_void_p],
    "fmActivateFabricPartition": [c_void_p, c_uint32],
    "fmDeactivateFabricPartition": [c_void_p, c_uint32],
    "fmSetActivatedFabricPartitions": [c_void_p, c_void_p],
    "fmGetNvlinkFailedDevices": [c_void_p, c_void_p],
    "fmGetUnsupportedFabricPartitions": [c_void_p, c_void_p],
}


def _first(name: str, count: int, items: Any) -> list[Any]:
    """Return the first `count` items; FabricError, naming the field `name` that counts them, if there are fewer."""
    if count > len(items):
        raise FabricError(name, Code.GENERIC_ERROR)
    return list(items)[:count]


def answer(name: str, kind: int, address: str, operation: str, arguments: Sequence[Any]) -> Any:
    """Connect with the library `name`, and return the result of Library's method `operation`; NoLibraryError or
    FabricError if that fails."""
    library = Library(name)
    try:
        library.connect(kind, address)
        value = getattr(library, operation)(*arguments)
        with suppress(FabricError):  # the question is answered, and this process ends
            library.disconnect()
    finally:
        with suppress(FabricError):
            library.close()
    return value
