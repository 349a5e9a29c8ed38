from quarry_mq.protocol.proto.quarry.admin.v1 import overview_pb2 as _overview_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Member(_message.Message):
    __slots__ = ("name", "address", "tls_address", "admin_address", "state", "is_self", "is_reachable", "silent_ms", "version", "is_waited_for", "problem")
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
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
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
    problem: str
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ..., tls_address: _Optional[str] = ..., admin_address: _Optional[str] = ..., state: _Optional[str] = ..., is_self: _Optional[bool] = ..., is_reachable: _Optional[bool] = ..., silent_ms: _Optional[int] = ..., version: _Optional[str] = ..., is_waited_for: _Optional[bool] = ..., problem: _Optional[str] = ...) -> None: ...

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

class AskMembersRequest(_message.Message):
    __slots__ = ("members", "method", "request")
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedScalarFieldContainer[str]
    method: str
    request: bytes
    def __init__(self, members: _Optional[_Iterable[str]] = ..., method: _Optional[str] = ..., request: _Optional[bytes] = ...) -> None: ...

class MemberAnswer(_message.Message):
    __slots__ = ("member", "is_self", "answer", "code", "problem")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    IS_SELF_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    member: str
    is_self: bool
    answer: bytes
    code: str
    problem: str
    def __init__(self, member: _Optional[str] = ..., is_self: _Optional[bool] = ..., answer: _Optional[bytes] = ..., code: _Optional[str] = ..., problem: _Optional[str] = ...) -> None: ...

class MemberPart(_message.Message):
    __slots__ = ("name", "is_self", "code", "problem")
    NAME_FIELD_NUMBER: _ClassVar[int]
    IS_SELF_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    name: str
    is_self: bool
    code: str
    problem: str
    def __init__(self, name: _Optional[str] = ..., is_self: _Optional[bool] = ..., code: _Optional[str] = ..., problem: _Optional[str] = ...) -> None: ...

class TopicFiguresOfMembers(_message.Message):
    __slots__ = ("topics", "has_more", "matching", "members")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    HAS_MORE_FIELD_NUMBER: _ClassVar[int]
    MATCHING_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[_overview_pb2.TopicFigures]
    has_more: bool
    matching: int
    members: _containers.RepeatedCompositeFieldContainer[MemberPart]
    def __init__(self, topics: _Optional[_Iterable[_Union[_overview_pb2.TopicFigures, _Mapping]]] = ..., has_more: _Optional[bool] = ..., matching: _Optional[int] = ..., members: _Optional[_Iterable[_Union[MemberPart, _Mapping]]] = ...) -> None: ...

class GroupFiguresOfMembers(_message.Message):
    __slots__ = ("groups", "has_more", "matching", "members")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    HAS_MORE_FIELD_NUMBER: _ClassVar[int]
    MATCHING_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[_overview_pb2.GroupFigures]
    has_more: bool
    matching: int
    members: _containers.RepeatedCompositeFieldContainer[MemberPart]
    def __init__(self, groups: _Optional[_Iterable[_Union[_overview_pb2.GroupFigures, _Mapping]]] = ..., has_more: _Optional[bool] = ..., matching: _Optional[int] = ..., members: _Optional[_Iterable[_Union[MemberPart, _Mapping]]] = ...) -> None: ...

class HistoryOfMembers(_message.Message):
    __slots__ = ("interval_ms", "at_ms", "series", "members")
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    SERIES_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    interval_ms: int
    at_ms: _containers.RepeatedScalarFieldContainer[int]
    series: _containers.RepeatedCompositeFieldContainer[_overview_pb2.Series]
    members: _containers.RepeatedCompositeFieldContainer[MemberPart]
    def __init__(self, interval_ms: _Optional[int] = ..., at_ms: _Optional[_Iterable[int]] = ..., series: _Optional[_Iterable[_Union[_overview_pb2.Series, _Mapping]]] = ..., members: _Optional[_Iterable[_Union[MemberPart, _Mapping]]] = ...) -> None: ...
