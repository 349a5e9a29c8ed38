"""Faults below and around delivery: unreadable records, failed writes, clocks, broken-off calls."""

from __future__ import annotations

from typing import NoReturn

import pytest

from quarry_mq.kv import EngineFull, KvError
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.server.settings.sections import DeliverySection, NewGroupStart
from quarry_mq.store.errors import StorePoisoned
from quarry_mq.store.message import QueueBounds, QueueId, QueueOffset
from quarry_mq.store.metadata.offsets import ConsumerOffsetTable
from quarry_mq.store.state.in_flight_key import delete_beyond
from tests.delivery.broker import GROUP, TOPIC, DeliveryBench

LATEST = BrokerSettings(delivery=DeliverySection(new_group_start=NewGroupStart.LATEST))


def test_a_record_that_cannot_be_read_is_reported_and_not_passed_over() -> None:
    bench = DeliveryBench(queues=1)
    for body in (b"a", b"b", b"c"):
        bench.send(body)
    bench.source.unreadable = {100}
    assert bench.receive().bodies == [b"a"], "what was read before is handed out"
    with pytest.raises(OSError, match="at 100"):
        bench.receive()
    bench.source.unreadable.clear()
    again = bench.receive()
    assert again.bodies == [b"b", b"c"]
    assert {each.attempt for each in again.messages} == {1}


def test_what_was_handed_out_before_an_unreadable_record_is_handed_out_once_over_a_restart() -> None:
    bench = DeliveryBench(queues=1)
    for body in (b"a", b"b"):
        bench.send(body)
    bench.source.unreadable = {100}
    assert bench.receive().bodies == [b"a"]
    bench.restart()
    bench.source.unreadable.clear()
    assert bench.receive().bodies == [b"b"]


def test_a_redelivery_that_cannot_be_read_is_tried_again() -> None:
    bench = DeliveryBench(queues=1)
    bench.send(b"m")
    bench.receive(invisible_s=5)
    bench.advance(5)
    bench.source.unreadable = {0}
    for _ in range(2):
        with pytest.raises(OSError, match="at 0"):
            bench.receive()
    bench.source.unreadable.clear()
    assert bench.receive().bodies == [b"m"]


def test_messages_that_were_given_up_are_passed_over_and_reported() -> None:
    bench = DeliveryBench(queues=1)
    for body in (b"a", b"b", b"c"):
        bench.send(body)
    first = bench.receive(batch=1, invisible_s=5)
    bench.source.given_up = {0, 100}
    assert bench.receive().bodies == [b"c"]
    bench.advance(5)
    assert bench.receive().bodies == [], "one that was in flight ends, too"
    assert [str(error) for error, _ in bench.reported] == [
        f"the record at offset {at} was damaged and has been given up" for at in (100, 0)
    ]
    assert bench.reported[0][1] == {"group": GROUP, "topic": TOPIC}
    assert first.bodies == [b"a"]
    bench.restart()
    assert bench.receive().bodies == []
    assert len(bench.reported) == 2


def test_a_queue_that_cannot_be_read_does_not_stop_the_others() -> None:
    bench = DeliveryBench(queues=3)
    for queue in range(3):
        bench.send(b"%d" % queue, queue=queue)
    bench.source.unreadable = {0}
    assert sorted(bench.receive().bodies) == [b"1", b"2"]
    for number in range(3, 6):
        bench.send(b"%d" % number, queue=number % 3)
    assert sorted(bench.receive().bodies) == [b"4", b"5"]


