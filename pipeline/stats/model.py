"""Defines the statistics of a store. Names in the JSON document are those of the fields, in camel case.

Times are ms since 1970, rates are per second. Every list that could become very long is cut to its largest items.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NamedTuple

from quarry_mq.pipeline.damage import NO_DAMAGE, DamagedPlaces


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The request: which messages are counted. Times in ms, both included; they limit messages, not groups."""

    topics: tuple[str, ...] = ()
    """Names of topics; empty: all topics."""
    from_ms: int | None = None
    to_ms: int | None = None
    top: int = 20
    """Number of topics listed, and of queues, tags and keys for each topic; also of groups and of repeated ids."""


@dataclass(frozen=True, slots=True)
class Volume:
    """Messages and their bytes. Rates are over the time between the first and the last message of all topics."""

    messages: int
    store_bytes: int
    body_bytes: int
    """Bytes as stored: compressed bodies count with their compressed size."""
    messages_per_second: float | None
    bytes_per_second: float | None
    """Bytes of the log per second. None where all messages have one time."""


class Point(NamedTuple):
    """The messages of one bucket of the series, which begins at `at_ms`."""

    at_ms: int
    messages: int
    store_bytes: int


@dataclass(frozen=True, slots=True)
class QueueStats:
    queue_id: int
    volume: Volume


@dataclass(frozen=True, slots=True)
class TagStats:
    tag: str | None
    """The tag; None for the messages without one."""
    volume: Volume


@dataclass(frozen=True, slots=True)
class KeyStats:
    key: str
    messages: int


@dataclass(frozen=True, slots=True)
class RepeatedId:
    """A message id that several records of a topic have."""

    topic: str
    uniq_key: str
    records: int


@dataclass(frozen=True, slots=True)
class Duplicates:
    """The number of ids that more than one record of a topic has, and of their records beyond the first."""

    ids: int
    extra_records: int


@dataclass(frozen=True, slots=True)
class Skew:
    """The unevenness of the spread of messages over the queues of a topic:

    1 and 0 where all queues have equally many.
    """

    max_to_mean: float
    variation: float
    """The coefficient of variation: the standard deviation divided by the mean."""


@dataclass(frozen=True, slots=True)
class TopicStats:
    topic: str
    volume: Volume
    first_stored: int
    last_stored: int
    busiest_minute: Point
    queue_count: int
    """Queues of the topic; where that is not known, the queues that hold some of the messages."""
    skew: Skew
    queues: tuple[QueueStats, ...]
    tag_count: int
    tags: tuple[TagStats, ...]
    keys: tuple[KeyStats, ...]
    duplicates: Duplicates
    series: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class GroupStats:
    """The position of a group in a topic."""

    group: str
    topic: str
    queues: int
    lag: int
    """Messages that the group was never given, over all queues; holes in light queues count."""
    in_flight: int | None
    """Messages that are delivered and not acknowledged. None: the store does not tell."""
    most_behind: int
    """The queue with the most lag."""


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of the groups with the most lag, and totals of all groups."""

    not_known: str | None
    """The reason why the store does not tell the lag; the other fields are empty then."""
    group_count: int = 0
    lag: int = 0
    in_flight: int | None = None
    groups: tuple[GroupStats, ...] = ()


@dataclass(frozen=True, slots=True)
class Statistics:
    wanted: Wanted
    store: str
    volume: Volume
    first_stored: int | None
    last_stored: int | None
    busiest_minute: Point | None
    bucket_ms: int
    """Length of a bucket of the series."""
    series: tuple[Point, ...]
    topic_count: int
    topics: tuple[TopicStats, ...]
    duplicates: Duplicates
    repeated_ids: tuple[RepeatedId, ...]
    lag: Lag
    damage: DamagedPlaces = NO_DAMAGE


def as_document(found: Statistics) -> dict[str, object]:
    """Return the statistics as JSON types: an object with its fields for each dataclass and point."""
    return _object(found)


def _object(value: Any) -> dict[str, object]:
    return {_camel(field.name): _plain(getattr(value, field.name)) for field in fields(value)}


def _plain(value: object) -> object:
    if is_dataclass(value):
        return _object(value)
    if isinstance(value, Point):
        return {_camel(name): each for name, each in value._asdict().items()}
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))
