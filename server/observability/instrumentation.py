"""Figures that are expensive to compute, each updated again and again in the background."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from quarry_mq.protocol.clock import Clock
from quarry_mq.server.counters import Traffic
from quarry_mq.server.delivery import Delivery
from quarry_mq.server.lag.consumer_lag import ConsumerLag
from quarry_mq.server.lag.measurement import GroupTopic
from quarry_mq.server.lag.stuck_groups import StuckGroups
from quarry_mq.server.observability.samples import NameCounts, Sampling, Steps, WaitingStats
from quarry_mq.server.pending import DelayedDelivery
from quarry_mq.server.settings.sections import MetricsSection
from quarry_mq.store.opening.open_store import OpenStore


class Background:
    """Hold the figures that are expensive to compute, each updated again and again in the background."""

    def __init__(
        self,
        review: Steps,
        *,
        lag: ConsumerLag,
        stuck: StuckGroups,
        waiting: WaitingStats,
        names: NameCounts,
        settings: MetricsSection,
        clock: Clock,
    ) -> None:
        self.lag: Final = lag
        self.stuck: Final = stuck
        self.waiting: Final = waiting
        self.names: Final = names
        self.groups_max: Final = settings.top_groups
        self.sampling: Final = Sampling(
            (review, waiting.steps, lag.steps, stuck.steps, names.steps),
            interval_s=settings.lag_interval_ms / 1000,
            clock=clock,
        )

    def stop(self) -> None:
        """Release the store, which is about to close. `sampling` must have been ended before."""
        self.lag.stop()
        self.waiting.stop()
        self.names.stop()


def make_background(
    store: OpenStore,
    settings: MetricsSection,
    *,
    delivery: Delivery,
    delays: DelayedDelivery,
    traffic: Traffic,
    clock: Clock,
    topic_exists: Callable[[str], bool],
    group_exists: Callable[[str], bool],
    consumers: Callable[[str, str], int],
) -> Background:
    """`consumers` returns how many connected consumers of a group subscribe to a topic."""

    def queue_count(name: str) -> int | None:
        topic = store.topics.get(name)
        return None if topic is None else topic.queue_count

    def read_at_start() -> Iterator[GroupTopic | None]:
        for group in store.groups.list():
            yield None
            for topic in store.offsets.topics_of(group.name, light_queues=False):
                yield GroupTopic(group.name, topic)

    lag = ConsumerLag(
        delivery,
        store.messages,
        pairs_max=settings.top_groups,
        clock=clock,
        queue_count=queue_count,
        reads=store.offsets.reads,
        stored=read_at_start,
    )
    waiting = WaitingStats(store.messages, delays, lambda: store.expiry.minimum, clock)

    def review() -> Iterator[None]:
        traffic.review(topic_exists, group_exists)
        yield

    names = NameCounts(store.topics, store.groups)
    stuck = StuckGroups(lambda: lag.found, consumers, limit_ms=settings.lag_limit_ms, clock=clock)
    return Background(review, lag=lag, stuck=stuck, waiting=waiting, names=names, settings=settings, clock=clock)
