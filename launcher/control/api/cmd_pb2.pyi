from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EmptyRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class VMI(_message.Message):
    __slots__ = ("vmiJson",)
    VMIJSON_FIELD_NUMBER: _ClassVar[int]
    vmiJson: bytes
    def __init__(self, vmiJson: _Optional[bytes] = ...) -> None: ...

class VMIRequest(_message.Message):
    __slots__ = ("vmi",)
    VMI_FIELD_NUMBER: _ClassVar[int]
    vmi: VMI
    def __init__(self, vmi: _Optional[_Union[VMI, _Mapping]] = ...) -> None: ...

class Response(_message.Message):
    __slots__ = ("success", "message")
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    success: bool
    message: str
    def __init__(self, success: _Optional[bool] = ..., message: _Optional[str] = ...) -> None: ...

class DomainResponse(_message.Message):
    __slots__ = ("response", "domain")
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_FIELD_NUMBER: _ClassVar[int]
    response: Response
    domain: str
    def __init__(self, response: _Optional[_Union[Response, _Mapping]] = ..., domain: _Optional[str] = ...) -> None: ...

class DomainStatsResponse(_message.Message):
    __slots__ = ("response", "domainStats")
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    DOMAINSTATS_FIELD_NUMBER: _ClassVar[int]
    response: Response
    domainStats: str
    def __init__(self, response: _Optional[_Union[Response, _Mapping]] = ..., domainStats: _Optional[str] = ...) -> None: ...

class DirtyRateStatsResponse(_message.Message):
    __slots__ = ("response", "dirtyRateMbs")
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    DIRTYRATEMBS_FIELD_NUMBER: _ClassVar[int]
    response: Response
    dirtyRateMbs: int
    def __init__(self, response: _Optional[_Union[Response, _Mapping]] = ..., dirtyRateMbs: _Optional[int] = ...) -> None: ...

class QemuVersionResponse(_message.Message):
    __slots__ = ("response", "version")
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    response: Response
    version: str
    def __init__(self, response: _Optional[_Union[Response, _Mapping]] = ..., version: _Optional[str] = ...) -> None: ...

