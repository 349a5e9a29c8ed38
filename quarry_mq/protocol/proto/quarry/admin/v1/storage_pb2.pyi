from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetStorageRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Storage(_message.Message):
    __slots__ = ("disk_total", "disk_free", "disk_used_percent", "force_percent", "refuse_percent", "retention_ms", "delete_hours", "segments", "segment_count", "log_begin", "log_end", "oldest_stored_at_ms", "newest_stored_at_ms", "expires_next", "expires_next_at_ms", "parts", "families")
    DISK_TOTAL_FIELD_NUMBER: _ClassVar[int]
    DISK_FREE_FIELD_NUMBER: _ClassVar[int]
    DISK_USED_PERCENT_FIELD_NUMBER: _ClassVar[int]
    FORCE_PERCENT_FIELD_NUMBER: _ClassVar[int]
    REFUSE_PERCENT_FIELD_NUMBER: _ClassVar[int]
    RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    DELETE_HOURS_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    LOG_BEGIN_FIELD_NUMBER: _ClassVar[int]
    LOG_END_FIELD_NUMBER: _ClassVar[int]
    OLDEST_STORED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    NEWEST_STORED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_NEXT_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_NEXT_AT_MS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    FAMILIES_FIELD_NUMBER: _ClassVar[int]
    disk_total: int
    disk_free: int
    disk_used_percent: float
    force_percent: int
    refuse_percent: int
    retention_ms: int
    delete_hours: _containers.RepeatedScalarFieldContainer[int]
    segments: _containers.RepeatedCompositeFieldContainer[Segment]
    segment_count: int
    log_begin: int
    log_end: int
    oldest_stored_at_ms: int
    newest_stored_at_ms: int
    expires_next: str
    expires_next_at_ms: int
    parts: _containers.RepeatedCompositeFieldContainer[Part]
    families: _containers.RepeatedCompositeFieldContainer[RocksFamily]
    def __init__(self, disk_total: _Optional[int] = ..., disk_free: _Optional[int] = ..., disk_used_percent: _Optional[float] = ..., force_percent: _Optional[int] = ..., refuse_percent: _Optional[int] = ..., retention_ms: _Optional[int] = ..., delete_hours: _Optional[_Iterable[int]] = ..., segments: _Optional[_Iterable[_Union[Segment, _Mapping]]] = ..., segment_count: _Optional[int] = ..., log_begin: _Optional[int] = ..., log_end: _Optional[int] = ..., oldest_stored_at_ms: _Optional[int] = ..., newest_stored_at_ms: _Optional[int] = ..., expires_next: _Optional[str] = ..., expires_next_at_ms: _Optional[int] = ..., parts: _Optional[_Iterable[_Union[Part, _Mapping]]] = ..., families: _Optional[_Iterable[_Union[RocksFamily, _Mapping]]] = ...) -> None: ...

