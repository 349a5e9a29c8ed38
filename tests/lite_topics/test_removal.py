"""Lite topics go while messages come, many at a time, and with their topic (server/lite/expiry.py)."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from quarry_mq.server import tasks
from quarry_mq.server.lite.expiry import LiteTopicExpiry
from quarry_mq.store.consumequeue import names
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.metadata.lite import light_queue_name
from tests.conformance.broker import RunningBroker, until
from tests.lite_topics.broker import (
    MINUTE_S,
    TTL_MINUTES,
    WithBroker,
    expire,
    lite_topics,
    make_parent,
    removed,
    store,
    there,
    to_lite,
)


def test_no_message_that_comes_meanwhile_is_lost(with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The walk is on another thread, flushes are on others, and senders come between any two steps."""
    monkeypatch.setattr(names, "LIGHT_ROWS_PER_STEP", 5)
    monkeypatch.setattr(tasks, "STEP_MAX", 3)
    monkeypatch.setattr(tasks, "REMOVED_PER_FLUSH", 20)
    chance = random.Random(7)
    lites = [f"s{number:02}" for number in range(60)]

    async def test(broker: RunningBroker) -> None:
        make_parent(broker)
        commit = broker.broker._commit
        store(broker, *lites)
        rounds_done = total = 0
        sent_in_round: dict[str, list[bytes]] = {}

        async def send_for_a_while(number: int) -> None:
            for count in range(15):
                lite, body = chance.choice(lites), f"{rounds_done}-{number}-{count}".encode()
                stored = asyncio.get_running_loop().create_future()

                def answered(_: Any, error: Exception | None, stored: Any = stored) -> None:
                    stored.set_exception(error) if error else stored.set_result(None)

                commit.send([to_lite(lite, queue=number % 3, body=body)], answered)
                await stored
                sent_in_round.setdefault(lite, []).append(body)
                await asyncio.sleep(chance.random() * 0.002)

        for _ in range(4):
            broker.clock.push((TTL_MINUTES + 1) * MINUTE_S)
            sent_in_round.clear()
            senders = [asyncio.ensure_future(send_for_a_while(number)) for number in range(4)]
            gone = 0
            while not all(sender.done() for sender in senders):
                gone += await expire(broker)
            for sender in senders:
                sender.result()
            assert there(broker) == set(sent_in_round)
            for lite, bodies in sent_in_round.items():
                queue = QueueId(light_queue_name("P", lite), 0)
                entries = broker.store.messages.entries(queue, QueueOffset(0), 999)
                found = [bytes(broker.store.messages.read(each).body) for each in entries]
                # what has been there before the round has gone, or not if a message came first
                assert [body for body in found if body in bodies] == bodies
            rounds_done += 1
            total += gone
        assert total > 60, "rounds did remove something"

    with_broker(test, store={"segment_size": 1024 * 1024})


def test_a_message_between_the_look_and_the_removal_keeps_the_lite_topic(
    with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(broker: RunningBroker) -> None:
        make_parent(broker)
        store(broker, "numbered", "dispatched", "gone")
        broker.clock.push((TTL_MINUTES + 1) * MINUTE_S)
        messages = broker.store.messages
        looked = LiteTopicExpiry._too_old

        def look_then_send(self: LiteTopicExpiry, *arguments: Any) -> Any:
            """The other thread has found all three; the event loop waits for it, and so cannot be in the way."""
            found = looked(self, *arguments)
            assert len(found.ended) == 3
            store(broker, "dispatched")
            messages.append([to_lite("numbered")])
            return found

        monkeypatch.setattr(LiteTopicExpiry, "_too_old", look_then_send)
        assert await expire(broker) == 1
        messages.dispatch(messages.flush())
        assert there(broker) == {"numbered", "dispatched"}
        for lite in ("numbered", "dispatched"):
            assert messages.bounds(QueueId(light_queue_name("P", lite), 0)) == (0, 2)

    with_broker(test)


def test_many_go_in_steps_and_reach_the_disk(with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "REMOVED_PER_FLUSH", 1_000)

    async def test(broker: RunningBroker) -> None:
        make_parent(broker)
        messages = broker.store.messages
        for begin in range(0, 3_000, 300):
            messages.append([to_lite(*(f"s{number:05}" for number in range(begin, begin + 300)))])
        messages.dispatch(messages.flush())
        broker.clock.push((TTL_MINUTES + 1) * MINUTE_S)
        turns = 0

        async def turn() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        turning = asyncio.ensure_future(turn())
        assert await expire(broker) == 3_000
        turning.cancel()
        assert turns > 30, "the event loop goes on meanwhile"
        assert there(broker) == set()
        assert messages.queues_durable_up_to == messages.dispatched_up_to

    with_broker(test, store={"segment_size": 1024 * 1024})


# -- with their topic


def test_lite_topics_go_with_their_topic(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        make_parent(broker, minutes=None)
        make_parent(broker, "PP", minutes=None)
        store(broker, "a", "b", "c")
        store(broker, "a", parent="PP")
        broker.broker._administration.delete_topic("P")
        make_parent(broker, minutes=None)
        store(broker, "b", "d")
        await until(lambda: removed(broker, "lite_without_topic") == 2, "what had no message since goes")
        assert there(broker) == {"b", "d"}
        assert there(broker, "PP") == {"a"}

    with_broker(test)


def test_lite_topics_of_a_topic_that_is_missing_go_after_a_while(with_broker: WithBroker) -> None:
    """Another member has deleted it, or the broker was killed right after it did."""

    async def test(broker: RunningBroker) -> None:
        make_parent(broker, minutes=None)
        store(broker, "a", "b")
        broker.store.topics.delete("P")
        assert await expire(broker) == 0
        broker.clock.push(9 * MINUTE_S)
        assert await expire(broker) == 0
        make_parent(broker, minutes=None)
        broker.clock.push(9 * MINUTE_S)
        assert await expire(broker) == 0
        broker.store.topics.delete("P")
        assert await expire(broker) == 0
        broker.clock.push(11 * MINUTE_S)
        assert await expire(broker) == 2
        assert there(broker) == set()

    with_broker(test)


def test_a_topic_that_rocketmq_knows_keeps_its_lite_topics(
    with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(broker: RunningBroker) -> None:
        store(broker, "a", parent="theirs")
        maintenance = broker.broker._maintenance
        monkeypatch.setattr(maintenance.removal._topics_of_rocketmq, "_names", frozenset({"theirs"}))
        assert await expire(broker) == 0
        broker.clock.push(11 * MINUTE_S)
        assert await expire(broker) == 0
        assert there(broker, "theirs") == {"a"}

    with_broker(test)


def test_the_counts_follow(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        counts = lite_topics(broker).counts
        await until(lambda: counts.count_of("P") == 0, "the count of nothing")
        make_parent(broker)
        store(broker, "a", "b")
        for lite in ("a", "b"):
            counts.born("P", lite)
        assert broker.registry.get_sample_value("quarry_lite_topics") == 2
        broker.clock.push((TTL_MINUTES + 1) * MINUTE_S)
        assert await expire(broker) == 2
        assert broker.registry.get_sample_value("quarry_lite_topics") == 0

    with_broker(test)