class ScreenshotResponse(_message.Message):
    __slots__ = ("response", "mime", "data")
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    MIME_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    response: Response
    mime: str
    data: bytes
    def __init__(self, response: _Optional[_Union[Response, _Mapping]] = ..., mime: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class MemoryDumpRequest(_message.Message):
    __slots__ = ("vmi", "dumpPath")
    VMI_FIELD_NUMBER: _ClassVar[int]
    DUMPPATH_FIELD_NUMBER: _ClassVar[int]
    vmi: VMI
    dumpPath: str
    def __init__(self, vmi: _Optional[_Union[VMI, _Mapping]] = ..., dumpPath: _Optional[str] = ...) -> None: ...

class VMStatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class VMStatsResponse(_message.Message):
    __slots__ = ("response",)
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    response: Response
    def __init__(self, response: _Optional[_Union[Response, _Mapping]] = ...) -> None: ...

class GuestInfoResponse(_message.Message):
    __slots__ = ("response", "guestInfoResponse")
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    GUESTINFORESPONSE_FIELD_NUMBER: _ClassVar[int]
    response: Response
    guestInfoResponse: str
    def __init__(self, response: _Optional[_Union[Response, _Mapping]] = ..., guestInfoResponse: _Optional[str] = ...) -> None: ...

class GuestUserListResponse(_message.Message):
    __slots__ = ("response", "guestUserListResponse")
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    GUESTUSERLISTRESPONSE_FIELD_NUMBER: _ClassVar[int]
    response: Response
    guestUserListResponse: str
    def __init__(self, response: _Optional[_Union[Response, _Mapping]] = ..., guestUserListResponse: _Optional[str] = ...) -> None: ...

class GuestFilesystemsResponse(_message.Message):
    __slots__ = ("response", "guestFilesystemsResponse")
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    GUESTFILESYSTEMSRESPONSE_FIELD_NUMBER: _ClassVar[int]
    response: Response
    guestFilesystemsResponse: str
    def __init__(self, response: _Optional[_Union[Response, _Mapping]] = ..., guestFilesystemsResponse: _Optional[str] = ...) -> None: ...

class GuestPingRequest(_message.Message):
    __slots__ = ("domainName", "timeoutSeconds")
    DOMAINNAME_FIELD_NUMBER: _ClassVar[int]
    TIMEOUTSECONDS_FIELD_NUMBER: _ClassVar[int]
    domainName: str
    timeoutSeconds: int
    def __init__(self, domainName: _Optional[str] = ..., timeoutSeconds: _Optional[int] = ...) -> None: ...

class GuestPingResponse(_message.Message):
    __slots__ = ("response",)
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    response: Response
    def __init__(self, response: _Optional[_Union[Response, _Mapping]] = ...) -> None: ...

class ExecRequest(_message.Message):
    __slots__ = ("domainName", "Command", "Args", "timeoutSeconds")
    DOMAINNAME_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUTSECONDS_FIELD_NUMBER: _ClassVar[int]
    domainName: str
    Command: str
    Args: _containers.RepeatedScalarFieldContainer[str]
    timeoutSeconds: int
    def __init__(self, domainName: _Optional[str] = ..., Command: _Optional[str] = ..., Args: _Optional[_Iterable[str]] = ..., timeoutSeconds: _Optional[int] = ...) -> None: ...

class ExecResponse(_message.Message):
    __slots__ = ("response", "exitCode", "stdOut")
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    EXITCODE_FIELD_NUMBER: _ClassVar[int]
    STDOUT_FIELD_NUMBER: _ClassVar[int]
    response: Response
    exitCode: int
    stdOut: str
    def __init__(self, response: _Optional[_Union[Response, _Mapping]] = ..., exitCode: _Optional[int] = ..., stdOut: _Optional[str] = ...) -> None: ...

class FreezeRequest(_message.Message):
    __slots__ = ("vmi", "unfreezeTimeoutSeconds")
    VMI_FIELD_NUMBER: _ClassVar[int]
    UNFREEZETIMEOUTSECONDS_FIELD_NUMBER: _ClassVar[int]
    vmi: VMI
    unfreezeTimeoutSeconds: int
    def __init__(self, vmi: _Optional[_Union[VMI, _Mapping]] = ..., unfreezeTimeoutSeconds: _Optional[int] = ...) -> None: ...

class MigrationRequest(_message.Message):
    __slots__ = ("vmi", "options")
    VMI_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    vmi: VMI
    options: bytes
    def __init__(self, vmi: _Optional[_Union[VMI, _Mapping]] = ..., options: _Optional[bytes] = ...) -> None: ...

class SEVInfoResponse(_message.Message):
    __slots__ = ("response", "sevInfo")
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    SEVINFO_FIELD_NUMBER: _ClassVar[int]
    response: Response
    sevInfo: bytes
    def __init__(self, response: _Optional[_Union[Response, _Mapping]] = ..., sevInfo: _Optional[bytes] = ...) -> None: ...

class LaunchMeasurementResponse(_message.Message):
    __slots__ = ("response", "launchMeasurement")
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    LAUNCHMEASUREMENT_FIELD_NUMBER: _ClassVar[int]
    response: Response
    launchMeasurement: bytes
    def __init__(self, response: _Optional[_Union[Response, _Mapping]] = ..., launchMeasurement: _Optional[bytes] = ...) -> None: ...

class InjectLaunchSecretRequest(_message.Message):
    __slots__ = ("vmi", "options")
    VMI_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    vmi: VMI
    options: bytes
    def __init__(self, vmi: _Optional[_Union[VMI, _Mapping]] = ..., options: _Optional[bytes] = ...) -> None: ...

class BackupRequest(_message.Message):
    __slots__ = ("vmi", "options")
    VMI_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    vmi: VMI
    options: bytes
    def __init__(self, vmi: _Optional[_Union[VMI, _Mapping]] = ..., options: _Optional[bytes] = ...) -> None: ...

class RedefineCheckpointRequest(_message.Message):
    __slots__ = ("vmi", "checkpoint")
    VMI_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    vmi: VMI
    checkpoint: bytes
    def __init__(self, vmi: _Optional[_Union[VMI, _Mapping]] = ..., checkpoint: _Optional[bytes] = ...) -> None: ...

class RedefineCheckpointResponse(_message.Message):
    __slots__ = ("response", "checkpointInvalid")
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTINVALID_FIELD_NUMBER: _ClassVar[int]
    response: Response
    checkpointInvalid: bool
    def __init__(self, response: _Optional[_Union[Response, _Mapping]] = ..., checkpointInvalid: _Optional[bool] = ...) -> None: ...
