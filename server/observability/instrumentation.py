"""Figures that are expensive to compute, each updated again and again in the background."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from quarry_mq.protocol.clock import Clock
from quarry_mq.server.counters import Traffic
from quarry_mq.server.delivery import Delivery
from quarry_mq.server.lag.consumer_lag import ConsumerLag
from quarry_mq.server.lag.measurement import GroupTopic
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
        waiting: WaitingStats,
        names: NameCounts,
        settings: MetricsSection,
        clock: Clock,
    ) -> None:
        self.lag: Final = lag
        self.waiting: Final = waiting
        self.names: Final = names
        self.sampling: Final = Sampling(
            (review, waiting.steps, lag.steps, names.steps), interval_s=settings.lag_interval_ms / 1000, clock=clock
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
) -> Background:
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
    return Background(review, lag=lag, waiting=waiting, names=names, settings=settings, clock=clock)
