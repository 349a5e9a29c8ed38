from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListLiteTopicsRequest(_message.Message):
    __slots__ = ("topic", "prefix", "after", "limit")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    prefix: str
    after: str
    limit: int
    def __init__(self, topic: _Optional[str] = ..., prefix: _Optional[str] = ..., after: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListLiteTopicsResponse(_message.Message):
    __slots__ = ("lite_topics", "has_more")
    LITE_TOPICS_FIELD_NUMBER: _ClassVar[int]
    HAS_MORE_FIELD_NUMBER: _ClassVar[int]
    lite_topics: _containers.RepeatedCompositeFieldContainer[LiteTopic]
    has_more: bool
    def __init__(self, lite_topics: _Optional[_Iterable[_Union[LiteTopic, _Mapping]]] = ..., has_more: _Optional[bool] = ...) -> None: ...

class GetLiteTopicRequest(_message.Message):
    __slots__ = ("topic", "lite_topic")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    LITE_TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    lite_topic: str
    def __init__(self, topic: _Optional[str] = ..., lite_topic: _Optional[str] = ...) -> None: ...

class LiteTopic(_message.Message):
    __slots__ = ("name", "minimum_offset", "maximum_offset", "last_stored_at_ms", "subscribers")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_STORED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    minimum_offset: int
    maximum_offset: int
    last_stored_at_ms: int
    subscribers: int
    def __init__(self, name: _Optional[str] = ..., minimum_offset: _Optional[int] = ..., maximum_offset: _Optional[int] = ..., last_stored_at_ms: _Optional[int] = ..., subscribers: _Optional[int] = ...) -> None: ...

class DeleteLiteTopicRequest(_message.Message):
    __slots__ = ("topic", "lite_topic")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    LITE_TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    lite_topic: str
    def __init__(self, topic: _Optional[str] = ..., lite_topic: _Optional[str] = ...) -> None: ...

class DeleteLiteTopicResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetLiteTopicStatisticsRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class LiteTopicStatistics(_message.Message):
    __slots__ = ("lite_topics", "lite_topics_max", "ttl_ms")
    LITE_TOPICS_FIELD_NUMBER: _ClassVar[int]
    LITE_TOPICS_MAX_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    lite_topics: int
    lite_topics_max: int
    ttl_ms: int
    def __init__(self, lite_topics: _Optional[int] = ..., lite_topics_max: _Optional[int] = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class ListLiteBacklogRequest(_message.Message):
    __slots__ = ("topic", "group", "limit")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    limit: int
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class LiteBacklog(_message.Message):
    __slots__ = ("lite_topic", "ready", "oldest_stored_at_ms")
    LITE_TOPIC_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    OLDEST_STORED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    lite_topic: str
    ready: int
    oldest_stored_at_ms: int
    def __init__(self, lite_topic: _Optional[str] = ..., ready: _Optional[int] = ..., oldest_stored_at_ms: _Optional[int] = ...) -> None: ...

class LiteClientDepth(_message.Message):
    __slots__ = ("client_id", "lite_topics_ready", "subscriptions", "wants_all")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    LITE_TOPICS_READY_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    WANTS_ALL_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    lite_topics_ready: int
    subscriptions: int
    wants_all: bool
    def __init__(self, client_id: _Optional[str] = ..., lite_topics_ready: _Optional[int] = ..., subscriptions: _Optional[int] = ..., wants_all: _Optional[bool] = ...) -> None: ...

class ListLiteBacklogResponse(_message.Message):
    __slots__ = ("lite_topics", "is_complete", "clients", "looked_at")
    LITE_TOPICS_FIELD_NUMBER: _ClassVar[int]
    IS_COMPLETE_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    LOOKED_AT_FIELD_NUMBER: _ClassVar[int]
    lite_topics: _containers.RepeatedCompositeFieldContainer[LiteBacklog]
    is_complete: bool
    clients: _containers.RepeatedCompositeFieldContainer[LiteClientDepth]
    looked_at: int
    def __init__(self, lite_topics: _Optional[_Iterable[_Union[LiteBacklog, _Mapping]]] = ..., is_complete: _Optional[bool] = ..., clients: _Optional[_Iterable[_Union[LiteClientDepth, _Mapping]]] = ..., looked_at: _Optional[int] = ...) -> None: ...
