from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TopicType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TOPIC_TYPE_UNSPECIFIED: _ClassVar[TopicType]
    TOPIC_TYPE_NORMAL: _ClassVar[TopicType]
    TOPIC_TYPE_FIFO: _ClassVar[TopicType]
    TOPIC_TYPE_DELAY: _ClassVar[TopicType]
    TOPIC_TYPE_TRANSACTION: _ClassVar[TopicType]
    TOPIC_TYPE_MIXED: _ClassVar[TopicType]
    TOPIC_TYPE_LITE: _ClassVar[TopicType]
    TOPIC_TYPE_PRIORITY: _ClassVar[TopicType]

class Permission(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PERMISSION_UNSPECIFIED: _ClassVar[Permission]
    PERMISSION_READ: _ClassVar[Permission]
    PERMISSION_WRITE: _ClassVar[Permission]
    PERMISSION_READ_WRITE: _ClassVar[Permission]
    PERMISSION_NONE: _ClassVar[Permission]
TOPIC_TYPE_UNSPECIFIED: TopicType
TOPIC_TYPE_NORMAL: TopicType
TOPIC_TYPE_FIFO: TopicType
TOPIC_TYPE_DELAY: TopicType
TOPIC_TYPE_TRANSACTION: TopicType
TOPIC_TYPE_MIXED: TopicType
TOPIC_TYPE_LITE: TopicType
TOPIC_TYPE_PRIORITY: TopicType
PERMISSION_UNSPECIFIED: Permission
PERMISSION_READ: Permission
PERMISSION_WRITE: Permission
PERMISSION_READ_WRITE: Permission
PERMISSION_NONE: Permission

class GetBrokerRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Broker(_message.Message):
    __slots__ = ("name", "cluster", "version", "advertised_address", "store_directory", "durability", "started_at_ms", "log")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ADVERTISED_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STORE_DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    name: str
    cluster: str
    version: str
    advertised_address: str
    store_directory: str
    durability: str
    started_at_ms: int
    log: Log
    def __init__(self, name: _Optional[str] = ..., cluster: _Optional[str] = ..., version: _Optional[str] = ..., advertised_address: _Optional[str] = ..., store_directory: _Optional[str] = ..., durability: _Optional[str] = ..., started_at_ms: _Optional[int] = ..., log: _Optional[_Union[Log, _Mapping]] = ...) -> None: ...

class Log(_message.Message):
    __slots__ = ("appended_offset", "flushed_offset", "dispatched_offset")
    APPENDED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FLUSHED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DISPATCHED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    appended_offset: int
    flushed_offset: int
    dispatched_offset: int
    def __init__(self, appended_offset: _Optional[int] = ..., flushed_offset: _Optional[int] = ..., dispatched_offset: _Optional[int] = ...) -> None: ...

class Topic(_message.Message):
    __slots__ = ("name", "type", "read_queues", "write_queues", "permission", "attributes")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    READ_QUEUES_FIELD_NUMBER: _ClassVar[int]
    WRITE_QUEUES_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: TopicType
    read_queues: int
    write_queues: int
    permission: Permission
    attributes: _containers.ScalarMap[str, str]
    def __init__(self, name: _Optional[str] = ..., type: _Optional[_Union[TopicType, str]] = ..., read_queues: _Optional[int] = ..., write_queues: _Optional[int] = ..., permission: _Optional[_Union[Permission, str]] = ..., attributes: _Optional[_Mapping[str, str]] = ...) -> None: ...

class CreateTopicRequest(_message.Message):
    __slots__ = ("name", "type", "read_queues", "write_queues", "permission", "attributes")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    READ_QUEUES_FIELD_NUMBER: _ClassVar[int]
    WRITE_QUEUES_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: TopicType
    read_queues: int
    write_queues: int
    permission: Permission
    attributes: _containers.ScalarMap[str, str]
    def __init__(self, name: _Optional[str] = ..., type: _Optional[_Union[TopicType, str]] = ..., read_queues: _Optional[int] = ..., write_queues: _Optional[int] = ..., permission: _Optional[_Union[Permission, str]] = ..., attributes: _Optional[_Mapping[str, str]] = ...) -> None: ...

class UpdateTopicRequest(_message.Message):
    __slots__ = ("name", "type", "read_queues", "write_queues", "permission", "attributes", "break_order")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    READ_QUEUES_FIELD_NUMBER: _ClassVar[int]
    WRITE_QUEUES_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    BREAK_ORDER_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: TopicType
    read_queues: int
    write_queues: int
    permission: Permission
    attributes: _containers.ScalarMap[str, str]
    break_order: bool
    def __init__(self, name: _Optional[str] = ..., type: _Optional[_Union[TopicType, str]] = ..., read_queues: _Optional[int] = ..., write_queues: _Optional[int] = ..., permission: _Optional[_Union[Permission, str]] = ..., attributes: _Optional[_Mapping[str, str]] = ..., break_order: _Optional[bool] = ...) -> None: ...

class DeleteTopicRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteTopicResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetTopicRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ListTopicsRequest(_message.Message):
    __slots__ = ("prefix", "include_system")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_SYSTEM_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    include_system: bool
    def __init__(self, prefix: _Optional[str] = ..., include_system: _Optional[bool] = ...) -> None: ...

class ListTopicsResponse(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[Topic]
    def __init__(self, topics: _Optional[_Iterable[_Union[Topic, _Mapping]]] = ...) -> None: ...

class CustomizedBackoff(_message.Message):
    __slots__ = ("delays_ms",)
    DELAYS_MS_FIELD_NUMBER: _ClassVar[int]
    delays_ms: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, delays_ms: _Optional[_Iterable[int]] = ...) -> None: ...

class ExponentialBackoff(_message.Message):
    __slots__ = ("initial_ms", "maximum_ms", "multiplier")
    INITIAL_MS_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_MS_FIELD_NUMBER: _ClassVar[int]
    MULTIPLIER_FIELD_NUMBER: _ClassVar[int]
    initial_ms: int
    maximum_ms: int
    multiplier: float
    def __init__(self, initial_ms: _Optional[int] = ..., maximum_ms: _Optional[int] = ..., multiplier: _Optional[float] = ...) -> None: ...

class Group(_message.Message):
    __slots__ = ("name", "fifo", "max_attempts", "enabled", "customized", "exponential", "attributes")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    FIFO_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    CUSTOMIZED_FIELD_NUMBER: _ClassVar[int]
    EXPONENTIAL_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    fifo: bool
    max_attempts: int
    enabled: bool
    customized: CustomizedBackoff
    exponential: ExponentialBackoff
    attributes: _containers.ScalarMap[str, str]
    def __init__(self, name: _Optional[str] = ..., fifo: _Optional[bool] = ..., max_attempts: _Optional[int] = ..., enabled: _Optional[bool] = ..., customized: _Optional[_Union[CustomizedBackoff, _Mapping]] = ..., exponential: _Optional[_Union[ExponentialBackoff, _Mapping]] = ..., attributes: _Optional[_Mapping[str, str]] = ...) -> None: ...

class CreateGroupRequest(_message.Message):
    __slots__ = ("name", "fifo", "max_attempts", "enabled", "customized", "exponential", "attributes")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    FIFO_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    CUSTOMIZED_FIELD_NUMBER: _ClassVar[int]
    EXPONENTIAL_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    fifo: bool
    max_attempts: int
    enabled: bool
    customized: CustomizedBackoff
    exponential: ExponentialBackoff
    attributes: _containers.ScalarMap[str, str]
    def __init__(self, name: _Optional[str] = ..., fifo: _Optional[bool] = ..., max_attempts: _Optional[int] = ..., enabled: _Optional[bool] = ..., customized: _Optional[_Union[CustomizedBackoff, _Mapping]] = ..., exponential: _Optional[_Union[ExponentialBackoff, _Mapping]] = ..., attributes: _Optional[_Mapping[str, str]] = ...) -> None: ...

class UpdateGroupRequest(_message.Message):
    __slots__ = ("name", "fifo", "max_attempts", "enabled", "customized", "exponential", "attributes")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    FIFO_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    CUSTOMIZED_FIELD_NUMBER: _ClassVar[int]
    EXPONENTIAL_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    fifo: bool
    max_attempts: int
    enabled: bool
    customized: CustomizedBackoff
    exponential: ExponentialBackoff
    attributes: _containers.ScalarMap[str, str]
    def __init__(self, name: _Optional[str] = ..., fifo: _Optional[bool] = ..., max_attempts: _Optional[int] = ..., enabled: _Optional[bool] = ..., customized: _Optional[_Union[CustomizedBackoff, _Mapping]] = ..., exponential: _Optional[_Union[ExponentialBackoff, _Mapping]] = ..., attributes: _Optional[_Mapping[str, str]] = ...) -> None: ...

class DeleteGroupRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteGroupResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetGroupRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ListGroupsRequest(_message.Message):
    __slots__ = ("prefix",)
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    def __init__(self, prefix: _Optional[str] = ...) -> None: ...

class ListGroupsResponse(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[Group]
    def __init__(self, groups: _Optional[_Iterable[_Union[Group, _Mapping]]] = ...) -> None: ...

class ResetOffsetRequest(_message.Message):
    __slots__ = ("group", "topic", "queue", "earliest", "latest", "offset", "stored_since_ms", "dry_run")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    STORED_SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    queue: int
    earliest: Earliest
    latest: Latest
    offset: int
    stored_since_ms: int
    dry_run: bool
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., queue: _Optional[int] = ..., earliest: _Optional[_Union[Earliest, _Mapping]] = ..., latest: _Optional[_Union[Latest, _Mapping]] = ..., offset: _Optional[int] = ..., stored_since_ms: _Optional[int] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class Earliest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Latest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResetOffsetResponse(_message.Message):
    __slots__ = ("queues",)
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[QueueReset]
    def __init__(self, queues: _Optional[_Iterable[_Union[QueueReset, _Mapping]]] = ...) -> None: ...

class QueueReset(_message.Message):
    __slots__ = ("queue", "previous_offset", "new_offset")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_OFFSET_FIELD_NUMBER: _ClassVar[int]
    NEW_OFFSET_FIELD_NUMBER: _ClassVar[int]
    queue: int
    previous_offset: int
    new_offset: int
    def __init__(self, queue: _Optional[int] = ..., previous_offset: _Optional[int] = ..., new_offset: _Optional[int] = ...) -> None: ...

class ListQueuesRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class ListQueuesResponse(_message.Message):
    __slots__ = ("queues",)
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[Queue]
    def __init__(self, queues: _Optional[_Iterable[_Union[Queue, _Mapping]]] = ...) -> None: ...

class Queue(_message.Message):
    __slots__ = ("topic", "queue", "minimum_offset", "maximum_offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    minimum_offset: int
    maximum_offset: int
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., minimum_offset: _Optional[int] = ..., maximum_offset: _Optional[int] = ...) -> None: ...

class SummarizeQueuesRequest(_message.Message):
    __slots__ = ("largest",)
    LARGEST_FIELD_NUMBER: _ClassVar[int]
    largest: int
    def __init__(self, largest: _Optional[int] = ...) -> None: ...

class QueuesSummary(_message.Message):
    __slots__ = ("kinds", "largest", "disk", "rocksdb")
    class DiskEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: DiskUse
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[DiskUse, _Mapping]] = ...) -> None: ...
    class RocksdbEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    KINDS_FIELD_NUMBER: _ClassVar[int]
    LARGEST_FIELD_NUMBER: _ClassVar[int]
    DISK_FIELD_NUMBER: _ClassVar[int]
    ROCKSDB_FIELD_NUMBER: _ClassVar[int]
    kinds: _containers.RepeatedCompositeFieldContainer[QueueKindSummary]
    largest: _containers.RepeatedCompositeFieldContainer[LargeQueue]
    disk: _containers.MessageMap[str, DiskUse]
    rocksdb: _containers.ScalarMap[str, int]
    def __init__(self, kinds: _Optional[_Iterable[_Union[QueueKindSummary, _Mapping]]] = ..., largest: _Optional[_Iterable[_Union[LargeQueue, _Mapping]]] = ..., disk: _Optional[_Mapping[str, DiskUse]] = ..., rocksdb: _Optional[_Mapping[str, int]] = ...) -> None: ...

