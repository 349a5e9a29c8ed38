from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListReplicasRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListReplicasResponse(_message.Message):
    __slots__ = ("replicas",)
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    replicas: _containers.RepeatedCompositeFieldContainer[Replica]
    def __init__(self, replicas: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ...) -> None: ...

class Replica(_message.Message):
    __slots__ = ("name", "role", "term", "is_connected", "is_seeding", "address", "flushed_offset", "dispatched_offset", "lag_bytes", "lag_ms", "lag_changes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    IS_CONNECTED_FIELD_NUMBER: _ClassVar[int]
    IS_SEEDING_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    FLUSHED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DISPATCHED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAG_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAG_MS_FIELD_NUMBER: _ClassVar[int]
    LAG_CHANGES_FIELD_NUMBER: _ClassVar[int]
    name: str
    role: str
    term: int
    is_connected: bool
    is_seeding: bool
    address: str
    flushed_offset: int
    dispatched_offset: int
    lag_bytes: int
    lag_ms: int
    lag_changes: int
    def __init__(self, name: _Optional[str] = ..., role: _Optional[str] = ..., term: _Optional[int] = ..., is_connected: _Optional[bool] = ..., is_seeding: _Optional[bool] = ..., address: _Optional[str] = ..., flushed_offset: _Optional[int] = ..., dispatched_offset: _Optional[int] = ..., lag_bytes: _Optional[int] = ..., lag_ms: _Optional[int] = ..., lag_changes: _Optional[int] = ...) -> None: ...
