"""Messages acknowledged together: which of them, and that nothing of them is left."""

from __future__ import annotations

import pytest

from quarry_mq.kv import KeyRange
from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.server.delivery import Delivered
from quarry_mq.server.errors import InvalidReceiptHandle
from quarry_mq.store.errors import StorePoisoned
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.state.identity import INFLIGHT
from tests.delivery.broker import GROUP, TOPIC, DeliveryBench


def received(bench: DeliveryBench, count: int = 3, invisible_s: float | None = 30) -> list[Delivered]:
    for number in range(count):
        bench.send(b"%d" % number, queue=number % bench.queues)
    messages = list(bench.receive(invisible_s=invisible_s).messages)
    assert len(messages) == count
    return messages


def handles_of(messages: list[Delivered]) -> list[str]:
    return [each.receipt_handle for each in messages]


@pytest.mark.parametrize("invisible_s", [30, None], ids=["hidden", "leased"])
def test_all_are_done_at_once_and_nothing_is_left_of_them(invisible_s: float | None) -> None:
    bench = DeliveryBench()
    messages = received(bench, 10, invisible_s)
    assert bench.acknowledge_all(handles_of(messages)) == [True] * 10
    assert bench.delivery.inflight_count == 0
    bench.end_pass()
    assert bench.engine.family(INFLIGHT).scan(KeyRange(b"", None)) == []
    bench.delivery.client_lost("client")
    bench.advance(100)
    assert bench.receive().bodies == []
    bench.restart()
    assert bench.receive().bodies == []


def test_what_is_in_doubt_is_left_alone_and_the_others_are_done() -> None:
    bench = DeliveryBench()
    replaced, over, done, doubled = received(bench, 4)
    bench.acknowledge(over)
    bench.delivery.change_invisible(GROUP, TOPIC, replaced.receipt_handle, 10_000)
    handles = handles_of([replaced, over, done, doubled, doubled])
    assert bench.acknowledge_all(handles) == [False, False, True, True, False]
    assert bench.delivery.inflight_count == 1
    bench.end_pass()
    assert bench.acknowledge_all(handles_of([done])) == [False], "its row is gone: who asks again is told elsewhere"


def test_what_changed_in_the_same_pass_is_left_alone() -> None:
    bench = DeliveryBench()
    [message] = received(bench, 1)
    handle = bench.delivery.change_invisible(GROUP, TOPIC, message.receipt_handle, 10_000).receipt_handle
    assert bench.acknowledge_all([handle]) == [False]
    bench.end_pass()
    assert bench.acknowledge_all([handle]) == [True]


@pytest.mark.parametrize("together", [True, False])
def test_what_was_forgotten_in_the_same_pass_ends_only_once(*, together: bool) -> None:
    bench = DeliveryBench(queues=1)
    messages = received(bench, 3)
    bench.delivery.reset_offset(GROUP, QueueId(TOPIC, 0), QueueOffset(0))
    if together:
        assert bench.acknowledge_all(handles_of(messages)) == [False] * 3
    else:
        for each in messages:
            with pytest.raises(InvalidReceiptHandle):
                bench.delivery.acknowledge(GROUP, TOPIC, each.receipt_handle)
    assert bench.delivery.inflight_count == 0
    bench.end_pass()
    assert bench.delivery.inflight_count == 0
    assert bench.receive().bodies == [b"0", b"1", b"2"]


def test_what_is_visible_or_kept_by_its_lease_alone_is_left_alone() -> None:
    for invisible_s in (5, None):
        bench = DeliveryBench()
        bench.alive.add("client")
        [message] = received(bench, 1, invisible_s)
        bench.clock.advance(61)
        assert bench.acknowledge_all(handles_of([message])) == [False]


def test_an_ordered_group_goes_the_ordinary_way() -> None:
    bench = DeliveryBench(queues=1)
    bench.send(b"m")
    messages = list(bench.receive(ordered=True).messages)
    assert bench.acknowledge_all(handles_of(messages)) == [False]


def test_what_is_not_in_memory_goes_the_ordinary_way() -> None:
    bench = DeliveryBench()
    messages = received(bench)
    bench.restart()
    assert bench.acknowledge_all(handles_of(messages)) == [False] * 3
    assert bench.delivery.subscription_count == 0
    for each in messages:
        bench.acknowledge(each)
    assert bench.delivery.inflight_count == 0


def test_a_failed_write_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = DeliveryBench()
    messages = received(bench)
    assert bench.acknowledge_all(handles_of(messages)) == [True] * 3
    told: list[Exception | None] = []
    bench.writer.when_written(told.append)

    def fail(*_: object, **__: object) -> None:
        raise OSError("no disk")

    monkeypatch.setattr(MemoryEngine, "write", fail)
    bench.end_pass()
    [error] = told
    assert isinstance(error, StorePoisoned)


def test_changes_that_are_gathered_come_into_the_batch_of_their_pass() -> None:
    bench = DeliveryBench()
    messages = received(bench)
    done: list[bool] = []
    told: list[Exception | None] = []

    def change() -> None:
        done.extend(bench.acknowledge_all(handles_of(messages)))
        bench.writer.when_written(told.append)
        if len(done) == len(messages):
            bench.writer.before_write(change)

    bench.writer.before_write(change)
    bench.writer.write_now()
    assert not done
    bench.end_pass()
    assert done == [True] * 3 + [False] * 3
    assert told == [None, None]
