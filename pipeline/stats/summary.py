"""Formats statistics as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from quarry_mq.pipeline.stats.model import Statistics, TopicStats, Volume
from quarry_mq.pipeline.stats.words import count_text, name_text, short_text, size_text, time_text


def summary_lines(found: Statistics) -> Iterator[str]:
    """Yield the topics and groups with the highest counts; for topics that were named also queues, tags and keys."""
    messages, topics = count_text(found.volume.messages), count_text(found.topic_count)
    yield f"{messages} messages of {topics} topics, {_bytes(found.volume)}"
    if found.first_stored is not None and found.last_stored is not None and found.busiest_minute is not None:
        yield f"stored from {time_text(found.first_stored)} to {time_text(found.last_stored)}{_rates(found.volume)}"
        busiest = found.busiest_minute
        yield f"most in one minute: {count_text(busiest.messages)} from {time_text(busiest.at_ms)}"
    if found.duplicates.ids:
        extra, ids = found.duplicates.extra_records, found.duplicates.ids
        yield f"{count_text(extra)} records repeat one of {count_text(ids)} message ids of their topic"
    if found.topics:
        yield ""
        yield from _topics(found)
    for topic in found.topics if found.wanted.topics else ():
        yield from _details(topic)
    if found.repeated_ids:
        yield ""
        yield f"{'records':>15}  repeated id"
        for each in found.repeated_ids:
            yield f"{count_text(each.records):>15}  {name_text(each.topic)}  {name_text(each.uniq_key)}"
    yield ""
    yield from _groups(found)


def _topics(found: Statistics) -> Iterator[str]:
    yield (
        f"{'messages':>15}  {'bytes':>10}  {'per second':>10}  {'most/minute':>11}  {'queues':>6}  {'max/mean':>8}  "
        f"{'variation':>9}  topic"
    )
    for each in found.topics:
        volume = each.volume
        yield (
            f"{count_text(volume.messages):>15}  {size_text(volume.store_bytes):>10}  "
            f"{_rate(volume.messages_per_second):>10}  {count_text(each.busiest_minute.messages):>11}  "
            f"{count_text(each.queue_count):>6}  {each.skew.max_to_mean:>8.2f}  {each.skew.variation:>9.2f}  "
            f"{name_text(each.topic)}"
        )
    if found.topic_count > len(found.topics):
        yield f"{'':>15}  and {count_text(found.topic_count - len(found.topics))} more"


def _details(topic: TopicStats) -> Iterator[str]:
    name = name_text(topic.topic)
    yield ""
    yield f"{'messages':>15}  {'bytes':>10}  {'per second':>10}  queue of {name}"
    for queue in topic.queues:
        yield _line(queue.volume, str(queue.queue_id))
    yield ""
    yield f"{'messages':>15}  {'bytes':>10}  {'per second':>10}  tag of {name}"
    for tag in topic.tags:
        yield _line(tag.volume, "(none)" if tag.tag is None else name_text(tag.tag))
    if topic.keys:
        yield ""
        yield f"{'messages':>15}  key of {name}"
        for key in topic.keys:
            yield f"{count_text(key.messages):>15}  {name_text(key.key)}"


def _line(volume: Volume, name: str) -> str:
    messages, size = count_text(volume.messages), size_text(volume.store_bytes)
    return f"{messages:>15}  {size:>10}  {_rate(volume.messages_per_second):>10}  {name}"


def _groups(found: Statistics) -> Iterator[str]:
    lag = found.lag
    if lag.not_known is not None:
        yield f"how far groups are behind is not known: {lag.not_known}"
        return
    yield f"{'lag':>15}  {'in flight':>9}  {'queues':>6}  {'most in':>7}  group and topic"
    for each in lag.groups:
        in_flight = "?" if each.in_flight is None else count_text(each.in_flight)
        yield (
            f"{count_text(each.lag):>15}  {in_flight:>9}  {count_text(each.queues):>6}  {each.most_behind:>7}  "
            f"{name_text(each.group)}  {name_text(each.topic)}"
        )
    yield f"{count_text(lag.lag):>15}  of {count_text(lag.group_count)} groups"


def _bytes(volume: Volume) -> str:
    return f"{size_text(volume.store_bytes)} of the log, {size_text(volume.body_bytes)} of them bodies"


def _rates(volume: Volume) -> str:
    if volume.messages_per_second is None or volume.bytes_per_second is None:
        return ""
    return f", {_rate(volume.messages_per_second)} and {size_text(volume.bytes_per_second)} per second"


def _rate(rate: float | None) -> str:
    return "" if rate is None else short_text(rate)
