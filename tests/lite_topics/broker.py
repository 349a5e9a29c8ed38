"""A whole broker with lite topics, and what a test may do to them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from quarry_mq.server.admin.administration import TopicChange
from quarry_mq.server.lite.lite_topics import LiteTopics
from quarry_mq.store.message import Message
from quarry_mq.store.metadata import TopicType
from quarry_mq.store.metadata.lite import light_queue_name, light_queue_prefix
from tests.conformance.broker import RunningBroker, until
from tests.store.assembly import message

MINUTE_S = 60.0
DAY_S = 86_400.0
TTL_MINUTES = 60
Test = Callable[[RunningBroker], Awaitable[None]]
WithBroker = Callable[..., None]

SECTIONS: dict[str, dict[str, Any]] = {
    "store": {"segment_size": 64 * 1024},
    "expiry": {"delete_when": [], "start_delay_ms": 0, "retention_hours": 1, "interval_ms": 3_600_000},
    "lite": {"expiry_interval_ms": 0},
}


def lite_topics(broker: RunningBroker) -> LiteTopics:
    return broker.broker._maintenance.lite_topics


async def expire(broker: RunningBroker) -> int:
    return await lite_topics(broker).expiry.remove_expired()


def make_parent(broker: RunningBroker, name: str = "P", minutes: int | None = TTL_MINUTES, queues: int = 3) -> None:
    attributes = {} if minutes is None else {"lite.topic.expiration": str(minutes)}
    change = TopicChange(type=TopicType.LITE, write_queues=queues, attributes=attributes)
    broker.broker._administration.create_topic(name, change)


def to_lite(*lites: str, parent: str = "P", queue: int = 0, body: bytes = b"body") -> Message:
    return message(parent, queue, body, INNER_MULTI_DISPATCH=",".join(light_queue_name(parent, lite) for lite in lites))


def store(broker: RunningBroker, *lites: str, parent: str = "P") -> None:
    """One message for each, spread over the queues of the parent."""
    messages = broker.store.messages
    messages.append([to_lite(lite, parent=parent, queue=number % 3) for number, lite in enumerate(lites)])
    messages.dispatch(messages.flush())


def there(broker: RunningBroker, parent: str = "P") -> set[str]:
    prefix = light_queue_prefix(parent)
    return {
        queue.topic.removeprefix(prefix)
        for queue in broker.store.messages.iterate_queues()
        if queue.topic.startswith(prefix)
    }


def removed(broker: RunningBroker, cause: str) -> float | None:
    return broker.registry.get_sample_value("quarry_queues_removed_total", {"cause": cause})


async def let_messages_expire(broker: RunningBroker) -> None:
    """Let everything stored up to now leave the log and the queues."""
    messages, expiry = broker.store.messages, broker.store.expiry
    written = messages.appended_up_to
    while expiry._segments.base_of(messages.appended_up_to) <= written:
        messages.append([message("filler", 0, bytes(8_000))])
    messages.dispatch(messages.flush())
    broker.clock.push(2 * 3600)
    await broker.broker._maintenance.retention.expire_now(dry_run=False)
    await until(lambda: expiry.minimum > written, "the log begins later")
    await until(lambda: not broker.broker._maintenance.cleaning.phase, "the queues are cleaned up")
