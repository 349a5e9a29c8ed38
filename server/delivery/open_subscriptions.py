"""The subscriptions in memory: how they are opened, at which offsets, and when they are dropped."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from operator import attrgetter
from typing import Final

from quarry_mq.kv import WriteBatch
from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.names import is_light_queue
from quarry_mq.server.delivery.deliveries import Deliveries
from quarry_mq.server.delivery.model import MessageSource
from quarry_mq.server.delivery.retry_topics import RetryTopic, retry_topics
from quarry_mq.server.delivery.state.inflight import GroupState
from quarry_mq.server.delivery.state.subscription import QueueProgress, Subscription, Subscriptions, WaitingPoll
from quarry_mq.server.errors import OverLimit
from quarry_mq.server.settings.sections import DeliverySection, LimitsSection, NewGroupStart
from quarry_mq.store.message import QueueExtent, QueueId, QueueOffset


class Positions:
    """Opens the queues of subscriptions at the stored offsets, or at the start of a new group or a new queue."""

    def __init__(self, settings: DeliverySection, source: MessageSource, state: GroupState) -> None:
        self._settings = settings
        self._source = source
        self._offsets = state.offsets
        self._writer = state.writer

    def configure(self, settings: DeliverySection) -> None:
        self._settings = settings

    def never_read(self, group: str, topic: str, numbers: Iterable[int]) -> list[int]:
        """Return the numbers of the queues in which the group has no stored offset."""
        return [number for number in numbers if self._offsets.get(group, QueueId(topic, number)) is None]

    def open_all(
        self, subscription: Subscription, numbers: Collection[int], new_start: NewGroupStart | None = None
    ) -> None:
        """Open these queues, and once also all others that hold messages: a topic may have had more queues before.

        `new_start` is where a new group starts; None: where the settings say.
        """
        if subscription.has_stored_queues and all(number in subscription.queues for number in numbers):
            return
        wanted = dict.fromkeys(numbers)
        if not subscription.has_stored_queues:
            wanted.update(dict.fromkeys(queue.number for queue in self._source.queues_of(subscription.topic)))
            subscription.has_stored_queues = True
        self.open_each(subscription, wanted, new_start)

    def open_each(
        self, subscription: Subscription, numbers: Iterable[int], new_start: NewGroupStart | None = None
    ) -> None:
        """Open the queues. If they are the first ever opened for a group, the group is new on the topic.

        A retry topic is the group's own, so everything in it is for the group and the group is never new there.
        """
        is_new = (
            not subscription.queues
            and not subscription.is_retry
            and not self._offsets.reads(subscription.group, subscription.topic)
        )
        start = (new_start or self._settings.new_group_start) if is_new else None
        self._open(subscription, [number for number in numbers if number not in subscription.queues], start)

    def open(self, subscription: Subscription, number: int) -> QueueProgress:
        """Return the group's progress in the queue, opened if necessary. A queue being opened becomes a candidate."""
        progress = subscription.queues.get(number)
        if progress is None:
            self._open(subscription, [number], None)
            progress = subscription.queues[number]
        return progress

    def _open(self, subscription: Subscription, numbers: Sequence[int], new_start: NewGroupStart | None) -> None:
        """Open distinct queues that are not open yet. `new_start` is where a new group starts; None for known ones."""
        group, topic = subscription.group, subscription.topic
        stored = [None] * len(numbers) if new_start is not None else self._offsets.get_all(group, topic, numbers)
        queues = [QueueId(topic, number) for number in numbers]
        unread = [queue for queue, offset in zip(queues, stored, strict=True) if offset is None]
        starts = dict(zip(unread, self._start_offsets(unread, new_start), strict=True))
        for queue, offset in zip(queues, stored, strict=True):
            if offset is None:
                next_offset = starts[queue]
                self._offsets.stage(self._writer.batch(), group, queue, next_offset)
            else:
                # a recovery may have cut off the queue's end
                next_offset = min(offset, self._source.maximum(queue))
            subscription.queues[queue.number] = QueueProgress(queue, next_offset)
            subscription.mark(queue.number)

    def stage(self, batch: WriteBatch, subscription: Subscription) -> None:
        """Stage the group's offsets in all queues that it has open."""
        for progress in subscription.queues.values():
            self._offsets.stage(batch, subscription.group, progress.queue, progress.next_offset)

    def store(self, subscription: Subscription, progress: QueueProgress) -> None:
        self._offsets.stage(self._writer.batch(), subscription.group, progress.queue, progress.next_offset)

    def _start_offsets(self, queues: Sequence[QueueId], new_start: NewGroupStart | None) -> list[QueueOffset]:
        extents = self._source.extents_of_all(queues) if queues else []
        return [self._start_offset(extent, new_start) for extent in extents]

    def _start_offset(self, extent: QueueExtent, new_start: NewGroupStart | None) -> QueueOffset:
        """Return the start offset in a queue. A queue added to a topic that the group reads is read from its first
        message.
        """
        match new_start:
            case None | NewGroupStart.EARLIEST:
                return extent.minimum
            case NewGroupStart.LATEST:
                return extent.maximum
            case NewGroupStart.AUTO:
                if extent.minimum > 0 or extent.begins_at is None:
                    return extent.maximum
                distance = self._source.appended_up_to - extent.begins_at
                return extent.minimum if distance <= self._settings.auto_start_size else extent.maximum


