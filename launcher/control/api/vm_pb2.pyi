from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetStateRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class State(_message.Message):
    __slots__ = ("namespace", "name", "uid", "phase", "state", "reason")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name: str
    uid: str
    phase: str
    state: str
    reason: str
    def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ..., uid: _Optional[str] = ..., phase: _Optional[str] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class GetXMLRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class XML(_message.Message):
    __slots__ = ("xml",)
    XML_FIELD_NUMBER: _ClassVar[int]
    xml: str
    def __init__(self, xml: _Optional[str] = ...) -> None: ...

class GetConsoleRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Console(_message.Message):
    __slots__ = ("path",)
    PATH_FIELD_NUMBER: _ClassVar[int]
    path: str
    def __init__(self, path: _Optional[str] = ...) -> None: ...

class GetScreenRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Screen(_message.Message):
    __slots__ = ("path",)
    PATH_FIELD_NUMBER: _ClassVar[int]
    path: str
    def __init__(self, path: _Optional[str] = ...) -> None: ...

class TakeScreenshotRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Screenshot(_message.Message):
    __slots__ = ("mime_type", "data")
    MIME_TYPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    mime_type: str
    data: bytes
    def __init__(self, mime_type: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class WatchChangesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Change(_message.Message):
    __slots__ = ("time", "phase", "event", "reason", "lost")
    TIME_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    time: float
    phase: str
    event: str
    reason: str
    lost: int
    def __init__(self, time: _Optional[float] = ..., phase: _Optional[str] = ..., event: _Optional[str] = ..., reason: _Optional[str] = ..., lost: _Optional[int] = ...) -> None: ...

class PauseRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PauseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResumeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResumeResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResetRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResetResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SuspendRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SuspendProgress(_message.Message):
    __slots__ = ("saved",)
    SAVED_FIELD_NUMBER: _ClassVar[int]
    saved: bool
    def __init__(self, saved: _Optional[bool] = ...) -> None: ...

class ShutdownRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ShutdownResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class KillRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class KillResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PingGuestRequest(_message.Message):
    __slots__ = ("seconds",)
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    seconds: int
    def __init__(self, seconds: _Optional[int] = ...) -> None: ...

class PingGuestResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetGuestInfoRequest(_message.Message):
    __slots__ = ("seconds",)
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    seconds: int
    def __init__(self, seconds: _Optional[int] = ...) -> None: ...

class GuestInfo(_message.Message):
    __slots__ = ("agent", "host_name", "system", "kernel", "interfaces")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    HOST_NAME_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_FIELD_NUMBER: _ClassVar[int]
    KERNEL_FIELD_NUMBER: _ClassVar[int]
    INTERFACES_FIELD_NUMBER: _ClassVar[int]
    agent: str
    host_name: str
    system: str
    kernel: str
    interfaces: _containers.RepeatedCompositeFieldContainer[GuestInterface]
    def __init__(self, agent: _Optional[str] = ..., host_name: _Optional[str] = ..., system: _Optional[str] = ..., kernel: _Optional[str] = ..., interfaces: _Optional[_Iterable[_Union[GuestInterface, _Mapping]]] = ...) -> None: ...

class GuestInterface(_message.Message):
    __slots__ = ("name", "mac", "addresses")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MAC_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    name: str
    mac: str
    addresses: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., mac: _Optional[str] = ..., addresses: _Optional[_Iterable[str]] = ...) -> None: ...

class GetGuestUsersRequest(_message.Message):
    __slots__ = ("seconds",)
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    seconds: int
    def __init__(self, seconds: _Optional[int] = ...) -> None: ...

class GuestUsers(_message.Message):
    __slots__ = ("users",)
    USERS_FIELD_NUMBER: _ClassVar[int]
    users: _containers.RepeatedCompositeFieldContainer[GuestUser]
    def __init__(self, users: _Optional[_Iterable[_Union[GuestUser, _Mapping]]] = ...) -> None: ...

