"""Holds what a broker tells of lag against the count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import pytest

from quarry_mq.protocol.proto.apache.rocketmq.v2 import admin_pb2 as pb
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.server.wire.status import Refused
from quarry_mq.store.message import QueueId
from tests.lag import rows
from tests.lag.bench import Bench
from tests.lag.count import Count, total
from tests.lag.readers import Place, Reader, retry_names
from tests.lag.scan import Queues

PARENT: Final = "chats"
LIGHT: Final = f"%LMQ%${PARENT}$"

_Accumulation = pb.DescribeGroupAccumulationResponse.GroupAccumulation


class Checked:
    """One group of a bench at one moment."""

    def __init__(self, bench: Bench, reader: Reader, queues: Queues) -> None:
        self._bench = bench
        self._reader = reader
        self._queues = queues
        self._now_ms = bench.clock.wall_ms()
        engine = bench.store.state_engine
        self._positions: Mapping[QueueId, int] = rows.positions(engine).get(reader.name, {})
        self._given = reader.open_places(queues)
        kept = {Place(queue, each.offset) for queue, messages in queues.items() for each in messages}
        stored = {Place(*each) for each in rows.in_flight(engine).get(reader.name, ())}
        assert stored & kept == self._given, f"{reader.name}: {(stored & kept) ^ self._given}"

    def all_of_it(self) -> None:
        self.positions()
        counts = self.accumulation()
        self.time_spans(counts)

    # -- positions

    def positions(self) -> None:
        """Where the group goes on is where all that it was given, or that it passes over, ends."""
        name = self._reader.name
        for queue, messages in self._queues.items():
            if not self._may_read(queue):
                continue
            begin = self._positions.get(queue, 0)
            wanted = {each.offset for each in messages if self._reader.taste.wants(each.properties)}
            ready = {each.offset for each in messages if each.offset >= begin}
            waiting = self._reader.waiting(queue, messages)
            assert ready & wanted == waiting, f"{name}: {queue}: goes on at {begin}, waiting are {sorted(waiting)}"

    def _may_read(self, queue: QueueId) -> bool:
        reader = self._reader
        if queue.topic.startswith("%LMQ%"):
            return queue.topic in self._light_queues()
        retry = {name for topic in reader.reads for name in retry_names(reader.name, topic)}
        return queue.topic in reader.reads | retry

    def _light_queues(self) -> set[str]:
        """Those in which the group stands, and those that its clients want."""
        wanted = {LIGHT + name for names in self._reader.lite_wanted.values() for name in names}
        return wanted | {queue.topic for queue in self._positions if queue.topic.startswith(LIGHT)}

    # -- DescribeGroupAccumulation

    def accumulation(self) -> dict[str, Count]:
        """Returns the right counts by topic."""
        name = self._reader.name
        expected = self._by_topic()
        request = pb.DescribeGroupAccumulationRequest(group=definition.Resource(name=name))
        if not expected:
            self._is_refused(request)
            return expected
        answer = self._bench.accumulation(request)
        assert {topic: _told(each) for topic, each in answer.topic_accumulation.items()} == {
            topic: _telling(each) for topic, each in expected.items()
        }
        assert _told(answer.accumulation) == _telling(total(expected.values()))
        for topic, count in expected.items():
            request.ClearField("topics")
            request.topics.add(name=topic)
            answer = self._bench.accumulation(request)
            assert {topic: _told(each) for topic, each in answer.topic_accumulation.items()} == {topic: _telling(count)}
            assert _told(answer.accumulation) == _telling(count)
        for light in self._light_queues():
            request = pb.DescribeGroupAccumulationRequest(
                group=definition.Resource(name=name),
                topics=[definition.Resource(name=PARENT)],
                lite_topic=light.removeprefix(LIGHT),
            )
            answer = self._bench.accumulation(request)
            assert _told(answer.lite_topic_accumulation[request.lite_topic]) == _telling(self._count({light}))
        return expected

    def _is_refused(self, request: pb.DescribeGroupAccumulationRequest) -> None:
        """Nobody knows how far a group is behind that has never read anything."""
        with pytest.raises(Refused) as refused:
            self._bench.accumulation(request)
        assert refused.value.code == definition.OFFSET_NOT_FOUND

    def _by_topic(self) -> dict[str, Count]:
        topics = {
            queue.topic
            for queue in self._positions
            if not queue.topic.startswith("%LMQ%") and self._bench.store.topics.get(queue.topic) is not None
        }
        beside = {retry: topic for topic in topics for retry in retry_names(self._reader.name, topic)}
        counts = {
            topic: self._count({topic, *retry_names(self._reader.name, topic)}) for topic in topics - beside.keys()
        }
        light = self._light_queues()
        if light:
            counts[PARENT] = self._count(light)
        return counts

    def _count(self, topics: set[str]) -> Count:
        return Count.of(self._queues, topics, self._positions, self._given, self._now_ms)

    # -- QueryTimeSpan

    def time_spans(self, topics: Iterable[str]) -> None:
        for topic in topics:
            if topic == PARENT:
                continue
            request = pb.QueryTimeSpanRequest(
                group=definition.Resource(name=self._reader.name), topics=[definition.Resource(name=topic)]
            )
            told = {
                each.message_queue.id: (
                    each.min_timestamp,
                    each.max_timestamp,
                    each.consume_timestamp,
                    each.delay_time_ms,
                )
                for each in self._bench.time_span(request).queue_time_span_list
            }
            found = self._bench.store.topics.get(topic)
            assert found is not None
            numbers = {queue.number for queue in self._queues if queue.topic == topic} | set(range(found.queue_count))
            expected = {number: self._span(QueueId(topic, number)) for number in numbers}
            # a queue that the topic has no longer, and whose messages have all expired, may be told of or not
            empty = dict.fromkeys(told.keys() - numbers, (0, 0, 0, 0))
            assert told == {**expected, **empty}, f"{self._reader.name}: {topic}"

    def _span(self, queue: QueueId) -> tuple[int, int, int, int]:
        messages = self._queues.get(queue, [])
        if not messages:
            return 0, 0, 0, 0
        position = self._positions.get(queue, 0)
        passed_ms = next((each.stored_ms for each in messages if each.offset == position - 1), 0)
        delay_ms = next((self._now_ms - each.stored_ms for each in messages if each.offset >= position), 0)
        return messages[0].stored_ms, messages[-1].stored_ms, passed_ms, delay_ms

    # -- metrics

    def pairs(self) -> dict[tuple[str, str, bool], tuple[int, int, int, int]]:
        """What metrics have to tell of the group, by group, topic, and whether it is of retry topics."""
        name, found = self._reader.name, {}
        for topic in self._by_topic().keys() - {PARENT}:
            for is_retry, topics in ((False, {topic}), (True, retry_names(name, topic))):
                count = self._count(topics)
                found[name, topic, is_retry] = count.ready, count.in_flight, count.open_ms, count.delay_ms
        return found


def check_metrics(bench: Bench, expected: Mapping[tuple[str, str, bool], tuple[int, int, int, int]]) -> None:
    """What is told is right, and what is in memory is told; of others nothing needs to be known."""
    told = {
        (each.group, each.topic, each.is_retry): (each.ready, each.in_flight, each.lag_ms, each.queueing_ms)
        for each in bench.pairs()
    }
    for key, stats in told.items():
        assert stats == expected[key], f"{key}: {stats}, not {expected[key]}"
    in_memory = {(each.group, each.owner.topic) for each in bench.delivery.subscriptions()}
    for key, stats in expected.items():
        assert key in told or key[:2] not in in_memory or (key[2] and stats[:2] == (0, 0)), f"{key}: {stats}"
    samples = {
        (sample.labels["consumer_group"], sample.labels["topic"], sample.labels["is_retry"] == "true"): sample.value
        for metric in bench.metrics()
        if metric.name == "rocketmq_consumer_lag_messages"
        for sample in metric.samples
    }
    assert samples == {key: stats[0] + (stats[1] or 0) for key, stats in told.items()}


def _told(counted: _Accumulation) -> tuple[int, int, int, int | None, int]:
    delay_ms = counted.deliver_delay_time.ToMilliseconds() if counted.HasField("deliver_delay_time") else None
    return (
        counted.inflight_messages,
        counted.ready_messages,
        counted.accumulation,
        delay_ms,
        counted.last_consume_timestamp,
    )


def _telling(count: Count) -> tuple[int, int, int, int | None, int]:
    return count.in_flight, count.ready, count.in_flight + count.ready, count.delay_ms, count.passed_ms
