"""libnvfm's structures and numbers, as NVIDIA/go-nvfm publishes them (pkg/nvfm/nv_fm_types.h, nv_fm_agent.h).

All fields are 32-bit numbers and bytes, so there is no padding, and the layout is the same on x86-64 and arm64.
"""

from ctypes import Structure, c_char, c_uint32, sizeof
from enum import IntEnum

MOST_GPUS = 16  # of a partition
MOST_PARTITIONS = 64
MOST_PORTS = 64
MOST_SWITCHES = 12

#: The longest address, with the zero at its end.
LONGEST_ADDRESS = 256


class Code(IntEnum):
    """The return codes of the library."""

    SUCCESS = 0
    BADPARAM = -1
    GENERIC_ERROR = -2
    NOT_SUPPORTED = -3
    UNINITIALIZED = -4
    TIMEOUT = -5
    VERSION_MISMATCH = -6
    IN_USE = -7
    NOT_CONFIGURED = -8
    CONNECTION_NOT_VALID = -9
    NVLINK_ERROR = -10
    RESOURCE_BAD = -11
    RESOURCE_IN_USE = -12
    RESOURCE_NOT_IN_USE = -13
    RESOURCE_EXHAUSTED = -14
    RESOURCE_NOT_READY = -15
    PARTITION_EXISTS = -16
    PARTITION_ID_IN_USE = -17
    PARTITION_ID_NOT_IN_USE = -18
    PARTITION_NAME_IN_USE = -19
    PARTITION_NAME_NOT_IN_USE = -20
    PARTITION_ID_NAME_MISMATCH = -21
    NOT_READY = -22
    RESOURCE_USED_IN_THIS_PARTITION = -23
    RESOURCE_USED_IN_ANOTHER_PARTITION = -24
    PARTITION_MISWIRED_TRUNKS = -25
    PARTITION_INSUFFICIENT_TRUNKS = -26
    PARTITION_MISSING_SWITCHES = -27
    PARTITION_NETWORK_CONFIG_ERROR = -28
    PARTITION_ROUTE_PROGRAMMING_ERROR = -29


class AddressType(IntEnum):
    INET = 1
    UNIX = 2
    VSOCK = 3


class ConnectParamsV1(Structure):
    _fields_ = (
        ("version", c_uint32),
        ("addressInfo", c_char * LONGEST_ADDRESS),
        ("timeoutMs", c_uint32),
        ("addressIsUnixSocket", c_uint32),
    )


class ConnectParams(Structure):
    _fields_ = (*ConnectParamsV1._fields_, ("addressType", c_uint32))


class GpuInfo(Structure):
    _fields_ = (
        ("physicalId", c_uint32),
        ("uuid", c_char * 80),
        ("pciBusId", c_char * 32),
        ("numNvLinksAvailable", c_uint32),
        ("maxNumNvLinks", c_uint32),
        ("nvlinkLineRateMBps", c_uint32),
    )


class PartitionInfo(Structure):
    _fields_ = (
        ("partitionId", c_uint32),
        ("isActive", c_uint32),
        ("numGpus", c_uint32),
        ("gpuInfo", GpuInfo * MOST_GPUS),
    )


class PartitionList(Structure):
    _fields_ = (
        ("version", c_uint32),
        ("numPartitions", c_uint32),
        ("maxNumPartitions", c_uint32),
        ("partitionInfo", PartitionInfo * MOST_PARTITIONS),
    )


class ActivatedList(Structure):
    _fields_ = (("version", c_uint32), ("numPartitions", c_uint32), ("partitionIds", c_uint32 * MOST_PARTITIONS))


class FailedDevice(Structure):
    _fields_ = (
        ("uuid", c_char * 80),
        ("pciBusId", c_char * 32),
        ("numPorts", c_uint32),
        ("portNum", c_uint32 * MOST_PORTS),
    )


class FailedDevices(Structure):
    _fields_ = (
        ("version", c_uint32),
        ("numGpus", c_uint32),
        ("numSwitches", c_uint32),
        ("gpuInfo", FailedDevice * MOST_GPUS),
        ("switchInfo", FailedDevice * MOST_SWITCHES),
    )


class Unsupported(Structure):
    _fields_ = (("partitionId", c_uint32), ("numGpus", c_uint32), ("gpuPhysicalIds", c_uint32 * MOST_GPUS))


class UnsupportedList(Structure):
    _fields_ = (("version", c_uint32), ("numPartitions", c_uint32), ("partitionInfo", Unsupported * MOST_PARTITIONS))


def versioned(kind: type[Structure], number: int) -> Structure:
    """Return a structure of zeros with a version: the structure's size, and `number` in the highest byte."""
    return kind(sizeof(kind) | number << 24)
