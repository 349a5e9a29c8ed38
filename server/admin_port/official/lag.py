"""The official calls about consumer lag."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.proto.apache.rocketmq.v2 import admin_pb2 as pb
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.server.admin_port.official.edge import ROWS_MAX, Names, cut
from quarry_mq.server.delivery import command_past
from quarry_mq.server.lag.group_progress import NOTHING, Accumulation, Budget, GroupProgress
from quarry_mq.server.tasks import Pacing, TimeSlice
from quarry_mq.server.wire.status import Refused
from quarry_mq.server.wire.validate import check_count
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.metadata import Topic, TopicType
from quarry_mq.store.metadata.lite import light_queue_name, parse_light_queue_name

_Accumulation = pb.DescribeGroupAccumulationResponse.GroupAccumulation
UNKNOWN: Final = -1
"""The delay of a queue whose next message cannot be read."""
NAMED: Final = 3
"""Queues with such a message that are named."""

_TimeSpan = pb.QueryTimeSpanResponse.QueueTimeSpan


class LagCalls:
    """Answers calls about lag. A number that is not known is not 0: the status says so, and there are no numbers."""

    def __init__(
        self, names: Names, progress: GroupProgress, pacing: Pacing, *, broker_name: str, clock: Clock
    ) -> None:
        self._names = names
        self._progress = progress
        self._pacing = pacing
        self._broker_name = broker_name
        self._clock = clock

    async def describe_group_accumulation(
        self, request: pb.DescribeGroupAccumulationRequest
    ) -> pb.DescribeGroupAccumulationResponse:
        """Return the lag in the topics that are given, in all that the group reads, or in one lite topic of a topic."""
        group = self._names.group(request.group).name
        topics = self._topics(group, request.topics)
        async with self._pacing.turn() as time_slice:
            if request.HasField("lite_topic"):
                return await self._of_lite_topic(group, topics, request.lite_topic, time_slice)
            return await self._of_topics(group, topics, time_slice)

    async def _of_topics(
        self, group: str, topics: Sequence[Topic], time_slice: TimeSlice
    ) -> pb.DescribeGroupAccumulationResponse:
        budget = Budget()
        wanted, light = topics, list[str]()
        parents = {each.name for each in topics if each.type is TopicType.LITE}
        if parents or not topics:
            read = await self._progress.read_topics(group, time_slice, budget)
            light = read.light_queues
            wanted = topics or [self._names.topic(definition.Resource(name=each)) for each in read.topics]
        found: dict[str, Accumulation] = {}
        whole = NOTHING
        for topic in wanted:
            if self._progress.reads(group, topic.name):
                found[topic.name] = await self._progress.of_topic(group, topic, time_slice, budget)
                whole = whole.with_more(found[topic.name])
        for name in light:
            await time_slice.pause()
            named = parse_light_queue_name(name)
            parent = None if named is None else named[0]
            if topics and parent not in parents:
                continue
            counted = await self._progress.of_light_queue(group, name, time_slice)
            whole = whole.with_more(counted)
            if parent is not None:
                found[parent] = found.get(parent, NOTHING).with_more(counted)
        for name in parents - found.keys():
            raise _never_read(group, name)
        if not found:
            raise Refused(definition.OFFSET_NOT_FOUND, f"group: {group} has never read anything")
        answer = pb.DescribeGroupAccumulationResponse()
        for name, counted in found.items():
            _fill(answer.topic_accumulation[name], counted)
        _fill(answer.accumulation, whole)
        return answer

    async def _of_lite_topic(
        self, group: str, topics: Sequence[Topic], lite_topic: str, time_slice: TimeSlice
    ) -> pb.DescribeGroupAccumulationResponse:
        if len(topics) != 1:
            raise Refused(definition.BAD_REQUEST, "topics: exactly one topic must be given for a lite topic")
        name = light_queue_name(topics[0].name, lite_topic)
        if not lite_topic or not self._progress.reads_lite(group, topics[0].name, lite_topic):
            raise Refused(definition.OFFSET_NOT_FOUND, f"lite_topic: group {group} has never read this lite topic")
        counted = await self._progress.of_light_queue(group, name, time_slice)
        answer = pb.DescribeGroupAccumulationResponse()
        _fill(answer.lite_topic_accumulation[lite_topic], counted)
        _fill(answer.accumulation, counted)
        return answer

    async def query_time_span(self, request: pb.QueryTimeSpanRequest) -> pb.QueryTimeSpanResponse:
        """Return a row for each queue of the topics; times of an empty queue stay unset."""
        group = self._names.group(request.group).name
        topics = self._topics(group, request.topics)
        for topic in topics:
            if not self._progress.reads(group, topic.name):
                raise _never_read(group, topic.name)
        answer = pb.QueryTimeSpanResponse()
        unreadable = list[str]()
        async with self._pacing.turn() as time_slice:
            if not topics:
                names = (await self._progress.read_topics(group, time_slice, Budget(), light_queues=False)).topics
                topics = [self._names.topic(definition.Resource(name=each)) for each in names]
            for topic in topics:
                for queue in self._progress.queues(topic):
                    await time_slice.pause()
                    if len(answer.queue_time_span_list) == ROWS_MAX:
                        cut(answer, "queues")
                        return answer
                    if not self._fill_span(span := answer.queue_time_span_list.add(), group, queue):
                        span.delay_time_ms = UNKNOWN
                        unreadable.append(self._unreadable(group, queue))
        if unreadable:
            more = f"; {len(unreadable) - NAMED} more queues are like this" if len(unreadable) > NAMED else ""
            answer.status.code = definition.OK
            answer.status.message = "; ".join(unreadable[:NAMED]) + more
        return answer

    def _unreadable(self, group: str, queue: QueueId) -> str:
        offset = QueueOffset(self._progress.position(group, queue).next_offset)
        return (
            f"message {offset} of queue {queue.number} of topic {queue.topic} cannot be read, so the delay there is "
            f"unknown: if its record is damaged, go on behind it with: {command_past(queue, offset, group)}"
        )

    def _fill_span(self, span: _TimeSpan, group: str, queue: QueueId) -> bool:
        """Fill in a queue's times; return False if the age of the group's next message cannot be known."""
        position = self._progress.position(group, queue)
        span.message_queue.topic.name = queue.topic
        span.message_queue.id = queue.number
        span.message_queue.broker.name = self._broker_name
        begin, end = position.bounds
        if begin == end:
            return True
        span.min_timestamp = self._progress.stored_ms(queue, begin) or 0
        span.max_timestamp = self._progress.stored_ms(queue, end - 1) or 0
        if position.next_offset > begin:
            span.consume_timestamp = self._progress.stored_ms(queue, position.next_offset - 1) or 0
        if position.ready:
            since_ms = self._progress.stored_ms(queue, position.next_offset)
            if since_ms is None:
                return False
            span.delay_time_ms = max(0, self._clock.wall_ms() - since_ms)
        return True

    def _topics(self, group: str, named: Sequence[definition.Resource]) -> Sequence[Topic]:
        """Return each topic once. Raises Refused for one that the group has never read, whose lag is not defined.

        For a topic of type LITE the check is left out, because the group reads its lite topics.
        """
        check_count(named, "topics")
        topics = {each.name: self._names.topic(each, "topics") for each in named}
        for name, topic in topics.items():
            if topic.type is not TopicType.LITE and not self._progress.reads(group, name):
                raise _never_read(group, name)
        return list(topics.values())


def _never_read(group: str, topic: str) -> Refused:
    return Refused(definition.OFFSET_NOT_FOUND, f"topics: group {group} has never read topic {topic}")


def _fill(target: _Accumulation, counted: Accumulation) -> None:
    target.inflight_messages = counted.in_flight
    target.ready_messages = counted.ready
    target.accumulation = counted.in_flight + counted.ready
    if counted.delay_ms is not None:
        target.deliver_delay_time.FromMilliseconds(counted.delay_ms)
    if counted.passed_ms is not None:
        target.last_consume_timestamp = counted.passed_ms
