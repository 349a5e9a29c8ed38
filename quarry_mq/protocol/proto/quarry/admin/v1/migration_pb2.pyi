from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetMigrationRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Migration(_message.Message):
    __slots__ = ("phase", "read", "assign", "advance_to", "advance_refused", "comparison_first", "rollback_to", "rollback_refused", "backfill", "lag_bytes", "comparing", "report", "removing", "problem", "steps", "at_start")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    READ_FIELD_NUMBER: _ClassVar[int]
    ASSIGN_FIELD_NUMBER: _ClassVar[int]
    ADVANCE_TO_FIELD_NUMBER: _ClassVar[int]
    ADVANCE_REFUSED_FIELD_NUMBER: _ClassVar[int]
    COMPARISON_FIRST_FIELD_NUMBER: _ClassVar[int]
    ROLLBACK_TO_FIELD_NUMBER: _ClassVar[int]
    ROLLBACK_REFUSED_FIELD_NUMBER: _ClassVar[int]
    BACKFILL_FIELD_NUMBER: _ClassVar[int]
    LAG_BYTES_FIELD_NUMBER: _ClassVar[int]
    COMPARING_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    REMOVING_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    AT_START_FIELD_NUMBER: _ClassVar[int]
    phase: str
    read: str
    assign: str
    advance_to: str
    advance_refused: str
    comparison_first: str
    rollback_to: str
    rollback_refused: str
    backfill: Backfill
    lag_bytes: int
    comparing: ComparisonProgress
    report: AgreementReport
    removing: bool
    problem: str
    steps: _containers.RepeatedCompositeFieldContainer[MigrationStep]
    at_start: AgreementReport
    def __init__(self, phase: _Optional[str] = ..., read: _Optional[str] = ..., assign: _Optional[str] = ..., advance_to: _Optional[str] = ..., advance_refused: _Optional[str] = ..., comparison_first: _Optional[str] = ..., rollback_to: _Optional[str] = ..., rollback_refused: _Optional[str] = ..., backfill: _Optional[_Union[Backfill, _Mapping]] = ..., lag_bytes: _Optional[int] = ..., comparing: _Optional[_Union[ComparisonProgress, _Mapping]] = ..., report: _Optional[_Union[AgreementReport, _Mapping]] = ..., removing: _Optional[bool] = ..., problem: _Optional[str] = ..., steps: _Optional[_Iterable[_Union[MigrationStep, _Mapping]]] = ..., at_start: _Optional[_Union[AgreementReport, _Mapping]] = ...) -> None: ...

class Backfill(_message.Message):
    __slots__ = ("log_begin", "done", "end")
    LOG_BEGIN_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    log_begin: int
    done: int
    end: int
    def __init__(self, log_begin: _Optional[int] = ..., done: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class ComparisonProgress(_message.Message):
    __slots__ = ("queues", "units")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    queues: int
    units: int
    def __init__(self, queues: _Optional[int] = ..., units: _Optional[int] = ...) -> None: ...

class AgreementReport(_message.Message):
    __slots__ = ("began_at_ms", "ended_at_ms", "asked_by", "log_begin", "log_end", "queues", "units", "differences", "first", "doubt")
    class DifferencesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    BEGAN_AT_MS_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    ASKED_BY_FIELD_NUMBER: _ClassVar[int]
    LOG_BEGIN_FIELD_NUMBER: _ClassVar[int]
    LOG_END_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCES_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    DOUBT_FIELD_NUMBER: _ClassVar[int]
    began_at_ms: int
    ended_at_ms: int
    asked_by: str
    log_begin: int
    log_end: int
    queues: int
    units: int
    differences: _containers.ScalarMap[str, int]
    first: _containers.RepeatedCompositeFieldContainer[QueueDifference]
    doubt: str
    def __init__(self, began_at_ms: _Optional[int] = ..., ended_at_ms: _Optional[int] = ..., asked_by: _Optional[str] = ..., log_begin: _Optional[int] = ..., log_end: _Optional[int] = ..., queues: _Optional[int] = ..., units: _Optional[int] = ..., differences: _Optional[_Mapping[str, int]] = ..., first: _Optional[_Iterable[_Union[QueueDifference, _Mapping]]] = ..., doubt: _Optional[str] = ...) -> None: ...

class QueueDifference(_message.Message):
    __slots__ = ("kind", "topic", "queue", "queue_offset", "text")
    KIND_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    kind: str
    topic: str
    queue: int
    queue_offset: int
    text: str
    def __init__(self, kind: _Optional[str] = ..., topic: _Optional[str] = ..., queue: _Optional[int] = ..., queue_offset: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class MigrationStep(_message.Message):
    __slots__ = ("at_ms", "to", "asked_by")
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    ASKED_BY_FIELD_NUMBER: _ClassVar[int]
    at_ms: int
    to: str
    asked_by: str
    def __init__(self, at_ms: _Optional[int] = ..., to: _Optional[str] = ..., asked_by: _Optional[str] = ..., **kwargs) -> None: ...

class AdvanceMigrationRequest(_message.Message):
    __slots__ = ("asked_by",)
    ASKED_BY_FIELD_NUMBER: _ClassVar[int]
    asked_by: str
    def __init__(self, asked_by: _Optional[str] = ...) -> None: ...

class AdvanceMigrationResponse(_message.Message):
    __slots__ = ("phase",)
    PHASE_FIELD_NUMBER: _ClassVar[int]
    phase: str
    def __init__(self, phase: _Optional[str] = ...) -> None: ...

class RollBackMigrationRequest(_message.Message):
    __slots__ = ("asked_by",)
    ASKED_BY_FIELD_NUMBER: _ClassVar[int]
    asked_by: str
    def __init__(self, asked_by: _Optional[str] = ...) -> None: ...

class RollBackMigrationResponse(_message.Message):
    __slots__ = ("phase",)
    PHASE_FIELD_NUMBER: _ClassVar[int]
    phase: str
    def __init__(self, phase: _Optional[str] = ...) -> None: ...
