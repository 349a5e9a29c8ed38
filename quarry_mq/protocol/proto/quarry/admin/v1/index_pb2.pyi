from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListIndexFilesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListIndexFilesResponse(_message.Message):
    __slots__ = ("files",)
    FILES_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedCompositeFieldContainer[IndexFile]
    def __init__(self, files: _Optional[_Iterable[_Union[IndexFile, _Mapping]]] = ...) -> None: ...

class VerifyIndexFilesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CompactIndexFilesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UploadIndexFilesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MovedIndexFiles(_message.Message):
    __slots__ = ("count",)
    COUNT_FIELD_NUMBER: _ClassVar[int]
    count: int
    def __init__(self, count: _Optional[int] = ...) -> None: ...

class IndexFile(_message.Message):
    __slots__ = ("kind", "name", "stage", "items", "size_bytes", "begin_ms", "end_ms", "begin_offset", "end_offset", "is_local", "damage", "unread")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    BEGIN_MS_FIELD_NUMBER: _ClassVar[int]
    END_MS_FIELD_NUMBER: _ClassVar[int]
    BEGIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    IS_LOCAL_FIELD_NUMBER: _ClassVar[int]
    DAMAGE_FIELD_NUMBER: _ClassVar[int]
    UNREAD_FIELD_NUMBER: _ClassVar[int]
    kind: str
    name: str
    stage: str
    items: int
    size_bytes: int
    begin_ms: int
    end_ms: int
    begin_offset: int
    end_offset: int
    is_local: bool
    damage: str
    unread: str
    def __init__(self, kind: _Optional[str] = ..., name: _Optional[str] = ..., stage: _Optional[str] = ..., items: _Optional[int] = ..., size_bytes: _Optional[int] = ..., begin_ms: _Optional[int] = ..., end_ms: _Optional[int] = ..., begin_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., is_local: _Optional[bool] = ..., damage: _Optional[str] = ..., unread: _Optional[str] = ...) -> None: ...
