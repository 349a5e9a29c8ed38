"""The subscriptions in memory: how they are opened, and when they are dropped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Final

from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.names import is_light_queue
from quarry_mq.server.delivery.deliveries import Deliveries
from quarry_mq.server.delivery.model import MessageSource
from quarry_mq.server.delivery.retry_topics import RetryTopic, retry_topics
from quarry_mq.server.delivery.state.positions import Positions
from quarry_mq.server.delivery.state.registry import Subscriptions
from quarry_mq.server.delivery.state.subscription import Subscription, WaitingPoll
from quarry_mq.server.errors import OverLimit
from quarry_mq.server.settings.sections import LimitsSection

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
