from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MessageState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MESSAGE_STATE_UNSPECIFIED: _ClassVar[MessageState]
    MESSAGE_STATE_WAITING: _ClassVar[MessageState]
    MESSAGE_STATE_IN_FLIGHT: _ClassVar[MessageState]
    MESSAGE_STATE_RETRYING: _ClassVar[MessageState]
    MESSAGE_STATE_DONE: _ClassVar[MessageState]
    MESSAGE_STATE_DEAD_LETTERED: _ClassVar[MessageState]
    MESSAGE_STATE_DONE_OR_DEAD_LETTERED: _ClassVar[MessageState]
MESSAGE_STATE_UNSPECIFIED: MessageState
MESSAGE_STATE_WAITING: MessageState
MESSAGE_STATE_IN_FLIGHT: MessageState
MESSAGE_STATE_RETRYING: MessageState
MESSAGE_STATE_DONE: MessageState
MESSAGE_STATE_DEAD_LETTERED: MessageState
MESSAGE_STATE_DONE_OR_DEAD_LETTERED: MessageState

class QueryIdsRequest(_message.Message):
    __slots__ = ("topic", "ids", "from_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    FROM_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    ids: _containers.RepeatedScalarFieldContainer[str]
    from_ms: int
    def __init__(self, topic: _Optional[str] = ..., ids: _Optional[_Iterable[str]] = ..., from_ms: _Optional[int] = ...) -> None: ...

class QueryIdsResponse(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, ids: _Optional[_Iterable[str]] = ...) -> None: ...

class GetMessageRequest(_message.Message):
    __slots__ = ("topic", "id", "place")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    id: str
    place: QueuePlace
    def __init__(self, topic: _Optional[str] = ..., id: _Optional[str] = ..., place: _Optional[_Union[QueuePlace, _Mapping]] = ...) -> None: ...

class QueuePlace(_message.Message):
    __slots__ = ("queue", "offset")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    queue: int
    offset: int
    def __init__(self, queue: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class GetMessageResponse(_message.Message):
    __slots__ = ("message", "same_id", "unread")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SAME_ID_FIELD_NUMBER: _ClassVar[int]
    UNREAD_FIELD_NUMBER: _ClassVar[int]
    message: MessageTrace
    same_id: int
    unread: _containers.RepeatedCompositeFieldContainer[UnreadFile]
    def __init__(self, message: _Optional[_Union[MessageTrace, _Mapping]] = ..., same_id: _Optional[int] = ..., unread: _Optional[_Iterable[_Union[UnreadFile, _Mapping]]] = ...) -> None: ...

class TraceMessagesResponse(_message.Message):
    __slots__ = ("messages", "unread", "has_more")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    UNREAD_FIELD_NUMBER: _ClassVar[int]
    HAS_MORE_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[MessageTrace]
    unread: _containers.RepeatedCompositeFieldContainer[UnreadFile]
    has_more: bool
    def __init__(self, messages: _Optional[_Iterable[_Union[MessageTrace, _Mapping]]] = ..., unread: _Optional[_Iterable[_Union[UnreadFile, _Mapping]]] = ..., has_more: _Optional[bool] = ...) -> None: ...

class MessageTrace(_message.Message):
    __slots__ = ("physical_offset", "record", "queues")
    PHYSICAL_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    physical_offset: int
    record: bytes
    queues: _containers.RepeatedCompositeFieldContainer[QueueTrace]
    def __init__(self, physical_offset: _Optional[int] = ..., record: _Optional[bytes] = ..., queues: _Optional[_Iterable[_Union[QueueTrace, _Mapping]]] = ...) -> None: ...

class QueueTrace(_message.Message):
    __slots__ = ("topic", "queue", "offset", "is_there", "groups")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    IS_THERE_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    offset: int
    is_there: bool
    groups: _containers.RepeatedCompositeFieldContainer[GroupTrace]
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., offset: _Optional[int] = ..., is_there: _Optional[bool] = ..., groups: _Optional[_Iterable[_Union[GroupTrace, _Mapping]]] = ...) -> None: ...

class GroupTrace(_message.Message):
    __slots__ = ("group", "state", "attempts", "visible_at_ms", "client_id", "dead_letter_offset")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    VISIBLE_AT_MS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_OFFSET_FIELD_NUMBER: _ClassVar[int]
    group: str
    state: MessageState
    attempts: int
    visible_at_ms: int
    client_id: str
    dead_letter_offset: int
    def __init__(self, group: _Optional[str] = ..., state: _Optional[_Union[MessageState, str]] = ..., attempts: _Optional[int] = ..., visible_at_ms: _Optional[int] = ..., client_id: _Optional[str] = ..., dead_letter_offset: _Optional[int] = ...) -> None: ...

class QueryMessagesRequest(_message.Message):
    __slots__ = ("topic", "key", "from_ms", "to_ms", "limit", "skip")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    FROM_MS_FIELD_NUMBER: _ClassVar[int]
    TO_MS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    SKIP_FIELD_NUMBER: _ClassVar[int]
    topic: str
    key: str
    from_ms: int
    to_ms: int
    limit: int
    skip: int
    def __init__(self, topic: _Optional[str] = ..., key: _Optional[str] = ..., from_ms: _Optional[int] = ..., to_ms: _Optional[int] = ..., limit: _Optional[int] = ..., skip: _Optional[int] = ...) -> None: ...

class FoundMessage(_message.Message):
    __slots__ = ("physical_offset", "record")
    PHYSICAL_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    physical_offset: int
    record: bytes
    def __init__(self, physical_offset: _Optional[int] = ..., record: _Optional[bytes] = ...) -> None: ...

class UnreadFile(_message.Message):
    __slots__ = ("name", "reason")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    name: str
    reason: str
    def __init__(self, name: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class QueryMessagesResponse(_message.Message):
    __slots__ = ("messages", "indexed_offset", "dispatched_offset", "unread", "has_more")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    INDEXED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DISPATCHED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    UNREAD_FIELD_NUMBER: _ClassVar[int]
    HAS_MORE_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[FoundMessage]
    indexed_offset: int
    dispatched_offset: int
    unread: _containers.RepeatedCompositeFieldContainer[UnreadFile]
    has_more: bool
    def __init__(self, messages: _Optional[_Iterable[_Union[FoundMessage, _Mapping]]] = ..., indexed_offset: _Optional[int] = ..., dispatched_offset: _Optional[int] = ..., unread: _Optional[_Iterable[_Union[UnreadFile, _Mapping]]] = ..., has_more: _Optional[bool] = ...) -> None: ...
