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

class Once(_message.Message):
    __slots__ = ("session", "number", "member")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    session: int
    number: int
    member: str
    def __init__(self, session: _Optional[int] = ..., number: _Optional[int] = ..., member: _Optional[str] = ...) -> None: ...

class ExchangeRequest(_message.Message):
    __slots__ = ("name", "address", "since", "rows_max", "once")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    ROWS_MAX_FIELD_NUMBER: _ClassVar[int]
    ONCE_FIELD_NUMBER: _ClassVar[int]
    name: str
    address: str
    since: Position
    rows_max: int
    once: Once
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ..., since: _Optional[_Union[Position, _Mapping]] = ..., rows_max: _Optional[int] = ..., once: _Optional[_Union[Once, _Mapping]] = ...) -> None: ...

class ExchangeResponse(_message.Message):
    __slots__ = ("name", "rows", "since", "until", "more", "known", "forgotten", "is_ready")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    IS_READY_FIELD_NUMBER: _ClassVar[int]
    name: str
    rows: _containers.RepeatedCompositeFieldContainer[Row]
    since: int
    until: Position
    more: bool
    known: _containers.RepeatedCompositeFieldContainer[Horizon]
    forgotten: _containers.RepeatedCompositeFieldContainer[Horizon]
    is_ready: bool
    def __init__(self, name: _Optional[str] = ..., rows: _Optional[_Iterable[_Union[Row, _Mapping]]] = ..., since: _Optional[int] = ..., until: _Optional[_Union[Position, _Mapping]] = ..., more: _Optional[bool] = ..., known: _Optional[_Iterable[_Union[Horizon, _Mapping]]] = ..., forgotten: _Optional[_Iterable[_Union[Horizon, _Mapping]]] = ..., is_ready: _Optional[bool] = ...) -> None: ...

class Horizon(_message.Message):
    __slots__ = ("name", "sequence")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    name: str
    sequence: int
    def __init__(self, name: _Optional[str] = ..., sequence: _Optional[int] = ...) -> None: ...

class NudgeRequest(_message.Message):
    __slots__ = ("name", "address", "once")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ONCE_FIELD_NUMBER: _ClassVar[int]
    name: str
    address: str
    once: Once
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ..., once: _Optional[_Union[Once, _Mapping]] = ...) -> None: ...

class NudgeResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ConfirmRequest(_message.Message):
    __slots__ = ("once",)
    ONCE_FIELD_NUMBER: _ClassVar[int]
    once: Once
    def __init__(self, once: _Optional[_Union[Once, _Mapping]] = ...) -> None: ...

class ConfirmResponse(_message.Message):
    __slots__ = ("view_id", "fence")
    VIEW_ID_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    view_id: bytes
    fence: int
    def __init__(self, view_id: _Optional[bytes] = ..., fence: _Optional[int] = ...) -> None: ...

class ConsumedRequest(_message.Message):
    __slots__ = ("position", "pairs", "once")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    ONCE_FIELD_NUMBER: _ClassVar[int]
    position: int
    pairs: _containers.RepeatedCompositeFieldContainer[Pair]
    once: Once
    def __init__(self, position: _Optional[int] = ..., pairs: _Optional[_Iterable[_Union[Pair, _Mapping]]] = ..., once: _Optional[_Union[Once, _Mapping]] = ...) -> None: ...

class Pair(_message.Message):
    __slots__ = ("group", "topic")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ...) -> None: ...

class ConsumedResponse(_message.Message):
    __slots__ = ("pairs", "is_passed")
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    IS_PASSED_FIELD_NUMBER: _ClassVar[int]
    pairs: _containers.RepeatedCompositeFieldContainer[Pair]
    is_passed: bool
    def __init__(self, pairs: _Optional[_Iterable[_Union[Pair, _Mapping]]] = ..., is_passed: _Optional[bool] = ...) -> None: ...

class ForwardRequest(_message.Message):
    __slots__ = ("sends", "once")
    SENDS_FIELD_NUMBER: _ClassVar[int]
    ONCE_FIELD_NUMBER: _ClassVar[int]
    sends: _containers.RepeatedCompositeFieldContainer[Send]
    once: Once
    def __init__(self, sends: _Optional[_Iterable[_Union[Send, _Mapping]]] = ..., once: _Optional[_Union[Once, _Mapping]] = ...) -> None: ...

class Send(_message.Message):
    __slots__ = ("client_id", "peer", "request")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    peer: str
    request: bytes
    def __init__(self, client_id: _Optional[str] = ..., peer: _Optional[str] = ..., request: _Optional[bytes] = ...) -> None: ...

class ForwardResponse(_message.Message):
    __slots__ = ("answers",)
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[Answer]
    def __init__(self, answers: _Optional[_Iterable[_Union[Answer, _Mapping]]] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("response",)
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    response: bytes
    def __init__(self, response: _Optional[bytes] = ...) -> None: ...

class ChangeLiteRequest(_message.Message):
    __slots__ = ("client_id", "request", "once")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ONCE_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    request: bytes
    once: Once
    def __init__(self, client_id: _Optional[str] = ..., request: _Optional[bytes] = ..., once: _Optional[_Union[Once, _Mapping]] = ...) -> None: ...

class ChangeLiteResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OverviewRequest(_message.Message):
    __slots__ = ("once",)
    ONCE_FIELD_NUMBER: _ClassVar[int]
    once: Once
    def __init__(self, once: _Optional[_Union[Once, _Mapping]] = ...) -> None: ...

class OverviewResponse(_message.Message):
    __slots__ = ("overview",)
    OVERVIEW_FIELD_NUMBER: _ClassVar[int]
    overview: bytes
    def __init__(self, overview: _Optional[bytes] = ...) -> None: ...

class LeftInOrderRequest(_message.Message):
    __slots__ = ("topic", "once")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    ONCE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    once: Once
    def __init__(self, topic: _Optional[str] = ..., once: _Optional[_Union[Once, _Mapping]] = ...) -> None: ...

class LeftInOrderResponse(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[GroupLeft]
    def __init__(self, groups: _Optional[_Iterable[_Union[GroupLeft, _Mapping]]] = ...) -> None: ...

class GroupLeft(_message.Message):
    __slots__ = ("group", "messages")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    group: str
    messages: int
    def __init__(self, group: _Optional[str] = ..., messages: _Optional[int] = ...) -> None: ...

class RelayRequest(_message.Message):
    __slots__ = ("method", "request", "user", "how", "peer", "once")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    HOW_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    ONCE_FIELD_NUMBER: _ClassVar[int]
    method: str
    request: bytes
    user: str
    how: str
    peer: str
    once: Once
    def __init__(self, method: _Optional[str] = ..., request: _Optional[bytes] = ..., user: _Optional[str] = ..., how: _Optional[str] = ..., peer: _Optional[str] = ..., once: _Optional[_Union[Once, _Mapping]] = ...) -> None: ...

class SignedAnswer(_message.Message):
    __slots__ = ("body", "signature")
    BODY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    body: bytes
    signature: str
    def __init__(self, body: _Optional[bytes] = ..., signature: _Optional[str] = ...) -> None: ...

class RelayAnswer(_message.Message):
    __slots__ = ("number", "answer", "ended")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    number: int
    answer: bytes
    ended: Ended
    def __init__(self, number: _Optional[int] = ..., answer: _Optional[bytes] = ..., ended: _Optional[_Union[Ended, _Mapping]] = ...) -> None: ...

class Ended(_message.Message):
    __slots__ = ("code", "text")
    CODE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    code: str
    text: str
    def __init__(self, code: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...
