from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2 as _admin_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ConcernSeverity(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONCERN_SEVERITY_UNSPECIFIED: _ClassVar[ConcernSeverity]
    CONCERN_SEVERITY_WARNING: _ClassVar[ConcernSeverity]
    CONCERN_SEVERITY_FAULT: _ClassVar[ConcernSeverity]

class FigureOrder(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FIGURE_ORDER_UNSPECIFIED: _ClassVar[FigureOrder]
    FIGURE_ORDER_BUSIEST: _ClassVar[FigureOrder]
    FIGURE_ORDER_LAG: _ClassVar[FigureOrder]
CONCERN_SEVERITY_UNSPECIFIED: ConcernSeverity
CONCERN_SEVERITY_WARNING: ConcernSeverity
CONCERN_SEVERITY_FAULT: ConcernSeverity
FIGURE_ORDER_UNSPECIFIED: FigureOrder
FIGURE_ORDER_BUSIEST: FigureOrder
FIGURE_ORDER_LAG: FigureOrder

class GetOverviewRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Overview(_message.Message):
    __slots__ = ("broker", "at_ms", "readiness", "concerns", "concern_details", "sent_per_second", "received_per_second", "sent", "received", "sent_today", "received_today", "sent_yesterday", "received_yesterday", "connections", "producers", "consumers", "topics", "groups", "disk_total", "disk_free", "log_size", "oldest_stored_at_ms", "ready_messages", "in_flight_messages", "lag_ms", "lag_is_whole", "timers", "transactions", "lite_topics", "migration_phase", "migration_lag_bytes", "open_jobs", "log_check_ratio", "log_checked_at_ms", "stages", "process")
    BROKER_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    READINESS_FIELD_NUMBER: _ClassVar[int]
    CONCERNS_FIELD_NUMBER: _ClassVar[int]
    CONCERN_DETAILS_FIELD_NUMBER: _ClassVar[int]
    SENT_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    SENT_TODAY_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_TODAY_FIELD_NUMBER: _ClassVar[int]
    SENT_YESTERDAY_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_YESTERDAY_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    DISK_TOTAL_FIELD_NUMBER: _ClassVar[int]
    DISK_FREE_FIELD_NUMBER: _ClassVar[int]
    LOG_SIZE_FIELD_NUMBER: _ClassVar[int]
    OLDEST_STORED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    READY_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    LAG_MS_FIELD_NUMBER: _ClassVar[int]
    LAG_IS_WHOLE_FIELD_NUMBER: _ClassVar[int]
    TIMERS_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    LITE_TOPICS_FIELD_NUMBER: _ClassVar[int]
    MIGRATION_PHASE_FIELD_NUMBER: _ClassVar[int]
    MIGRATION_LAG_BYTES_FIELD_NUMBER: _ClassVar[int]
    OPEN_JOBS_FIELD_NUMBER: _ClassVar[int]
    LOG_CHECK_RATIO_FIELD_NUMBER: _ClassVar[int]
    LOG_CHECKED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    broker: _admin_pb2.Broker
    at_ms: int
    readiness: str
    concerns: _containers.RepeatedScalarFieldContainer[str]
    concern_details: _containers.RepeatedCompositeFieldContainer[Concern]
    sent_per_second: float
    received_per_second: float
    sent: int
    received: int
    sent_today: int
    received_today: int
    sent_yesterday: int
    received_yesterday: int
    connections: int
    producers: int
    consumers: int
    topics: int
    groups: int
    disk_total: int
    disk_free: int
    log_size: int
    oldest_stored_at_ms: int
    ready_messages: int
    in_flight_messages: int
    lag_ms: int
    lag_is_whole: bool
    timers: int
    transactions: int
    lite_topics: int
    migration_phase: str
    migration_lag_bytes: int
    open_jobs: int
    log_check_ratio: float
    log_checked_at_ms: int
    stages: _containers.RepeatedCompositeFieldContainer[Stage]
    process: Process
    def __init__(self, broker: _Optional[_Union[_admin_pb2.Broker, _Mapping]] = ..., at_ms: _Optional[int] = ..., readiness: _Optional[str] = ..., concerns: _Optional[_Iterable[str]] = ..., concern_details: _Optional[_Iterable[_Union[Concern, _Mapping]]] = ..., sent_per_second: _Optional[float] = ..., received_per_second: _Optional[float] = ..., sent: _Optional[int] = ..., received: _Optional[int] = ..., sent_today: _Optional[int] = ..., received_today: _Optional[int] = ..., sent_yesterday: _Optional[int] = ..., received_yesterday: _Optional[int] = ..., connections: _Optional[int] = ..., producers: _Optional[int] = ..., consumers: _Optional[int] = ..., topics: _Optional[int] = ..., groups: _Optional[int] = ..., disk_total: _Optional[int] = ..., disk_free: _Optional[int] = ..., log_size: _Optional[int] = ..., oldest_stored_at_ms: _Optional[int] = ..., ready_messages: _Optional[int] = ..., in_flight_messages: _Optional[int] = ..., lag_ms: _Optional[int] = ..., lag_is_whole: _Optional[bool] = ..., timers: _Optional[int] = ..., transactions: _Optional[int] = ..., lite_topics: _Optional[int] = ..., migration_phase: _Optional[str] = ..., migration_lag_bytes: _Optional[int] = ..., open_jobs: _Optional[int] = ..., log_check_ratio: _Optional[float] = ..., log_checked_at_ms: _Optional[int] = ..., stages: _Optional[_Iterable[_Union[Stage, _Mapping]]] = ..., process: _Optional[_Union[Process, _Mapping]] = ...) -> None: ...

class Concern(_message.Message):
    __slots__ = ("kind", "severity", "text", "since_ms", "page", "command")
    KIND_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    kind: str
    severity: ConcernSeverity
    text: str
    since_ms: int
    page: str
    command: str
    def __init__(self, kind: _Optional[str] = ..., severity: _Optional[_Union[ConcernSeverity, str]] = ..., text: _Optional[str] = ..., since_ms: _Optional[int] = ..., page: _Optional[str] = ..., command: _Optional[str] = ...) -> None: ...

class Stage(_message.Message):
    __slots__ = ("call", "name", "bounds_seconds", "counts", "total_seconds")
    CALL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    BOUNDS_SECONDS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    call: str
    name: str
    bounds_seconds: _containers.RepeatedScalarFieldContainer[float]
    counts: _containers.RepeatedScalarFieldContainer[int]
    total_seconds: float
    def __init__(self, call: _Optional[str] = ..., name: _Optional[str] = ..., bounds_seconds: _Optional[_Iterable[float]] = ..., counts: _Optional[_Iterable[int]] = ..., total_seconds: _Optional[float] = ...) -> None: ...

class Process(_message.Message):
    __slots__ = ("cpu_seconds", "resident_bytes", "open_files", "loop_late_seconds")
    CPU_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    OPEN_FILES_FIELD_NUMBER: _ClassVar[int]
    LOOP_LATE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    cpu_seconds: float
    resident_bytes: int
    open_files: int
    loop_late_seconds: float
    def __init__(self, cpu_seconds: _Optional[float] = ..., resident_bytes: _Optional[int] = ..., open_files: _Optional[int] = ..., loop_late_seconds: _Optional[float] = ...) -> None: ...

class ListOverviewsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MemberOverview(_message.Message):
    __slots__ = ("name", "is_self", "state", "is_reachable", "address", "admin_address", "version", "overview", "problem")
    NAME_FIELD_NUMBER: _ClassVar[int]
    IS_SELF_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    IS_REACHABLE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ADMIN_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    OVERVIEW_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    name: str
    is_self: bool
    state: str
    is_reachable: bool
    address: str
    admin_address: str
    version: str
    overview: Overview
    problem: str
    def __init__(self, name: _Optional[str] = ..., is_self: _Optional[bool] = ..., state: _Optional[str] = ..., is_reachable: _Optional[bool] = ..., address: _Optional[str] = ..., admin_address: _Optional[str] = ..., version: _Optional[str] = ..., overview: _Optional[_Union[Overview, _Mapping]] = ..., problem: _Optional[str] = ...) -> None: ...

class ListOverviewsResponse(_message.Message):
    __slots__ = ("members",)
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedCompositeFieldContainer[MemberOverview]
    def __init__(self, members: _Optional[_Iterable[_Union[MemberOverview, _Mapping]]] = ...) -> None: ...

class GetHistoryRequest(_message.Message):
    __slots__ = ("series", "after_ms", "topic", "group")
    SERIES_FIELD_NUMBER: _ClassVar[int]
    AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    series: _containers.RepeatedScalarFieldContainer[str]
    after_ms: int
    topic: str
    group: str
    def __init__(self, series: _Optional[_Iterable[str]] = ..., after_ms: _Optional[int] = ..., topic: _Optional[str] = ..., group: _Optional[str] = ...) -> None: ...

class History(_message.Message):
    __slots__ = ("interval_ms", "at_ms", "series")
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    SERIES_FIELD_NUMBER: _ClassVar[int]
    interval_ms: int
    at_ms: _containers.RepeatedScalarFieldContainer[int]
    series: _containers.RepeatedCompositeFieldContainer[Series]
    def __init__(self, interval_ms: _Optional[int] = ..., at_ms: _Optional[_Iterable[int]] = ..., series: _Optional[_Iterable[_Union[Series, _Mapping]]] = ...) -> None: ...

class Series(_message.Message):
    __slots__ = ("name", "unit", "values")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    name: str
    unit: str
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, name: _Optional[str] = ..., unit: _Optional[str] = ..., values: _Optional[_Iterable[float]] = ...) -> None: ...

class ListTopicFiguresRequest(_message.Message):
    __slots__ = ("contains", "after", "limit", "order", "include_system", "names")
    CONTAINS_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_SYSTEM_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    contains: str
    after: str
    limit: int
    order: FigureOrder
    include_system: bool
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, contains: _Optional[str] = ..., after: _Optional[str] = ..., limit: _Optional[int] = ..., order: _Optional[_Union[FigureOrder, str]] = ..., include_system: _Optional[bool] = ..., names: _Optional[_Iterable[str]] = ...) -> None: ...

