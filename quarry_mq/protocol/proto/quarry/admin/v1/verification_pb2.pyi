from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BeginVerificationRequest(_message.Message):
    __slots__ = ("asked_by", "busy_percent")
    ASKED_BY_FIELD_NUMBER: _ClassVar[int]
    BUSY_PERCENT_FIELD_NUMBER: _ClassVar[int]
    asked_by: str
    busy_percent: int
    def __init__(self, asked_by: _Optional[str] = ..., busy_percent: _Optional[int] = ...) -> None: ...

class GetVerificationRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: int
    def __init__(self, id: _Optional[int] = ...) -> None: ...

class ListVerificationsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListVerificationsResponse(_message.Message):
    __slots__ = ("verifications",)
    VERIFICATIONS_FIELD_NUMBER: _ClassVar[int]
    verifications: _containers.RepeatedCompositeFieldContainer[Verification]
    def __init__(self, verifications: _Optional[_Iterable[_Union[Verification, _Mapping]]] = ...) -> None: ...

class CancelVerificationRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: int
    def __init__(self, id: _Optional[int] = ...) -> None: ...

class Verification(_message.Message):
    __slots__ = ("id", "asked_by", "state", "ended_at_ms", "progress", "log_begin", "log_end", "checks", "notes", "first", "remark")
    class NotesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    ASKED_BY_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    LOG_BEGIN_FIELD_NUMBER: _ClassVar[int]
    LOG_END_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    REMARK_FIELD_NUMBER: _ClassVar[int]
    id: int
    asked_by: str
    state: str
    ended_at_ms: int
    progress: VerificationProgress
    log_begin: int
    log_end: int
    checks: _containers.RepeatedCompositeFieldContainer[VerificationCheck]
    notes: _containers.ScalarMap[str, int]
    first: _containers.RepeatedCompositeFieldContainer[VerificationDifference]
    remark: str
    def __init__(self, id: _Optional[int] = ..., asked_by: _Optional[str] = ..., state: _Optional[str] = ..., ended_at_ms: _Optional[int] = ..., progress: _Optional[_Union[VerificationProgress, _Mapping]] = ..., log_begin: _Optional[int] = ..., log_end: _Optional[int] = ..., checks: _Optional[_Iterable[_Union[VerificationCheck, _Mapping]]] = ..., notes: _Optional[_Mapping[str, int]] = ..., first: _Optional[_Iterable[_Union[VerificationDifference, _Mapping]]] = ..., remark: _Optional[str] = ...) -> None: ...

class VerificationProgress(_message.Message):
    __slots__ = ("phase", "done", "total")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    phase: str
    done: int
    total: int
    def __init__(self, phase: _Optional[str] = ..., done: _Optional[int] = ..., total: _Optional[int] = ...) -> None: ...

class VerificationCheck(_message.Message):
    __slots__ = ("name", "checked", "differences")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CHECKED_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCES_FIELD_NUMBER: _ClassVar[int]
    name: str
    checked: int
    differences: int
    def __init__(self, name: _Optional[str] = ..., checked: _Optional[int] = ..., differences: _Optional[int] = ...) -> None: ...

class VerificationDifference(_message.Message):
    __slots__ = ("check", "text")
    CHECK_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    check: str
    text: str
    def __init__(self, check: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...