class QueueKindSummary(_message.Message):
    __slots__ = ("kind", "queues", "empty", "entries")
    KIND_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    EMPTY_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    kind: str
    queues: int
    empty: int
    entries: int
    def __init__(self, kind: _Optional[str] = ..., queues: _Optional[int] = ..., empty: _Optional[int] = ..., entries: _Optional[int] = ...) -> None: ...

class LargeQueue(_message.Message):
    __slots__ = ("topic", "queue", "entries")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    entries: int
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., entries: _Optional[int] = ...) -> None: ...

class DiskUse(_message.Message):
    __slots__ = ("files", "apparent_bytes", "allocated_bytes")
    FILES_FIELD_NUMBER: _ClassVar[int]
    APPARENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    ALLOCATED_BYTES_FIELD_NUMBER: _ClassVar[int]
    files: int
    apparent_bytes: int
    allocated_bytes: int
    def __init__(self, files: _Optional[int] = ..., apparent_bytes: _Optional[int] = ..., allocated_bytes: _Optional[int] = ...) -> None: ...

class ExpireSegmentsRequest(_message.Message):
    __slots__ = ("dry_run", "rewrite_queues")
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    REWRITE_QUEUES_FIELD_NUMBER: _ClassVar[int]
    dry_run: bool
    rewrite_queues: bool
    def __init__(self, dry_run: _Optional[bool] = ..., rewrite_queues: _Optional[bool] = ...) -> None: ...