class ListTopicFiguresResponse(_message.Message):
    __slots__ = ("topics", "has_more", "matching")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    HAS_MORE_FIELD_NUMBER: _ClassVar[int]
    MATCHING_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicFigures]
    has_more: bool
    matching: int
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicFigures, _Mapping]]] = ..., has_more: _Optional[bool] = ..., matching: _Optional[int] = ...) -> None: ...

class TopicFigures(_message.Message):
    __slots__ = ("topic", "messages", "estimated_bytes", "sent_per_second", "received_per_second", "last_stored_at_ms", "groups", "group_count")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    ESTIMATED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SENT_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    LAST_STORED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    GROUP_COUNT_FIELD_NUMBER: _ClassVar[int]
    topic: _admin_pb2.Topic
    messages: int
    estimated_bytes: int
    sent_per_second: float
    received_per_second: float
    last_stored_at_ms: int
    groups: _containers.RepeatedCompositeFieldContainer[PairFigures]
    group_count: int
    def __init__(self, topic: _Optional[_Union[_admin_pb2.Topic, _Mapping]] = ..., messages: _Optional[int] = ..., estimated_bytes: _Optional[int] = ..., sent_per_second: _Optional[float] = ..., received_per_second: _Optional[float] = ..., last_stored_at_ms: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[PairFigures, _Mapping]]] = ..., group_count: _Optional[int] = ...) -> None: ...

