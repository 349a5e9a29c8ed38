from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2 as _admin_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BeginJobRequest(_message.Message):
    __slots__ = ("asked_by", "dry_run", "reset_offset", "resend_dead_letters", "resend_messages")
    ASKED_BY_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    RESET_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RESEND_DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    RESEND_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    asked_by: str
    dry_run: bool
    reset_offset: OffsetsReset
    resend_dead_letters: DeadLettersResend
    resend_messages: MessagesResend
    def __init__(self, asked_by: _Optional[str] = ..., dry_run: _Optional[bool] = ..., reset_offset: _Optional[_Union[OffsetsReset, _Mapping]] = ..., resend_dead_letters: _Optional[_Union[DeadLettersResend, _Mapping]] = ..., resend_messages: _Optional[_Union[MessagesResend, _Mapping]] = ...) -> None: ...

class OffsetsReset(_message.Message):
    __slots__ = ("group", "topic", "queue", "earliest", "latest", "offset", "stored_since_ms")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    STORED_SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    queue: int
    earliest: _admin_pb2.Earliest
    latest: _admin_pb2.Latest
    offset: int
    stored_since_ms: int
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., queue: _Optional[int] = ..., earliest: _Optional[_Union[_admin_pb2.Earliest, _Mapping]] = ..., latest: _Optional[_Union[_admin_pb2.Latest, _Mapping]] = ..., offset: _Optional[int] = ..., stored_since_ms: _Optional[int] = ...) -> None: ...

class DeadLettersResend(_message.Message):
    __slots__ = ("group", "offsets")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    group: str
    offsets: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, group: _Optional[str] = ..., offsets: _Optional[_Iterable[int]] = ...) -> None: ...

class MessagesResend(_message.Message):
    __slots__ = ("topic", "to_topic", "key", "queue", "from_offset", "to_offset", "from_ms", "to_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TO_TOPIC_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    FROM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TO_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FROM_MS_FIELD_NUMBER: _ClassVar[int]
    TO_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    to_topic: str
    key: str
    queue: int
    from_offset: int
    to_offset: int
    from_ms: int
    to_ms: int
    def __init__(self, topic: _Optional[str] = ..., to_topic: _Optional[str] = ..., key: _Optional[str] = ..., queue: _Optional[int] = ..., from_offset: _Optional[int] = ..., to_offset: _Optional[int] = ..., from_ms: _Optional[int] = ..., to_ms: _Optional[int] = ...) -> None: ...

class GetJobRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: int
    def __init__(self, id: _Optional[int] = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListJobsResponse(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    def __init__(self, jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ...) -> None: ...

class CancelJobRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: int
    def __init__(self, id: _Optional[int] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("id", "kind", "asked_by", "dry_run", "state", "reset_offset", "resend_dead_letters", "resend_messages", "done", "total", "counts", "first_errors", "remark", "ended_at_ms")
    class CountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ASKED_BY_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    RESET_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RESEND_DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    RESEND_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    FIRST_ERRORS_FIELD_NUMBER: _ClassVar[int]
    REMARK_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    id: int
    kind: str
    asked_by: str
    dry_run: bool
    state: str
    reset_offset: OffsetsReset
    resend_dead_letters: DeadLettersResend
    resend_messages: MessagesResend
    done: int
    total: int
    counts: _containers.ScalarMap[str, int]
    first_errors: _containers.RepeatedScalarFieldContainer[str]
    remark: str
    ended_at_ms: int
    def __init__(self, id: _Optional[int] = ..., kind: _Optional[str] = ..., asked_by: _Optional[str] = ..., dry_run: _Optional[bool] = ..., state: _Optional[str] = ..., reset_offset: _Optional[_Union[OffsetsReset, _Mapping]] = ..., resend_dead_letters: _Optional[_Union[DeadLettersResend, _Mapping]] = ..., resend_messages: _Optional[_Union[MessagesResend, _Mapping]] = ..., done: _Optional[int] = ..., total: _Optional[int] = ..., counts: _Optional[_Mapping[str, int]] = ..., first_errors: _Optional[_Iterable[str]] = ..., remark: _Optional[str] = ..., ended_at_ms: _Optional[int] = ...) -> None: ...
