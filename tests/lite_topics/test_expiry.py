"""Lite topics go when their last message is too old, on a whole broker (server/lite/expiry.py)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import structlog

from quarry_mq.kv import EngineFull
from quarry_mq.server.admin.administration import TopicChange
from quarry_mq.server.delivery import ReceiveRequest
from quarry_mq.server.delivery.model import Delivered
from quarry_mq.server.errors import InvalidReceiptHandle
from quarry_mq.server.filters import TagFilter
from quarry_mq.store.consumequeue import names
from quarry_mq.store.layout.queue_phase import QueueMode
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.metadata import TopicType
from quarry_mq.store.metadata.lite import light_queue_name, light_queue_prefix
from tests.conformance.broker import RunningBroker, run, running_broker, until
from tests.lite_topics.broker import (
    DAY_S,
    MINUTE_S,
    SECTIONS,
    TTL_MINUTES,
    Test,
    WithBroker,
    expire,
    let_messages_expire,
    lite_topics,
    make_parent,
    removed,
    store,
    there,
)
from tests.store.assembly import message

TWO_HOURS_MS = 7_200_000

# -- by their age


def test_a_lite_topic_goes_when_its_last_message_is_too_old(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        make_parent(broker)
        store(broker, "old", "kept", "old")
        broker.clock.push((TTL_MINUTES - 1) * MINUTE_S)
        store(broker, "kept", "young")
        assert await expire(broker) == 0
        broker.clock.push(2 * MINUTE_S)
        with structlog.testing.capture_logs() as logs:
            assert await expire(broker) == 1
        assert there(broker) == {"kept", "young"}
        assert broker.store.messages.entries(QueueId(light_queue_name("P", "old"), 0), QueueOffset(0), 9) == []
        [line] = [each for each in logs if each["event"] == "lite topics have expired"]
        assert (line["topic"], line["lite_topics"], line["looked_at"]) == ("P", 1, 3)
        assert removed(broker, "lite_expired") == 1
        assert await expire(broker) == 0
        broker.clock.push(TTL_MINUTES * MINUTE_S)
        assert await expire(broker) == 2
        assert there(broker) == set()

    with_broker(test)


def test_one_that_comes_again_begins_again_and_no_number_comes_twice(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        make_parent(broker)
        store(broker, "a", "a", "a")
        broker.clock.push((TTL_MINUTES + 1) * MINUTE_S)
        assert await expire(broker) == 1
        store(broker, "a", "b")
        queue = QueueId(light_queue_name("P", "a"), 0)
        assert broker.store.messages.bounds(queue) == (3, 4)
        assert [each.queue_offset for each in broker.store.messages.entries(queue, QueueOffset(0), 9)] == [3]

    with_broker(test)


def test_progress_and_subscriptions_go_with_it_however_much_was_not_read(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        make_parent(broker)
        store(broker, "a", "a", "b")
        batch = broker.store.state_engine.batch()
        for group in ("readers", "others"):
            for lite in ("a", "b"):
                broker.store.offsets.stage(batch, group, QueueId(light_queue_name("P", lite), 0), QueueOffset(1))
        broker.store.state_engine.write(batch)
        broker.clock.push((TTL_MINUTES - 1) * MINUTE_S)
        store(broker, "b")
        broker.clock.push(2 * MINUTE_S)
        assert await expire(broker) == 1
        left = {(group, queue.topic) for group, queue, _ in broker.store.offsets.all_rows()}
        assert left == {(group, light_queue_name("P", "b")) for group in ("readers", "others")}

    with_broker(test)


def test_what_is_in_flight_goes_with_it(with_broker: WithBroker) -> None:
    """Who abandons a session leaves its last message unacknowledged."""

    async def test(broker: RunningBroker) -> None:
        make_parent(broker)
        store(broker, "a", "a", "b")
        delivery = broker.delivery
        received: list[Delivered] = []

        def receive(lite: str) -> None:
            request = ReceiveRequest(
                "readers", light_queue_name("P", lite), range(1), TagFilter.parse("*"), 32, TWO_HOURS_MS, "client"
            )
            delivery.receive(request, 0.0, lambda messages, _: received.extend(messages))

        receive("a")
        receive("b")
        await until(lambda: len(received) == 3, "the messages")
        broker.clock.push((TTL_MINUTES - 1) * MINUTE_S)
        store(broker, "b")
        broker.clock.push(2 * MINUTE_S)
        assert delivery.inflight_count == 3
        assert await expire(broker) == 1
        assert delivery.inflight_count == 1
        with pytest.raises(InvalidReceiptHandle):
            delivery.acknowledge("readers", "P", received[0].receipt_handle)
        delivery.acknowledge("readers", "P", received[2].receipt_handle)
        store(broker, "a")
        received.clear()
        receive("a")
        await until(lambda: len(received) == 1, "the first message of its next life")
        assert received[0].attempt == 1

    with_broker(test, delivery={"new_group_start": "earliest"})


def test_the_shortest_time_is_a_quarter_of_an_hour(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        make_parent(broker, minutes=1)
        store(broker, "a")
        broker.clock.push(14.9 * MINUTE_S)
        assert await expire(broker) == 0
        broker.clock.push(0.2 * MINUTE_S)
        assert await expire(broker) == 1

    with_broker(test)


def test_only_lite_topics_of_topics_that_want_it_are_looked_at(
    with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """rmq#10929: the work is that of what may go, not that of all light queues of the broker."""

    async def test(broker: RunningBroker) -> None:
        make_parent(broker)
        make_parent(broker, "for-ever", minutes=None)
        make_parent(broker, "never", minutes=-1)
        broker.topic("fifo", TopicType.FIFO)
        for parent in ("P", "for-ever", "never", "fifo"):
            store(broker, "a", "b", parent=parent)
        messages = broker.store.messages
        messages.append([message("P", 0, b"body", INNER_MULTI_DISPATCH="%LMQ%client")])
        messages.dispatch(messages.flush())
        broker.clock.push(40 * DAY_S)
        looked_at: list[str] = []
        walk = messages.light_queues_ended

        def watched(below: Any, key: bytes, prefix: str = "") -> Any:
            looked_at.append(prefix)
            return walk(below, key, prefix)

        monkeypatch.setattr(messages, "light_queues_ended", watched)
        assert await expire(broker) == 2
        assert looked_at == [light_queue_prefix("P")]
        for parent in ("for-ever", "never", "fifo"):
            assert there(broker, parent) == {"a", "b"}

    with_broker(test)


