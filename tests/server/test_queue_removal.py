"""Queues that nobody can use any more go by themselves, on a whole broker (server/maintenance/queue_cleanup.py)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import structlog

from quarry_mq.kv import EngineFull, KvError
from quarry_mq.server import tasks
from quarry_mq.server.maintenance import queue_cleanup
from quarry_mq.server.maintenance.queue_cleanup import QueueRemoval
from quarry_mq.store.layout.queue_phase import QueueMode
from quarry_mq.store.message import QueueId, QueueOffset
from tests.conformance.broker import RunningBroker, run, running_broker, until
from tests.conformance.client import Client
from tests.conformance.client import message as wire_message
from tests.store.assembly import message

HOUR_S = 3_600.0
MODES = pytest.mark.parametrize("mode", list(QueueMode))
Test = Callable[[RunningBroker], Awaitable[None]]


@pytest.fixture
def with_queues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Run a test on a broker that looks for queues to remove when the test says so."""

    def with_queues(test: Test, **consume_queue: object) -> None:
        async def whole() -> None:
            sections: dict[str, Any] = {
                "consume_queue": {"units_per_file": 16, **consume_queue},
                "store": {"segment_size": 64 * 1024},
                "expiry": {"delete_when": [], "start_delay_ms": 0, "retention_hours": 1},
            }
            async with running_broker(tmp_path, monkeypatch, **sections) as broker:
                await test(broker)

        run(whole())

    return with_queues


def removal(broker: RunningBroker) -> QueueRemoval:
    return broker.broker._maintenance.removal


def store_in(broker: RunningBroker, topic: str, *numbers: int, light: str = "") -> None:
    """Messages that are in the queues, whether the topic exists or not: what a rebuild leaves."""
    messages = broker.store.messages
    named = {"INNER_MULTI_DISPATCH": light} if light else {}
    messages.append([message(topic, number, b"body", **named) for number in numbers])
    messages.dispatch(messages.flush())


def topics_with_queues(broker: RunningBroker) -> set[str]:
    return {queue.topic for queue in broker.store.messages.iterate_queues()}


def removed(broker: RunningBroker, cause: str) -> float | None:
    return broker.broker._metrics._registry.get_sample_value("quarry_queues_removed_total", {"cause": cause})


# -- unknown topics


@MODES
def test_queues_of_topics_that_do_not_exist_go_and_all_others_stay(
    with_queues: Callable[..., None], mode: QueueMode
) -> None:
    """rmq#9454: also such as nobody has asked for since the start."""

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders")
        store_in(broker, "orders", 0, 1)
        store_in(broker, "ghost", 0, 1, 2, light="%LMQ%light")
        store_in(broker, "%RETRY%ghosts", 0)
        store_in(broker, "rmq_sys_SYNC_BROKER_MEMBER", 0)
        with structlog.testing.capture_logs() as logs:
            assert await removal(broker).remove_unknown() == 4
        assert topics_with_queues(broker) == {"orders", "%LMQ%light", "rmq_sys_SYNC_BROKER_MEMBER"}
        [line] = [each for each in logs if "do not exist" in each["event"]]
        assert (line["queues"], line["topics"]) == (4, ["ghost", "%RETRY%ghosts"])
        assert removed(broker, "unknown_topic") == 4
        assert await removal(broker).remove_unknown() == 0
        directories = {
            path.name for path in (broker.store.expiry._segments.directory.parent / "consumequeue").glob("*")
        }
        assert "ghost" not in directories

    with_queues(test, mode=mode)


def test_it_comes_by_itself_after_a_while_and_again(with_queues: Callable[..., None]) -> None:
    async def test(broker: RunningBroker) -> None:
        for _ in range(2):
            store_in(broker, "ghost", 0)
            await until(lambda: topics_with_queues(broker) == set(), "the removal of what nobody knows")

    with_queues(test, removal_delay_ms=0, removal_interval_ms=20)


@pytest.mark.parametrize("settings", [{"removal_delay_ms": 60_000}, {"removal_delay_ms": 0, "removal_interval_ms": 0}])
def test_it_does_not_come_sooner_nor_where_it_is_not_wanted(
    with_queues: Callable[..., None], settings: dict[str, object]
) -> None:
    async def test(broker: RunningBroker) -> None:
        store_in(broker, "ghost", 0)
        for _ in range(20):
            await asyncio.sleep(0.005)
        assert topics_with_queues(broker) == {"ghost"}

    with_queues(test, **settings)


