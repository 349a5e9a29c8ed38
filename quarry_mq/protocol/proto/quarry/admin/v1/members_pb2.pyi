from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Member(_message.Message):
    __slots__ = ("name", "address", "tls_address", "admin_address", "state", "is_self", "is_reachable", "silent_ms", "version", "is_waited_for")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TLS_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ADMIN_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    IS_SELF_FIELD_NUMBER: _ClassVar[int]
    IS_REACHABLE_FIELD_NUMBER: _ClassVar[int]
    SILENT_MS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    IS_WAITED_FOR_FIELD_NUMBER: _ClassVar[int]
    name: str
    address: str
    tls_address: str
    admin_address: str
    state: str
    is_self: bool
    is_reachable: bool
    silent_ms: int
    version: str
    is_waited_for: bool
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ..., tls_address: _Optional[str] = ..., admin_address: _Optional[str] = ..., state: _Optional[str] = ..., is_self: _Optional[bool] = ..., is_reachable: _Optional[bool] = ..., silent_ms: _Optional[int] = ..., version: _Optional[str] = ..., is_waited_for: _Optional[bool] = ...) -> None: ...

class ListMembersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListMembersResponse(_message.Message):
    __slots__ = ("members",)
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedCompositeFieldContainer[Member]
    def __init__(self, members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ...) -> None: ...

class DrainMemberRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ActivateMemberRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class RemoveMemberRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class RemoveMemberResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RejoinRequest(_message.Message):
    __slots__ = ("name", "dry_run", "delete_messages")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    DELETE_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    name: str
    dry_run: bool
    delete_messages: bool
    def __init__(self, name: _Optional[str] = ..., dry_run: _Optional[bool] = ..., delete_messages: _Optional[bool] = ...) -> None: ...

class SharedRowName(_message.Message):
    __slots__ = ("kind", "name", "messages")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    kind: str
    name: str
    messages: int
    def __init__(self, kind: _Optional[str] = ..., name: _Optional[str] = ..., messages: _Optional[int] = ...) -> None: ...

class RejoinResponse(_message.Message):
    __slots__ = ("taken", "removed", "told")
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    TOLD_FIELD_NUMBER: _ClassVar[int]
    taken: int
    removed: _containers.RepeatedCompositeFieldContainer[SharedRowName]
    told: _containers.RepeatedCompositeFieldContainer[SharedRowName]
    def __init__(self, taken: _Optional[int] = ..., removed: _Optional[_Iterable[_Union[SharedRowName, _Mapping]]] = ..., told: _Optional[_Iterable[_Union[SharedRowName, _Mapping]]] = ...) -> None: ...