class ExpireSegmentsResponse(_message.Message):
    __slots__ = ("segments", "unread", "unread_complete")
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    UNREAD_FIELD_NUMBER: _ClassVar[int]
    UNREAD_COMPLETE_FIELD_NUMBER: _ClassVar[int]
    segments: _containers.RepeatedCompositeFieldContainer[ExpiringSegment]
    unread: _containers.RepeatedCompositeFieldContainer[UnreadMessages]
    unread_complete: bool
    def __init__(self, segments: _Optional[_Iterable[_Union[ExpiringSegment, _Mapping]]] = ..., unread: _Optional[_Iterable[_Union[UnreadMessages, _Mapping]]] = ..., unread_complete: _Optional[bool] = ...) -> None: ...

class ExpiringSegment(_message.Message):
    __slots__ = ("name", "size", "newest_at_ms", "cause")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    NEWEST_AT_MS_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    name: str
    size: int
    newest_at_ms: int
    cause: str
    def __init__(self, name: _Optional[str] = ..., size: _Optional[int] = ..., newest_at_ms: _Optional[int] = ..., cause: _Optional[str] = ...) -> None: ...

class UnreadMessages(_message.Message):
    __slots__ = ("group", "messages")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    group: str
    messages: int
    def __init__(self, group: _Optional[str] = ..., messages: _Optional[int] = ...) -> None: ...

class BeginBackupRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BackupPoint(_message.Message):
    __slots__ = ("name", "store_directory", "log_begin", "log_end", "segment_size", "lease_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STORE_DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    LOG_BEGIN_FIELD_NUMBER: _ClassVar[int]
    LOG_END_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_SIZE_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    store_directory: str
    log_begin: int
    log_end: int
    segment_size: int
    lease_ms: int
    def __init__(self, name: _Optional[str] = ..., store_directory: _Optional[str] = ..., log_begin: _Optional[int] = ..., log_end: _Optional[int] = ..., segment_size: _Optional[int] = ..., lease_ms: _Optional[int] = ...) -> None: ...

class RenewBackupRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class RenewBackupResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EndBackupRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class EndBackupResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