def test_a_topic_that_is_made_meanwhile_keeps_its_queues(
    with_queues: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(broker: RunningBroker) -> None:
        for number in range(6):
            store_in(broker, f"late-{number}", 0)
        looked = QueueRemoval._look_for_unknown

        def look_then_make(self: QueueRemoval, after: str) -> Any:
            """Another thread has found all six; before the event loop hears of it, two of them are made."""
            found = looked(self, after)
            assert len(found[1]) in (6, 0)
            for number in (1, 4):
                if broker.store.topics.get(f"late-{number}") is None:
                    broker.topic(f"late-{number}")
            return found

        monkeypatch.setattr(QueueRemoval, "_look_for_unknown", look_then_make)
        assert await removal(broker).remove_unknown() == 4
        assert topics_with_queues(broker) == {"late-1", "late-4"}
        async with Client(broker.endpoint) as client:
            await client.sent(wire_message("late-1"))
        assert broker.store.messages.bounds(QueueId("late-1", 0)).maximum >= 1

    with_queues(test)


def test_the_progress_of_groups_goes_too(with_queues: Callable[..., None]) -> None:
    """A topic of that name made later begins at 0; a group that stood at 2 would miss its first messages."""

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        async with Client(broker.endpoint) as client:
            await client.sent(*[wire_message("orders") for _ in range(2)])
            assert len((await client.receive("billing", "orders")).messages) == 2
            broker.store.topics.delete("orders")
            assert await removal(broker).remove_unknown() == 1
            assert broker.store.offsets.get("billing", QueueId("orders", 0)) is None
            broker.topic("orders", queues=1)
            sent = await client.sent(*[wire_message("orders") for _ in range(3)])
            assert (await client.receive("billing", "orders")).ids == sent

    with_queues(test)


def test_a_deleted_topic_is_not_revived_by_those_who_poll(with_queues: Callable[..., None]) -> None:
    """rmq#9792: neither the poll that was waiting, nor the next one, nor a look at its offsets makes anything."""

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        async with Client(broker.endpoint) as client:
            await client.sent(wire_message("orders"))
            await client.receive("billing", "orders")
            waiting = asyncio.ensure_future(client.receive("billing", "orders", polling_s=5))
            await until(lambda: broker.broker._delivery.waiting_polls == 1, "the poll waits")
            broker.broker._administration.delete_topic("orders")
            assert (await waiting).messages == []
            await client.receive("billing", "orders")
        assert broker.store.topics.get("orders") is None
        assert topics_with_queues(broker) == set()
        assert list(broker.store.offsets.of_group("billing")) == []
        assert await removal(broker).remove_unknown() == 0

    with_queues(test)


def test_what_rocketmq_has_made_on_the_store_meanwhile_stays(with_queues: Callable[..., None], tmp_path: Path) -> None:
    """It knows of its topics in `config/`, which is read once; their messages must not go for that."""
    config = tmp_path / "store" / "config"
    config.mkdir(parents=True)
    (tmp_path / "store" / "commitlog").mkdir()
    rows = {name: {"topicName": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6} for name in ("old", "theirs")}
    (config / "topics.json").write_text(json.dumps({"topicConfigTable": {"old": rows["old"]}}))

    async def test(broker: RunningBroker) -> None:
        assert broker.store.topics.get("old") is not None
        (config / "topics.json").write_text(json.dumps({"topicConfigTable": rows}))
        for name in ("old", "theirs", "ghost"):
            store_in(broker, name, 0)
        with structlog.testing.capture_logs() as logs:
            assert await removal(broker).remove_unknown() == 1
            assert await removal(broker).remove_unknown() == 0
        assert topics_with_queues(broker) == {"old", "theirs"}
        assert [each["topics"] for each in logs if "RocketMQ" in each["event"]] == [["theirs"]], "told once"
        broker.topic("theirs", queues=1)
        async with Client(broker.endpoint) as client:
            assert len((await client.receive("billing", "theirs")).messages) == 1

    with_queues(test)


def test_many_unknown_topics_go_in_steps_and_reach_the_disk(
    with_queues: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_cleanup, "NAMES_PER_LOOK", 40)
    monkeypatch.setattr(tasks, "REMOVED_PER_FLUSH", 100)

    async def test(broker: RunningBroker) -> None:
        for number in range(300):
            store_in(broker, f"ghost-{number}", 0)
            store_in(broker, f"%LMQ%light-{number}", 0)
        broker.topic("ghost-77")
        turns = 0

        async def turn() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        turning = asyncio.ensure_future(turn())
        assert await removal(broker).remove_unknown() == 299
        turning.cancel()
        assert turns > 30, "the event loop goes on meanwhile"
        assert {topic for topic in topics_with_queues(broker) if topic.startswith("ghost")} == {"ghost-77"}
        assert broker.store.messages.queues_durable_up_to == broker.store.messages.dispatched_up_to

    with_queues(test)


def test_one_topic_that_cannot_be_removed_does_not_keep_the_others(
    with_queues: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(broker: RunningBroker) -> None:
        for name in ("ghost-1", "ghost-2", "ghost-3"):
            store_in(broker, name, 0)
        messages = broker.store.messages
        delete = messages.delete_topic

        def refuse(topic: str) -> int:
            if topic == "ghost-2":
                raise KvError("consumequeue/ghost-2: Directory not empty")
            return delete(topic)

        with monkeypatch.context() as patched, structlog.testing.capture_logs() as logs:
            patched.setattr(messages, "delete_topic", refuse)
            assert await removal(broker).remove_unknown() == 2
            assert await removal(broker).remove_unknown() == 0
        told = [each for each in logs if each["log_level"] == "error"]
        assert [each["error"] for each in told] == ["consumequeue/ghost-2: Directory not empty"], "once"
        assert await removal(broker).remove_unknown() == 1

    with_queues(test)


def test_a_full_disk_ends_a_sweep_and_not_the_broker(
    with_queues: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(broker: RunningBroker) -> None:
        store_in(broker, "ghost", 0)
        full = True
        delete = broker.store.messages.delete_topic

        def refuse(topic: str) -> int:
            if full:
                raise EngineFull("No space left on device")
            return delete(topic)

        monkeypatch.setattr(broker.store.messages, "delete_topic", refuse)
        with structlog.testing.capture_logs() as logs:
            await until(lambda: any(each["log_level"] == "error" for each in logs), "the complaint")
        full = False
        await until(lambda: topics_with_queues(broker) == set(), "the next try")

    with_queues(test, removal_delay_ms=0, removal_interval_ms=20)


# -- idle light queues

LIGHT = "%LMQ%client-7"


async def expire_all(broker: RunningBroker) -> None:
    """Let everything stored up to now expire."""
    messages, expiry = broker.store.messages, broker.store.expiry
    written = messages.appended_up_to
    while expiry._segments.base_of(messages.appended_up_to) <= written:
        messages.append([message("orders", 0, bytes(8_000))])
    messages.dispatch(messages.flush())
    broker.clock.push(2 * HOUR_S)
    # the first record behind tells how old the segment is
    await broker.broker._maintenance.retention.expire_now(dry_run=False)
    await until(lambda: expiry.minimum > written, "the log begins later")


def test_a_light_queue_goes_once_it_was_empty_for_long_enough(with_queues: Callable[..., None]) -> None:
    """rocketmq-mqtt#287: a queue for each client that ever was, until the limit stopped all sends."""

    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        store_in(broker, "orders", 0, 0, 0, light=LIGHT)
        batch = broker.store.state_engine.batch()
        broker.store.offsets.stage(batch, "mqtt", QueueId(LIGHT, 0), QueueOffset(3))
        broker.store.state_engine.write(batch)
        assert await removal(broker).remove_idle() == 0
        await expire_all(broker)
        store_in(broker, "orders", 0, light="%LMQ%client-8")
        assert broker.store.messages.bounds(QueueId(LIGHT, 0)) == (3, 3)
        for hours in (0.0, 2.0, 2.9):
            broker.clock.push(hours * HOUR_S)
            assert await removal(broker).remove_idle() == 0, "empty, but not for five hours"
        broker.clock.push(0.2 * HOUR_S)
        assert await removal(broker).remove_idle() == 1
        assert topics_with_queues(broker) == {"orders", "%LMQ%client-8"}
        assert broker.store.offsets.get("mqtt", QueueId(LIGHT, 0)) is None
        assert removed(broker, "idle") == 1
        store_in(broker, "orders", 0, light=LIGHT)
        assert broker.store.messages.bounds(QueueId(LIGHT, 0)) == (3, 4), "no number comes twice"

    with_queues(test, idle_light_queue_hours=5)


def test_a_restart_takes_nothing_from_the_time_a_queue_was_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sections: dict[str, Any] = {
        "consume_queue": {"idle_light_queue_hours": 0.000_001},
        "store": {"segment_size": 64 * 1024},
        "expiry": {"delete_when": [], "start_delay_ms": 0, "retention_hours": 1},
    }

    async def before() -> None:
        async with running_broker(tmp_path, monkeypatch, **sections) as broker:
            broker.topic("orders", queues=1)
            store_in(broker, "orders", 0, light=LIGHT)
            await expire_all(broker)
            broker.clock.push(-2 * HOUR_S)
            assert await removal(broker).remove_idle() == 0, "the first note is made now"

    async def after() -> None:
        async with running_broker(tmp_path, monkeypatch, **sections) as broker:
            assert await removal(broker).remove_idle() == 1

    run(before())
    run(after())


@pytest.mark.parametrize("mode", [QueueMode.ROCKSDB, QueueMode.FILE, QueueMode.DOUBLE_WRITE])
def test_unless_it_is_wanted_no_light_queue_goes_nor_one_in_files(
    with_queues: Callable[..., None], mode: QueueMode
) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        store_in(broker, "orders", 0, light=LIGHT)
        await expire_all(broker)
        for _ in range(3):
            broker.clock.push(1_000 * HOUR_S)
            assert await removal(broker).remove_idle() == 0
            assert await removal(broker).remove_unknown() == 0
        assert LIGHT in topics_with_queues(broker)

    with_queues(test, mode=mode, **({} if mode is QueueMode.ROCKSDB else {"idle_light_queue_hours": 1}))