IDLE_SUBSCRIPTION_S: Final = 300.0
QUEUES_KEPT_MAX: Final = 65_536
"""Queues kept by all subscriptions together, about 36 MB; beyond it those not used recently are dropped sooner."""


class OpenSubscriptions(Subscriptions):
    """Opens subscriptions on demand, with their retry topics."""

    def __init__(
        self,
        limits: LimitsSection,
        *,
        source: MessageSource,
        clock: Clock,
        deliveries: Deliveries,
        positions: Positions,
        end_poll: Callable[[WaitingPoll], None],
        light_ready: Callable[[Subscription], None],
    ) -> None:
        super().__init__()
        self._limits = limits
        self._source = source
        self._clock = clock
        self._deliveries = deliveries
        self._positions = positions
        self._end_poll = end_poll
        self._light_ready = light_ready

    def configure(self, limits: LimitsSection) -> None:
        self._limits = limits

    def open(self, group: str, topic: str) -> Subscription:
        """Return the subscription, opened if it is not in memory. Raises OverLimit."""
        subscription = self.find(group, topic)
        if subscription is not None:
            return subscription
        if len(self) >= self._limits.subscriptions:
            raise OverLimit("subscriptions", f"{len(self)} pairs of group and topic are in use")
        subscription = self.of(group, topic)
        if is_light_queue(topic):
            subscription.is_ordered, subscription.on_ready, subscription.wake_times = True, self._light_ready, set()
            self._deliveries.opened(subscription)
            return subscription
        subscription.last_used_s = self._clock.monotonic_s()
        self._deliveries.opened(subscription)
        for retry_topic in retry_topics(group, topic):
            if self._source.queues_of(retry_topic.name):
                self._attach(subscription, retry_topic)
        return subscription

    def attach_to(self, topic: str) -> Sequence[Subscription]:
        """Attach a new retry topic to the subscriptions in memory that it belongs to. Return the subscriptions of the
        topic.
        """
        for subscription in self:
            for retry_topic in retry_topics(subscription.group, subscription.topic):
                if retry_topic.name == topic:
                    self._attach(subscription, retry_topic)
        return self.of_topic(topic)

    def _attach(self, owner: Subscription, retry_topic: RetryTopic) -> None:
        """Let the owner's receives get the messages of a retry topic, unless it is being read under its own name."""
        if self.find(owner.group, retry_topic.name) is None:
            companion = self.attach(owner, retry_topic)
            self._deliveries.opened(companion)
            self._positions.open_all(companion, ())

    def drop_idle(self) -> None:
        """Drop subscriptions that were not used recently from memory; their rows stay."""
        before_s = self._clock.monotonic_s() - IDLE_SUBSCRIPTION_S
        kept = sum(len(subscription.queues) for subscription in self)
        owners = [subscription for subscription in self if not subscription.is_retry]
        for subscription in sorted(owners, key=attrgetter("last_used_s")):
            if subscription.last_used_s >= before_s and kept <= QUEUES_KEPT_MAX:
                return
            if subscription.is_idle:
                kept -= sum(len(part.queues) for part in subscription.parts)
                self.drop(subscription)

    def drop(self, subscription: Subscription) -> None:
        """Drop the subscription from memory and answer its waiting receives; its rows stay."""
        if self.find(subscription.group, subscription.topic) is not subscription:
            return  # dropped together with the subscription whose retry topic it is
        for poll in tuple(subscription.owner.waiting):
            self._end_poll(poll)
        self.remove(subscription)