class PairFigures(_message.Message):
    __slots__ = ("group", "topic", "ready", "in_flight", "lag_ms", "received_per_second", "consumers")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    LAG_MS_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    ready: int
    in_flight: int
    lag_ms: int
    received_per_second: float
    consumers: int
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., ready: _Optional[int] = ..., in_flight: _Optional[int] = ..., lag_ms: _Optional[int] = ..., received_per_second: _Optional[float] = ..., consumers: _Optional[int] = ...) -> None: ...

class ListGroupFiguresRequest(_message.Message):
    __slots__ = ("contains", "after", "limit", "order", "names")
    CONTAINS_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    contains: str
    after: str
    limit: int
    order: FigureOrder
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, contains: _Optional[str] = ..., after: _Optional[str] = ..., limit: _Optional[int] = ..., order: _Optional[_Union[FigureOrder, str]] = ..., names: _Optional[_Iterable[str]] = ...) -> None: ...

class ListGroupFiguresResponse(_message.Message):
    __slots__ = ("groups", "has_more", "matching")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    HAS_MORE_FIELD_NUMBER: _ClassVar[int]
    MATCHING_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[GroupFigures]
    has_more: bool
    matching: int
    def __init__(self, groups: _Optional[_Iterable[_Union[GroupFigures, _Mapping]]] = ..., has_more: _Optional[bool] = ..., matching: _Optional[int] = ...) -> None: ...

class GroupFigures(_message.Message):
    __slots__ = ("group", "consumers", "topics", "topic_count", "ready", "in_flight", "lag_ms", "dead_letters")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_COUNT_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    LAG_MS_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    group: _admin_pb2.Group
    consumers: int
    topics: _containers.RepeatedCompositeFieldContainer[PairFigures]
    topic_count: int
    ready: int
    in_flight: int
    lag_ms: int
    dead_letters: int
    def __init__(self, group: _Optional[_Union[_admin_pb2.Group, _Mapping]] = ..., consumers: _Optional[int] = ..., topics: _Optional[_Iterable[_Union[PairFigures, _Mapping]]] = ..., topic_count: _Optional[int] = ..., ready: _Optional[int] = ..., in_flight: _Optional[int] = ..., lag_ms: _Optional[int] = ..., dead_letters: _Optional[int] = ...) -> None: ...