def test_a_queue_that_cannot_be_opened_takes_no_messages_of_others_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were taken already, and would have stayed hidden with nobody."""
    bench = DeliveryBench(queues=1)
    bench.receive()
    real_bounds = bench.source.bounds

    def bounds(queue: QueueId) -> QueueBounds:
        if queue.number == 1:
            raise KvError("block checksum mismatch")
        return real_bounds(queue)

    monkeypatch.setattr(bench.source, "bounds", bounds)
    for queue in range(2):
        bench.send(b"%d" % queue, queue=queue)
    assert bench.receive().bodies == [b"0"]
    with pytest.raises(KvError):
        bench.receive()
    monkeypatch.undo()
    assert bench.receive().bodies == [b"1"]


def test_an_error_that_no_receive_ends_with_is_reported() -> None:
    """Two bad queues, of which a receive can name one; and a bad queue beside one that always has something."""
    bench = DeliveryBench(queues=3)
    for queue in range(3):
        bench.send(b"%d" % queue, queue=queue)
    bench.source.unreadable = {0, 100}
    assert bench.receive().bodies == [b"2"]
    assert [str(error) for error, _ in bench.reported] == ["cannot read at 0", "cannot read at 100"]
    assert [where for _, where in bench.reported] == [{"group": GROUP, "topic": TOPIC}] * 2
    with pytest.raises(OSError, match="at 100"):
        bench.receive()
    assert [str(error) for error, _ in bench.reported[2:]] == ["cannot read at 0"]


def test_a_waiting_receive_hears_of_a_record_that_cannot_be_read() -> None:
    bench = DeliveryBench(queues=1)
    waiting = bench.receive(polling_s=20)
    bench.source.unreadable = {0}
    bench.send(b"m")
    assert waiting.ended
    assert isinstance(waiting.error, OSError)


def test_messages_in_queues_the_topic_no_longer_has_are_handed_out() -> None:
    bench = DeliveryBench(queues=8)
    for queue in range(8):
        bench.send(b"%d" % queue, queue=queue)
    bench.queues = 2
    assert len(bench.receive().bodies) == 8


def test_a_queue_that_is_new_to_a_group_is_read_from_its_first_message() -> None:
    """Where a new group starts at the end: that is about the group, not about queues that the topic grows."""
    bench = DeliveryBench(queues=1, settings=LATEST)
    bench.send(b"before")
    assert bench.receive().bodies == []
    waiting = bench.receive(polling_s=20)
    bench.send(b"while it waits", queue=1)
    assert waiting.bodies == [b"while it waits"]
    bench.restart()
    bench.source.add(QueueId(TOPIC, 2), b"while it was away", None)
    bench.queues = 3
    bench.delivery.start_group(GROUP, TOPIC, range(3))
    bench.end_pass()
    assert bench.receive().bodies == [b"while it was away"]
    assert bench.delivery.position(GROUP, QueueId(TOPIC, 0)) == (QueueOffset(1), 0)


@pytest.mark.parametrize("invisible_s", [60, None], ids=["hidden", "leased"])
def test_messages_of_a_call_that_broke_off_come_back_after_a_second(invisible_s: float | None) -> None:
    bench = DeliveryBench(queues=1)
    bench.alive.add("client")
    for body in (b"a", b"b"):
        bench.send(body)
    lost = bench.receive(invisible_s=invisible_s)
    bench.delivery.undeliverable(GROUP, TOPIC, [each.receipt_handle for each in lost.messages], has_begun=True)
    bench.acknowledge(lost.messages[0])  # this one had arrived
    bench.advance(0.9)
    assert bench.receive().bodies == []
    bench.advance(0.2)
    again = bench.receive()
    assert again.bodies == [b"b"]
    assert again.messages[0].attempt == 2
    bench.delivery.undeliverable(GROUP, TOPIC, [each.receipt_handle for each in lost.messages], has_begun=True)
    bench.advance(5)
    assert bench.receive().bodies == [], "a later delivery is not touched"


def fail_writes(bench: DeliveryBench, error: Exception = KvError("input/output error")) -> None:  # noqa: B008
    def refuse(*_: object, **__: object) -> NoReturn:
        raise error

    bench.engine.write = refuse  # type: ignore[method-assign]


def heal_writes(bench: DeliveryBench) -> None:
    del bench.engine.write


def test_after_a_write_that_failed_nothing_is_written_that_a_restart_would_misread() -> None:
    """A later batch holds a next offset above messages whose rows were lost: they would count as acknowledged."""
    bench = DeliveryBench(queues=1)
    for body in (b"a", b"b", b"c"):
        bench.send(body)
    bench.acknowledge(bench.receive(batch=1).messages[0])
    fail_writes(bench)
    failed = bench.receive(batch=1)
    assert isinstance(failed.error, StorePoisoned)
    heal_writes(bench)
    assert isinstance(bench.receive(batch=1).error, StorePoisoned)
    assert len(bench.failures) == 1
    bench.restart()
    assert bench.receive().bodies == [b"b", b"c"]


def test_a_full_disk_refuses_until_there_is_room_again_and_nothing_is_misread_after_it() -> None:
    bench = DeliveryBench(queues=1)
    for number in range(6):
        bench.send(b"%d" % number)
    acknowledged, _ = bench.receive(batch=2, invisible_s=10).messages
    fail_writes(bench, EngineFull("No space left on device"))
    for _ in range(2):
        assert isinstance(bench.receive(batch=1, invisible_s=10).error, EngineFull)
    bench.delivery.acknowledge(GROUP, TOPIC, acknowledged.receipt_handle)
    bench.end_pass()
    bench.advance(301)
    bench.delivery.drop_idle_subscriptions()
    heal_writes(bench)
    assert bench.receive(batch=1).bodies == [b"1"]
    assert bench.failures == []
    bench.restart()
    assert bench.delivery.inflight_count == 3
    assert bench.receive().bodies == [b"2", b"3", b"4", b"5"]
    bench.advance(31)
    attempts = [each.attempt for each in bench.receive().messages]
    assert attempts == [3, 2, 2, 2, 2], "what was refused for want of room was no attempt"


def test_a_group_deleted_on_a_full_disk_is_gone_once_it_is_deleted_again() -> None:
    bench = DeliveryBench(queues=1)
    bench.send(b"m")
    bench.receive()
    fail_writes(bench, EngineFull("No space left on device"))
    with pytest.raises(EngineFull):
        bench.delivery.delete_group(GROUP)
    heal_writes(bench)
    bench.delivery.delete_group(GROUP)
    bench.restart()
    assert bench.delivery.position(GROUP, QueueId(TOPIC, 0)) == (None, 0)


def test_an_acknowledgement_that_is_not_written_is_never_called_done() -> None:
    bench = DeliveryBench(queues=1)
    bench.send(b"m")
    delivered = bench.receive(invisible_s=10).messages[0]
    fail_writes(bench)
    outcomes: list[Exception | None] = []
    for _ in range(2):
        bench.delivery.acknowledge(GROUP, TOPIC, delivered.receipt_handle)
        bench.writer.when_written(outcomes.append)
        bench.end_pass()
    assert [type(outcome) for outcome in outcomes] == [StorePoisoned] * 2


@pytest.mark.parametrize("what", ["group", "topic"])
def test_deleting_what_cannot_be_written_is_an_error(what: str) -> None:
    bench = DeliveryBench(queues=1)
    bench.send(b"m")
    bench.receive()
    fail_writes(bench)
    with pytest.raises(StorePoisoned):
        bench.delivery.delete_group(GROUP) if what == "group" else bench.delivery.delete_topic(TOPIC)


@pytest.mark.parametrize("what", ["group", "topic"])
def test_a_deletion_is_stored_when_its_call_returns(what: str) -> None:
    bench = DeliveryBench(queues=1)
    bench.send(b"m")
    bench.receive()
    bench.delivery.delete_group(GROUP) if what == "group" else bench.delivery.delete_topic(TOPIC)
    bench.restart()  # before the pass ends
    assert bench.delivery.inflight_count == 0
    assert bench.delivery.position(GROUP, QueueId(TOPIC, 0)) == (None, 0)


def test_what_waits_for_its_time_is_bounded_by_what_is_in_flight() -> None:
    """Acknowledged messages must not be remembered for the rest of their invisible time, up to 12 hours."""
    bench = DeliveryBench(queues=1)
    for number in range(6_000):
        bench.source.add(QueueId(TOPIC, 0), b"%d" % number, None)
    kept = bench.receive(batch=100, invisible_s=1_000).messages
    while messages := bench.receive(invisible_s=43_200).messages:
        for delivered in messages:
            bench.delivery.acknowledge(GROUP, TOPIC, delivered.receipt_handle)
        bench.end_pass()
    assert bench.delivery.inflight_count == 100
    assert len(bench.delivery._deliveries._redelivery_timers) <= 4
    [subscription] = bench.delivery._subscriptions
    assert not any(each.unwritten for each in subscription.queues.values()), "what is written is not kept"
    bench.advance(1_000)
    again = [delivered for _ in range(4) for delivered in bench.receive().messages]
    assert [bytes(each.record.body) for each in again] == [bytes(each.record.body) for each in kept]


def test_after_a_stop_time_moves_nothing() -> None:
    bench = DeliveryBench(queues=1)
    bench.send(b"m")
    bench.receive(invisible_s=5)
    bench.delivery.stop()
    fail_writes(bench)
    bench.advance(10)
    assert bench.failures == []


def test_a_message_in_the_place_of_one_that_a_power_cut_took_is_new() -> None:
    """With `async` durability the log may lose its end; what groups had of it in flight is no longer theirs."""
    bench = DeliveryBench(queues=1)
    for body in (b"kept", b"lost", b"lost too"):
        bench.send(body)
    bench.receive(invisible_s=10)
    del bench.source.queues[QueueId(TOPIC, 0)][1:]
    # as the opening of a store does that finds its groups ahead of its log
    ConsumerOffsetTable(bench.engine).lower(bench.engine, bench.source.maximum)
    assert delete_beyond(bench.engine, bench.source.maximum) == 2
    bench.restart()
    bench.send(b"new")
    received = bench.receive()
    assert [(bytes(each.record.body), each.attempt) for each in received.messages] == [(b"new", 1)]
    bench.restart()
    assert bench.delivery.inflight_count == 2


@pytest.mark.parametrize("jump_s", [-3_600, 3_600])
def test_setting_the_clock_neither_hides_messages_nor_shows_them_early(jump_s: float) -> None:
    bench = DeliveryBench(queues=1)
    for body in (b"a", b"b"):
        bench.send(body)
    early, late = bench.receive(invisible_s=10).messages
    bench.clock.jump(jump_s)
    bench.advance(9)
    assert bench.receive().bodies == []
    bench.acknowledge(early)
    bench.advance(1)
    assert bench.receive(invisible_s=10).bodies == [bytes(late.record.body)]
    bench.advance(10)
    assert [each.attempt for each in bench.receive().messages] == [3]


@pytest.mark.parametrize("received_meanwhile", [False, True])
def test_where_a_new_group_starts_is_not_forgotten_on_a_full_disk(received_meanwhile: bool) -> None:
    """Its start was in the batch that failed; the messages sent since then are the group's."""
    bench = DeliveryBench(queues=2, settings=LATEST)
    bench.send(b"before")
    fail_writes(bench, EngineFull("No space left on device"))
    bench.delivery.start_group(GROUP, TOPIC, range(2))
    bench.end_pass()
    bench.send(b"since then")
    bench.send(b"since then", queue=1)
    if received_meanwhile:
        assert isinstance(bench.receive(batch=1, invisible_s=1).error, EngineFull)
    bench.advance(301)
    bench.delivery.drop_idle_subscriptions()
    heal_writes(bench)
    bench.delivery.start_group("another", TOPIC, range(2))
    bench.end_pass()
    bench.restart()
    assert bench.receive().bodies == [b"since then"] * 2


def test_a_group_that_receives_in_the_pass_of_its_start_begins_there() -> None:
    bench = DeliveryBench(queues=1, settings=LATEST)
    bench.send(b"before")
    bench.delivery.start_group(GROUP, TOPIC, range(1))
    assert bench.receive().bodies == []


def test_a_topic_deleted_after_a_full_disk_leaves_no_position() -> None:
    """Which groups read a topic is a row, too; without it a topic made anew began in its middle."""
    bench = DeliveryBench(queues=1)
    bench.send(b"m")
    fail_writes(bench, EngineFull("No space left on device"))
    bench.delivery.start_group(GROUP, TOPIC, range(1))
    bench.end_pass()
    heal_writes(bench)
    bench.acknowledge(bench.receive().messages[0])
    bench.restart()
    bench.delivery.delete_topic(TOPIC)
    bench.restart()
    assert bench.delivery.position(GROUP, QueueId(TOPIC, 0)) == (None, 0)
