from quarry_mq.protocol.proto.quarry.admin.v1 import query_pb2 as _query_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MessageFilter(_message.Message):
    __slots__ = ("expression", "is_sql", "body_contains")
    EXPRESSION_FIELD_NUMBER: _ClassVar[int]
    IS_SQL_FIELD_NUMBER: _ClassVar[int]
    BODY_CONTAINS_FIELD_NUMBER: _ClassVar[int]
    expression: str
    is_sql: bool
    body_contains: bytes
    def __init__(self, expression: _Optional[str] = ..., is_sql: _Optional[bool] = ..., body_contains: _Optional[bytes] = ...) -> None: ...

class BrowseMessagesRequest(_message.Message):
    __slots__ = ("topic", "lite_topic", "queue", "is_ascending", "stored_ms", "offset", "cursor", "limit", "filter")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    LITE_TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    IS_ASCENDING_FIELD_NUMBER: _ClassVar[int]
    STORED_MS_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    topic: str
    lite_topic: str
    queue: int
    is_ascending: bool
    stored_ms: int
    offset: int
    cursor: bytes
    limit: int
    filter: MessageFilter
    def __init__(self, topic: _Optional[str] = ..., lite_topic: _Optional[str] = ..., queue: _Optional[int] = ..., is_ascending: _Optional[bool] = ..., stored_ms: _Optional[int] = ..., offset: _Optional[int] = ..., cursor: _Optional[bytes] = ..., limit: _Optional[int] = ..., filter: _Optional[_Union[MessageFilter, _Mapping]] = ...) -> None: ...

class BrowsedMessage(_message.Message):
    __slots__ = ("topic", "queue", "offset", "message", "lite_offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    LITE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    offset: int
    message: _query_pb2.FoundMessage
    lite_offset: int
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., offset: _Optional[int] = ..., message: _Optional[_Union[_query_pb2.FoundMessage, _Mapping]] = ..., lite_offset: _Optional[int] = ...) -> None: ...

class BrowseMessagesResponse(_message.Message):
    __slots__ = ("messages", "next", "looked_at", "looked_up_to_ms", "damaged")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    LOOKED_AT_FIELD_NUMBER: _ClassVar[int]
    LOOKED_UP_TO_MS_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[BrowsedMessage]
    next: bytes
    looked_at: int
    looked_up_to_ms: int
    damaged: _containers.RepeatedCompositeFieldContainer[DamagedMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[BrowsedMessage, _Mapping]]] = ..., next: _Optional[bytes] = ..., looked_at: _Optional[int] = ..., looked_up_to_ms: _Optional[int] = ..., damaged: _Optional[_Iterable[_Union[DamagedMessage, _Mapping]]] = ...) -> None: ...

class DamagedMessage(_message.Message):
    __slots__ = ("queue", "offset", "reason", "command")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    queue: int
    offset: int
    reason: str
    command: str
    def __init__(self, queue: _Optional[int] = ..., offset: _Optional[int] = ..., reason: _Optional[str] = ..., command: _Optional[str] = ...) -> None: ...

class TailMessagesRequest(_message.Message):
    __slots__ = ("topic", "lite_topic", "queue", "filter", "messages_per_second_max", "ends_after_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    LITE_TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_PER_SECOND_MAX_FIELD_NUMBER: _ClassVar[int]
    ENDS_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    lite_topic: str
    queue: int
    filter: MessageFilter
    messages_per_second_max: int
    ends_after_ms: int
    def __init__(self, topic: _Optional[str] = ..., lite_topic: _Optional[str] = ..., queue: _Optional[int] = ..., filter: _Optional[_Union[MessageFilter, _Mapping]] = ..., messages_per_second_max: _Optional[int] = ..., ends_after_ms: _Optional[int] = ...) -> None: ...

class TailMessagesResponse(_message.Message):
    __slots__ = ("messages", "left_out", "damaged")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[BrowsedMessage]
    left_out: int
    damaged: _containers.RepeatedCompositeFieldContainer[DamagedMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[BrowsedMessage, _Mapping]]] = ..., left_out: _Optional[int] = ..., damaged: _Optional[_Iterable[_Union[DamagedMessage, _Mapping]]] = ...) -> None: ...