def test_no_record_is_read(with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(broker: RunningBroker) -> None:
        make_parent(broker)
        store(broker, "a", "b")
        broker.clock.push((TTL_MINUTES + 1) * MINUTE_S)
        store(broker, "b")
        for name in ("read", "record_at", "_record"):
            monkeypatch.delattr(type(broker.store.messages), name)
        assert await expire(broker) == 1

    with_broker(test)


def test_a_clock_that_jumps_ahead_takes_nothing(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        make_parent(broker)
        store(broker, "a")
        broker.clock.jump(10 * DAY_S)
        assert await expire(broker) == 0

    with_broker(test)


@pytest.mark.parametrize("parent_goes_on", [False, True])
def test_one_whose_messages_have_left_the_log_stays_for_its_time(with_broker: WithBroker, parent_goes_on: bool) -> None:
    """The log keeps messages for hours, a lite topic may stay for weeks: its entries no longer say how old it is."""

    async def test(broker: RunningBroker) -> None:
        make_parent(broker, minutes=10 * 24 * 60)
        store(broker, "a")
        await let_messages_expire(broker)
        assert await expire(broker) == 0
        for _ in range(9):
            broker.clock.push(DAY_S)
            if parent_goes_on:
                store(broker, "b")
            assert await expire(broker) == 0
        assert "a" in there(broker)
        broker.clock.push(1.1 * DAY_S)
        if parent_goes_on:
            store(broker, "b")
        assert await expire(broker) == 1
        assert "a" not in there(broker)

    with_broker(test)


def test_it_goes_after_a_restart_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def life(test: Test) -> None:
        async with running_broker(tmp_path, monkeypatch, **SECTIONS) as broker:
            await test(broker)

    async def before(broker: RunningBroker) -> None:
        make_parent(broker)
        store(broker, "a", "b")

    async def after(broker: RunningBroker) -> None:
        broker.clock.push((TTL_MINUTES + 1) * MINUTE_S)
        store(broker, "b")
        assert await expire(broker) == 1
        assert there(broker) == {"b"}

    async def at_last(broker: RunningBroker) -> None:
        assert there(broker) == {"b"}
        await until(lambda: lite_topics(broker).counts.count_of("P") == 1, "the count")

    for test in (before, after, at_last):
        run(life(test))


def test_it_comes_by_itself(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        make_parent(broker)
        for lite in ("a", "b"):
            store(broker, lite)
            broker.clock.push((TTL_MINUTES + 1) * MINUTE_S)
            await until(lambda: there(broker) == set(), "the lite topic goes")

    with_broker(test, lite={"expiry_interval_ms": 20})


def test_a_sweep_ends_when_the_topic_says_something_else(
    with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody sees what goes, and asks for more time."""
    monkeypatch.setattr(names, "LIGHT_ROWS_PER_STEP", 2)

    async def test(broker: RunningBroker) -> None:
        make_parent(broker)
        store(broker, *(f"s{number}" for number in range(10)))
        broker.clock.push((TTL_MINUTES + 1) * MINUTE_S)
        administration = broker.broker._administration
        change = TopicChange(attributes={"lite.topic.expiration": "43200"})

        removal = lite_topics(broker).removal
        gone = removal._gone

        def ask_for_more_time(names: Sequence[str]) -> None:
            gone(names)
            administration.update_topic("P", change)

        monkeypatch.setattr(removal, "_gone", ask_for_more_time)
        assert 0 < await expire(broker) <= 4
        assert await expire(broker) == 0

    with_broker(test)


def test_lite_topics_in_files_stay(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        make_parent(broker)
        store(broker, "a")
        broker.clock.push(40 * DAY_S)
        assert await expire(broker) == 0
        assert there(broker) == {"a"}

    with_broker(test, consume_queue={"mode": QueueMode.DOUBLE_WRITE, "units_per_file": 16})


def test_a_full_disk_ends_a_sweep_and_the_next_one_goes_on(
    with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(broker: RunningBroker) -> None:
        make_parent(broker)
        store(broker, "a")
        broker.clock.push((TTL_MINUTES + 1) * MINUTE_S)
        remove = broker.store.messages.remove_ended
        full = True

        def refuse(found: Sequence[Any]) -> None:
            if full:
                raise EngineFull("No space left on device")
            remove(found)

        monkeypatch.setattr(broker.store.messages, "remove_ended", refuse)
        with structlog.testing.capture_logs() as logs:
            await until(lambda: any(each["log_level"] == "error" for each in logs), "the complaint")
        full = False
        await until(lambda: there(broker) == set(), "the next try")

    with_broker(test, lite={"expiry_interval_ms": 20})
