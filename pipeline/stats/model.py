"""What statistics of a store hold. Names of the JSON document are those of the fields, in camel case.

Times are ms since 1970, rates are per second. Everything of which there may be very many is cut to the largest ones.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NamedTuple

from quarry_mq.pipeline.damage import NO_DAMAGE, DamagedPlaces


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is counted. Times in ms, both included; they are about messages, not about groups."""

    topics: tuple[str, ...] = ()
    """None: all of them."""
    from_ms: int | None = None
    to_ms: int | None = None
    top: int = 20
    """How many topics, and of each how many queues, tags and keys; how many groups; how many repeated ids."""


@dataclass(frozen=True, slots=True)
class Volume:
    """Messages and their bytes. Rates are over the time between the first and the last message of all topics."""

    messages: int
    store_bytes: int
    body_bytes: int
    """As stored: compressed bodies count as they are."""
    messages_per_second: float | None
    bytes_per_second: float | None
    """Of the log. None where all messages have one time."""


class Point(NamedTuple):
    """What was stored from `at_ms` on, for as long as a bucket of the series lasts."""

    at_ms: int
    messages: int
    store_bytes: int


@dataclass(frozen=True, slots=True)
class QueueFigures:
    queue_id: int
    volume: Volume


@dataclass(frozen=True, slots=True)
class TagFigures:
    tag: str | None
    """None: the messages without one."""
    volume: Volume


@dataclass(frozen=True, slots=True)
class KeyFigures:
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
    """Ids that more than one record of a topic has, and the records beyond the first of each."""

    ids: int
    extra_records: int


@dataclass(frozen=True, slots=True)
class Skew:
    """How unevenly messages are spread over the queues of a topic: 1 and 0 where all have the same."""

    max_to_mean: float
    variation: float
    """The coefficient of variation: standard deviation by mean."""


@dataclass(frozen=True, slots=True)
class TopicFigures:
    topic: str
    volume: Volume
    first_stored: int
    last_stored: int
    busiest_minute: Point
    queue_count: int
    """Queues that the topic has, or where that is not known those that hold some of the messages."""
    skew: Skew
    queues: tuple[QueueFigures, ...]
    tag_count: int
    tags: tuple[TagFigures, ...]
    keys: tuple[KeyFigures, ...]
    duplicates: Duplicates
    series: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """Where a group stands in a topic."""

    group: str
    topic: str
    queues: int
    lag: int
    """Messages that it was never given, over all queues; holes in light queues count."""
    in_flight: int | None
    """Handed out and not acknowledged. None: the store does not tell."""
    most_behind: int
    """The queue in which most of the lag is."""


@dataclass(frozen=True, slots=True)
class Lag:
    """How far groups are behind the ends of queues."""

    not_known: str | None
    """Why the store does not tell; the rest is empty then."""
    group_count: int = 0
    lag: int = 0
    in_flight: int | None = None
    groups: tuple[GroupFigures, ...] = ()


@dataclass(frozen=True, slots=True)
class Statistics:
    wanted: Wanted
    store: str
    volume: Volume
    first_stored: int | None
    last_stored: int | None
    busiest_minute: Point | None
    bucket_ms: int
    """How long a point of the series lasts."""
    series: tuple[Point, ...]
    topic_count: int
    topics: tuple[TopicFigures, ...]
    duplicates: Duplicates
    repeated_ids: tuple[RepeatedId, ...]
    lag: Lag
    damage: DamagedPlaces = NO_DAMAGE


def as_document(found: Statistics) -> dict[str, object]:
    """What JSON can hold of it: an object for each dataclass and point, with its fields."""
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
