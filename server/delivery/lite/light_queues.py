"""The light queues of lite topics, one at a time, with the state of a group in them.

There are very many of them, so little is kept in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from quarry_mq.protocol.clock import Clock
from quarry_mq.server.delivery.deliveries import Deliveries
from quarry_mq.server.delivery.model import MessageSource
from quarry_mq.server.delivery.open_subscriptions import OpenSubscriptions
from quarry_mq.server.delivery.state.positions import Positions
from quarry_mq.server.delivery.state.state_writer import GroupState
from quarry_mq.server.delivery.state.subscription import Subscription
from quarry_mq.store.consumequeue import LastEntry, LightQueueStep
from quarry_mq.store.consumequeue.dispatch import LIGHT_QUEUE_NUMBER
from quarry_mq.store.metadata.lite import light_queue_prefix, parse_light_queue_name
from quarry_mq.store.offsets import PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.state.in_flight_key import subscription_prefix

EVERYWHERE: Final = PhysicalOffset((1 << 63) - 1)
"""A position after every record, so that all queues end below it."""


class NamedQueues(Protocol):
    """The part of the message store that listing names needs."""

    def light_queues_ended(self, below: PhysicalOffset, key: bytes, prefix: str = ...) -> LightQueueStep: ...


def lite_topics_from(queues: NamedQueues, parent: str, key: bytes) -> tuple[Sequence[str], bytes | None]:
    """Return some lite topics of a topic from a key on (`b""`: the first), and the key of the next ones or None."""
    step = queues.light_queues_ended(EVERYWHERE, key, light_queue_prefix(parent))
    prefix = light_queue_prefix(parent)
    return [each.queue.topic.removeprefix(prefix) for each in of_parent(parent, step.ended)], step.next_key


def of_parent(parent: str, found: Sequence[LastEntry]) -> list[LastEntry]:
    """Return the light queues of this topic alone.

    The queues found may include those of a topic whose name is this one's, the separator and more.
    """
    return [each for each in found if (parse_light_queue_name(each.queue.topic) or ("",))[0] == parent]


class LightQueues:
    """The operations of delivery on a light queue, given by name, for one group."""

    def __init__(
        self,
        *,
        subscriptions: OpenSubscriptions,
        reset_offset: Callable[[str, QueueId, QueueOffset], None],
        deliveries: Deliveries,
        positions: Positions,
        source: MessageSource,
        state: GroupState,
        clock: Clock,
    ) -> None:
        self._subscriptions = subscriptions
        self._reset_offset = reset_offset
        self._deliveries = deliveries
        self._positions = positions
        self._source = source
        self._offsets = state.offsets
        self._writer = state.writer
        self._clock = clock

    def open(self, group: str, name: str) -> Subscription:
        """Return the group's subscription with its queue, opened if necessary. Raises OverLimit."""
        subscription = self._subscriptions.open(group, name)
        subscription.last_used_s = self._clock.monotonic_s()
        self._positions.open(subscription, LIGHT_QUEUE_NUMBER)
        return subscription

    def may_have_messages(self, group: str, name: str) -> bool:
        """Return whether the group may get messages now, or when what it has in flight becomes visible."""
        subscription = self._subscriptions.find(group, name)
        if subscription is not None:
            return subscription.may_have_messages
        queue = QueueId(name, LIGHT_QUEUE_NUMBER)
        next_offset = self._offsets.get(group, queue)
        if self._source.maximum(queue) > (QueueOffset(0) if next_offset is None else next_offset):
            return True
        return self._has_in_flight(group, subscription_prefix(group, name))

    def is_done(self, subscription: Subscription) -> bool:
        """Return whether the group has got and acknowledged everything; if so, the queue is marked as served."""
        progress = subscription.queues.get(LIGHT_QUEUE_NUMBER)
        if progress is None or subscription.is_due or self._source.maximum(progress.queue) > progress.next_offset:
            return False
        if self._deliveries.rows_of(subscription, progress):
            return False
        subscription.served(LIGHT_QUEUE_NUMBER, drained=True)
        return True

    def release(self, group: str, name: str) -> None:
        """Drop the subscription from memory if the group has nothing left. The changes so far must be written."""
        subscription = self._subscriptions.find(group, name)
        if subscription is None or subscription.may_have_messages or not subscription.is_idle:
            return
        if not self._writer.is_behind and not self._has_in_flight(group, subscription.prefix):
            self._deliveries.release(subscription)
            self._subscriptions.drop(subscription)

    def move(self, group: str, name: str, offset: QueueOffset) -> None:
        """Let the group continue at an offset; what it has in flight is deleted.

        The change has to be written before anything else reads the queue's state: a client moves thousands of queues,
        and none of them is opened.
        """
        queue = QueueId(name, LIGHT_QUEUE_NUMBER)
        is_open = self._subscriptions.find(group, name) is not None
        if not is_open and not self._has_in_flight(group, subscription_prefix(group, name)):
            self._offsets.stage(self._writer.batch(), group, queue, offset)
        else:
            self._reset_offset(group, queue, offset)

    def _has_in_flight(self, group: str, prefix: bytes) -> bool:
        if not self._deliveries.count_of_group(group):
            return False  # saves looking into each of a million queues
        return self._deliveries.first_offset(prefix, LIGHT_QUEUE_NUMBER) is not None
