from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Position(_message.Message):
    __slots__ = ("incarnation", "sequence")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    incarnation: bytes
    sequence: int
    def __init__(self, incarnation: _Optional[bytes] = ..., sequence: _Optional[int] = ...) -> None: ...

class Version(_message.Message):
    __slots__ = ("time_ms", "counter", "member")
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    time_ms: int
    counter: int
    member: bytes
    def __init__(self, time_ms: _Optional[int] = ..., counter: _Optional[int] = ..., member: _Optional[bytes] = ...) -> None: ...

class Row(_message.Message):
    __slots__ = ("kind", "name", "version", "based_on", "value", "seen")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BASED_ON_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    kind: str
    name: str
    version: Version
    based_on: Version
    value: bytes
    seen: _containers.RepeatedCompositeFieldContainer[Version]
    def __init__(self, kind: _Optional[str] = ..., name: _Optional[str] = ..., version: _Optional[_Union[Version, _Mapping]] = ..., based_on: _Optional[_Union[Version, _Mapping]] = ..., value: _Optional[bytes] = ..., seen: _Optional[_Iterable[_Union[Version, _Mapping]]] = ...) -> None: ...

class ExchangeRequest(_message.Message):
    __slots__ = ("name", "address", "since", "rows_max")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    ROWS_MAX_FIELD_NUMBER: _ClassVar[int]
    name: str
    address: str
    since: Position
    rows_max: int
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ..., since: _Optional[_Union[Position, _Mapping]] = ..., rows_max: _Optional[int] = ...) -> None: ...

class ExchangeResponse(_message.Message):
    __slots__ = ("name", "rows", "since", "until", "more", "known", "forgotten")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    name: str
    rows: _containers.RepeatedCompositeFieldContainer[Row]
    since: int
    until: Position
    more: bool
    known: _containers.RepeatedCompositeFieldContainer[Horizon]
    forgotten: _containers.RepeatedCompositeFieldContainer[Horizon]
    def __init__(self, name: _Optional[str] = ..., rows: _Optional[_Iterable[_Union[Row, _Mapping]]] = ..., since: _Optional[int] = ..., until: _Optional[_Union[Position, _Mapping]] = ..., more: _Optional[bool] = ..., known: _Optional[_Iterable[_Union[Horizon, _Mapping]]] = ..., forgotten: _Optional[_Iterable[_Union[Horizon, _Mapping]]] = ...) -> None: ...

class Horizon(_message.Message):
    __slots__ = ("name", "sequence")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    name: str
    sequence: int
    def __init__(self, name: _Optional[str] = ..., sequence: _Optional[int] = ...) -> None: ...

class NudgeRequest(_message.Message):
    __slots__ = ("name", "address")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    name: str
    address: str
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class NudgeResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
