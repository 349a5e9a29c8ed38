from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class QueryMessagesRequest(_message.Message):
    __slots__ = ("topic", "key", "from_ms", "to_ms", "limit")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    FROM_MS_FIELD_NUMBER: _ClassVar[int]
    TO_MS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    key: str
    from_ms: int
    to_ms: int
    limit: int
    def __init__(self, topic: _Optional[str] = ..., key: _Optional[str] = ..., from_ms: _Optional[int] = ..., to_ms: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("messages", "indexed_offset", "dispatched_offset", "unread")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    INDEXED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DISPATCHED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    UNREAD_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[FoundMessage]
    indexed_offset: int
    dispatched_offset: int
    unread: _containers.RepeatedCompositeFieldContainer[UnreadFile]
    def __init__(self, messages: _Optional[_Iterable[_Union[FoundMessage, _Mapping]]] = ..., indexed_offset: _Optional[int] = ..., dispatched_offset: _Optional[int] = ..., unread: _Optional[_Iterable[_Union[UnreadFile, _Mapping]]] = ...) -> None: ...