class GuestUser(_message.Message):
    __slots__ = ("name", "domain", "login_time")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_FIELD_NUMBER: _ClassVar[int]
    LOGIN_TIME_FIELD_NUMBER: _ClassVar[int]
    name: str
    domain: str
    login_time: float
    def __init__(self, name: _Optional[str] = ..., domain: _Optional[str] = ..., login_time: _Optional[float] = ...) -> None: ...

class GetGuestFilesystemsRequest(_message.Message):
    __slots__ = ("seconds",)
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    seconds: int
    def __init__(self, seconds: _Optional[int] = ...) -> None: ...

class GuestFilesystems(_message.Message):
    __slots__ = ("filesystems",)
    FILESYSTEMS_FIELD_NUMBER: _ClassVar[int]
    filesystems: _containers.RepeatedCompositeFieldContainer[GuestFilesystem]
    def __init__(self, filesystems: _Optional[_Iterable[_Union[GuestFilesystem, _Mapping]]] = ...) -> None: ...

class GuestFilesystem(_message.Message):
    __slots__ = ("name", "mount_point", "type", "used", "total")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MOUNT_POINT_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    name: str
    mount_point: str
    type: str
    used: int
    total: int
    def __init__(self, name: _Optional[str] = ..., mount_point: _Optional[str] = ..., type: _Optional[str] = ..., used: _Optional[int] = ..., total: _Optional[int] = ...) -> None: ...

class GetGuestGPUsRequest(_message.Message):
    __slots__ = ("seconds",)
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    seconds: int
    def __init__(self, seconds: _Optional[int] = ...) -> None: ...

class GuestGPUs(_message.Message):
    __slots__ = ("gpus", "silence", "mismatch")
    GPUS_FIELD_NUMBER: _ClassVar[int]
    SILENCE_FIELD_NUMBER: _ClassVar[int]
    MISMATCH_FIELD_NUMBER: _ClassVar[int]
    gpus: _containers.RepeatedCompositeFieldContainer[GuestGPU]
    silence: str
    mismatch: str
    def __init__(self, gpus: _Optional[_Iterable[_Union[GuestGPU, _Mapping]]] = ..., silence: _Optional[str] = ..., mismatch: _Optional[str] = ...) -> None: ...

class GuestGPU(_message.Message):
    __slots__ = ("name", "host", "guest", "driver_version", "utilization", "memory_used", "memory_total", "temperature")
    NAME_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    GUEST_FIELD_NUMBER: _ClassVar[int]
    DRIVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    UTILIZATION_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TOTAL_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    name: str
    host: str
    guest: str
    driver_version: str
    utilization: int
    memory_used: int
    memory_total: int
    temperature: int
    def __init__(self, name: _Optional[str] = ..., host: _Optional[str] = ..., guest: _Optional[str] = ..., driver_version: _Optional[str] = ..., utilization: _Optional[int] = ..., memory_used: _Optional[int] = ..., memory_total: _Optional[int] = ..., temperature: _Optional[int] = ...) -> None: ...

class ExecInGuestRequest(_message.Message):
    __slots__ = ("path", "arguments", "seconds")
    PATH_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    path: str
    arguments: _containers.RepeatedScalarFieldContainer[str]
    seconds: int
    def __init__(self, path: _Optional[str] = ..., arguments: _Optional[_Iterable[str]] = ..., seconds: _Optional[int] = ...) -> None: ...

class ExecInGuestResponse(_message.Message):
    __slots__ = ("code", "signal", "out", "err")
    CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    OUT_FIELD_NUMBER: _ClassVar[int]
    ERR_FIELD_NUMBER: _ClassVar[int]
    code: int
    signal: int
    out: bytes
    err: bytes
    def __init__(self, code: _Optional[int] = ..., signal: _Optional[int] = ..., out: _Optional[bytes] = ..., err: _Optional[bytes] = ...) -> None: ...