class Segment(_message.Message):
    __slots__ = ("name", "begin", "size", "first_stored_at_ms", "last_stored_at_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    FIRST_STORED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_STORED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    begin: int
    size: int
    first_stored_at_ms: int
    last_stored_at_ms: int
    def __init__(self, name: _Optional[str] = ..., begin: _Optional[int] = ..., size: _Optional[int] = ..., first_stored_at_ms: _Optional[int] = ..., last_stored_at_ms: _Optional[int] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("name", "bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    bytes: int
    def __init__(self, name: _Optional[str] = ..., bytes: _Optional[int] = ...) -> None: ...

class RocksFamily(_message.Message):
    __slots__ = ("database", "family", "figures")
    class FiguresEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    DATABASE_FIELD_NUMBER: _ClassVar[int]
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    database: str
    family: str
    figures: _containers.ScalarMap[str, int]
    def __init__(self, database: _Optional[str] = ..., family: _Optional[str] = ..., figures: _Optional[_Mapping[str, int]] = ...) -> None: ...

class ListQueueSpansRequest(_message.Message):
    __slots__ = ("topic", "after", "limit", "group")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    topic: str
    after: int
    limit: int
    group: str
    def __init__(self, topic: _Optional[str] = ..., after: _Optional[int] = ..., limit: _Optional[int] = ..., group: _Optional[str] = ...) -> None: ...

class QueueSpan(_message.Message):
    __slots__ = ("queue", "minimum_offset", "maximum_offset", "first_stored_at_ms", "last_stored_at_ms", "expires_next", "next_offset")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FIRST_STORED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_STORED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_NEXT_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    queue: int
    minimum_offset: int
    maximum_offset: int
    first_stored_at_ms: int
    last_stored_at_ms: int
    expires_next: int
    next_offset: int
    def __init__(self, queue: _Optional[int] = ..., minimum_offset: _Optional[int] = ..., maximum_offset: _Optional[int] = ..., first_stored_at_ms: _Optional[int] = ..., last_stored_at_ms: _Optional[int] = ..., expires_next: _Optional[int] = ..., next_offset: _Optional[int] = ...) -> None: ...

class ListQueueSpansResponse(_message.Message):
    __slots__ = ("queues", "has_more")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    HAS_MORE_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[QueueSpan]
    has_more: bool
    def __init__(self, queues: _Optional[_Iterable[_Union[QueueSpan, _Mapping]]] = ..., has_more: _Optional[bool] = ...) -> None: ...

class ListPendingRequest(_message.Message):
    __slots__ = ("limit",)
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    limit: int
    def __init__(self, limit: _Optional[int] = ...) -> None: ...

class PendingTimer(_message.Message):
    __slots__ = ("topic", "message_id", "due_at_ms", "physical_offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    DUE_AT_MS_FIELD_NUMBER: _ClassVar[int]
    PHYSICAL_OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    message_id: str
    due_at_ms: int
    physical_offset: int
    def __init__(self, topic: _Optional[str] = ..., message_id: _Optional[str] = ..., due_at_ms: _Optional[int] = ..., physical_offset: _Optional[int] = ...) -> None: ...

class PendingTransaction(_message.Message):
    __slots__ = ("topic", "message_id", "stored_at_ms", "checks", "next_check_at_ms", "physical_offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    STORED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CHECK_AT_MS_FIELD_NUMBER: _ClassVar[int]
    PHYSICAL_OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    message_id: str
    stored_at_ms: int
    checks: int
    next_check_at_ms: int
    physical_offset: int
    def __init__(self, topic: _Optional[str] = ..., message_id: _Optional[str] = ..., stored_at_ms: _Optional[int] = ..., checks: _Optional[int] = ..., next_check_at_ms: _Optional[int] = ..., physical_offset: _Optional[int] = ...) -> None: ...

class DueWithin(_message.Message):
    __slots__ = ("within_ms", "timers")
    WITHIN_MS_FIELD_NUMBER: _ClassVar[int]
    TIMERS_FIELD_NUMBER: _ClassVar[int]
    within_ms: int
    timers: int
    def __init__(self, within_ms: _Optional[int] = ..., timers: _Optional[int] = ...) -> None: ...

class ListPendingResponse(_message.Message):
    __slots__ = ("timers", "transactions", "first_timers", "first_transactions", "due", "late_ms", "due_looked_at")
    TIMERS_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    FIRST_TIMERS_FIELD_NUMBER: _ClassVar[int]
    FIRST_TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    DUE_FIELD_NUMBER: _ClassVar[int]
    LATE_MS_FIELD_NUMBER: _ClassVar[int]
    DUE_LOOKED_AT_FIELD_NUMBER: _ClassVar[int]
    timers: int
    transactions: int
    first_timers: _containers.RepeatedCompositeFieldContainer[PendingTimer]
    first_transactions: _containers.RepeatedCompositeFieldContainer[PendingTransaction]
    due: _containers.RepeatedCompositeFieldContainer[DueWithin]
    late_ms: int
    due_looked_at: int
    def __init__(self, timers: _Optional[int] = ..., transactions: _Optional[int] = ..., first_timers: _Optional[_Iterable[_Union[PendingTimer, _Mapping]]] = ..., first_transactions: _Optional[_Iterable[_Union[PendingTransaction, _Mapping]]] = ..., due: _Optional[_Iterable[_Union[DueWithin, _Mapping]]] = ..., late_ms: _Optional[int] = ..., due_looked_at: _Optional[int] = ...) -> None: ...
