from quarry_mq.protocol.proto.quarry.admin.v1 import browsing_pb2 as _browsing_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListDeadLettersRequest(_message.Message):
    __slots__ = ("group", "from_offset", "count")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    FROM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    group: str
    from_offset: int
    count: int
    def __init__(self, group: _Optional[str] = ..., from_offset: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class DeadLetter(_message.Message):
    __slots__ = ("offset", "message_id", "topic", "tag", "keys", "attempts", "stored_at_ms", "was_resent")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    STORED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    WAS_RESENT_FIELD_NUMBER: _ClassVar[int]
    offset: int
    message_id: str
    topic: str
    tag: str
    keys: _containers.RepeatedScalarFieldContainer[str]
    attempts: int
    stored_at_ms: int
    was_resent: bool
    def __init__(self, offset: _Optional[int] = ..., message_id: _Optional[str] = ..., topic: _Optional[str] = ..., tag: _Optional[str] = ..., keys: _Optional[_Iterable[str]] = ..., attempts: _Optional[int] = ..., stored_at_ms: _Optional[int] = ..., was_resent: _Optional[bool] = ...) -> None: ...

class ListDeadLettersResponse(_message.Message):
    __slots__ = ("dead_letters", "minimum_offset", "maximum_offset", "next_offset", "damaged")
    DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    dead_letters: _containers.RepeatedCompositeFieldContainer[DeadLetter]
    minimum_offset: int
    maximum_offset: int
    next_offset: int
    damaged: _containers.RepeatedCompositeFieldContainer[_browsing_pb2.DamagedMessage]
    def __init__(self, dead_letters: _Optional[_Iterable[_Union[DeadLetter, _Mapping]]] = ..., minimum_offset: _Optional[int] = ..., maximum_offset: _Optional[int] = ..., next_offset: _Optional[int] = ..., damaged: _Optional[_Iterable[_Union[_browsing_pb2.DamagedMessage, _Mapping]]] = ...) -> None: ...

class ResendDeadLettersRequest(_message.Message):
    __slots__ = ("group", "offsets", "dry_run")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    group: str
    offsets: _containers.RepeatedScalarFieldContainer[int]
    dry_run: bool
    def __init__(self, group: _Optional[str] = ..., offsets: _Optional[_Iterable[int]] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class ResendDeadLettersResponse(_message.Message):
    __slots__ = ("resent", "refused")
    RESENT_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    resent: int
    refused: _containers.RepeatedCompositeFieldContainer[RefusedDeadLetter]
    def __init__(self, resent: _Optional[int] = ..., refused: _Optional[_Iterable[_Union[RefusedDeadLetter, _Mapping]]] = ...) -> None: ...

class RefusedDeadLetter(_message.Message):
    __slots__ = ("offset", "reason")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    offset: int
    reason: str
    def __init__(self, offset: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...
