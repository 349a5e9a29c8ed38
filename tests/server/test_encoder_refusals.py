"""A message that an encoder refuses fails alone: its sender gets an error, the others of the batch are stored."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

import pytest

from quarry_mq.server.tasks import LoopThreads
from quarry_mq.store import message_store
from quarry_mq.store.commitlog import writer as batches
from quarry_mq.store.commitlog.writer import native_batch_encoder
from quarry_mq.store.errors import StorePoisoned
from quarry_mq.store.message import DispatchRequest, PhysicalOffset, QueueId
from quarry_mq.store.native import NATIVE
from quarry_mq.store.record import encode_record
from quarry_mq.store.settings import Durability
from tests.server.committing import Bench, run
from tests.store.assembly import assemble, message
from tests.store.test_append_encoded import encoded

BAD = b"what no encoder takes"
REFUSALS = [
    struct.error("'i' format requires -2147483648 <= number <= 2147483647"),
    ValueError("the properties' length"),
    OverflowError("int too big to convert"),
    TypeError("'str' object cannot be cast as 'bytes'"),
    KeyError("orders"),
    RuntimeError("anything"),
    MemoryError(),
]


def refusing(error: Exception) -> Callable[..., bytes]:
    def encode(taken: Any, *arguments: Any, **options: Any) -> bytes:
        if bytes(taken.body) == BAD:
            raise error
        return encode_record(taken, *arguments, **options)

    return encode


async def require_healthy(bench: Bench, stored: int) -> None:
    """Nothing is poisoned, later sends work, and what is in the log is whole and exactly what was answered."""
    assert bench.poisoned == []
    (place,) = await bench.send(message(body=b"later"))
    assert place.queue_offset == stored
    await bench.commit.drain()
    assert bench.store.bounds(QueueId("orders", 0)) == (0, stored + 1)
    again = assemble(bench.disk, bench.engine)
    assert again.report.end == bench.store.appended_up_to
    bodies = [bytes(again.store.record_at(request.physical_offset).body) for request in bench.arrived]
    assert BAD not in bodies
    assert len(bodies) == stored + 1


@pytest.mark.parametrize("durability", list(Durability))
@pytest.mark.parametrize("error", REFUSALS, ids=lambda error: type(error).__name__)
def test_of_messages_that_are_encoded_here_one_is_refused(
    monkeypatch: pytest.MonkeyPatch, error: Exception, durability: Durability
) -> None:
    monkeypatch.setattr(message_store, "encode_record", refusing(error))

    async def test(threads: LoopThreads) -> None:
        bench = Bench(threads, durability)
        sends = [bench.send(message(body=body)) for body in (b"1", BAD, b"2", BAD, b"3")]
        found = await asyncio.gather(*sends, return_exceptions=True)
        assert [each[0].queue_offset for each in found if not isinstance(each, BaseException)] == [0, 1, 2]
        assert [each for each in found if isinstance(each, BaseException)] == [error, error]
        await require_healthy(bench, 3)

    run(test)


@pytest.mark.parametrize("durability", list(Durability))
@pytest.mark.parametrize("error", REFUSALS, ids=lambda error: type(error).__name__)
def test_of_encoded_messages_none_is_stored_and_who_sent_them_hears_it(
    monkeypatch: pytest.MonkeyPatch, error: Exception, durability: Durability
) -> None:
    """They are told of together, and sent one by one by whoever hears it."""
    monkeypatch.setattr(batches, "encode_record", refusing(error))

    async def test(threads: LoopThreads) -> None:
        bench = Bench(threads, durability)
        beside = bench.send(message(body=b"beside"))
        with pytest.raises(type(error)):
            await bench.send_encoded(encoded(message()), encoded(message(body=BAD)))
        await beside
        await require_healthy(bench, 1)

    run(test)


@pytest.mark.parametrize(
    "changed",
    [
        {"raw_properties": b"a\x01" + b"b" * 32_760 + b"\x02"},
        {"topic": "t" * 256},
        {"queue_number": 2**31},
        {"born_timestamp_ms": 2**63},
        {"born_host": (b"12345", 1)},
    ],
    ids=lambda changed: next(iter(changed)),
)
@pytest.mark.skipif(NATIVE is None, reason="no native part")
def test_so_does_who_sent_what_the_native_encoder_refuses(changed: dict[str, Any]) -> None:
    async def test(threads: LoopThreads) -> None:
        assert NATIVE is not None
        bench = Bench(threads, Durability.ASYNC)
        bench.store._encode_batch = native_batch_encoder(NATIVE)
        with pytest.raises((ValueError, OverflowError, TypeError, struct.error)):
            await bench.send_encoded(encoded(message()), encoded(message())._replace(**changed))
        await require_healthy(bench, 0)

    run(test)


def test_a_name_that_no_key_can_hold_is_refused_before_anything_is_written() -> None:
    """Where a queue goes on is asked before its message is encoded, with the keys that its entries will have."""

    async def test(threads: LoopThreads) -> None:
        bench = Bench(threads, Durability.SYNC)
        good, bad = bench.send(message()), bench.send(message(topic="CHECKPOINT_TOPIC"))
        await good
        with pytest.raises(ValueError, match="CHECKPOINT_TOPIC"):
            await bad
        await require_healthy(bench, 1)

    run(test)


def test_who_fails_to_hear_of_a_send_harms_no_other() -> None:
    async def test(threads: LoopThreads) -> None:
        bench = Bench(threads, Durability.SYNC)

        def fails(_appended: object, _error: object) -> None:
            raise ValueError("the answer cannot be encoded")

        first = bench.send(message())
        bench.commit.send([message()], fails)
        await asyncio.gather(first, bench.send(message()))
        await require_healthy(bench, 3)

    run(test)


def test_who_waits_for_messages_and_fails_does_not_stop_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(threads: LoopThreads) -> None:
        bench = Bench(threads, Durability.SYNC)
        heard: list[DispatchRequest] = []

        def fails(requests: Any) -> None:
            heard.extend(requests)
            raise KeyError("a property that is no number")

        monkeypatch.setattr(bench.commit, "_messages_arrived", fails)
        await bench.send(message())
        monkeypatch.setattr(bench.commit, "_messages_arrived", bench.arrived.extend)
        bench.arrived += heard
        await require_healthy(bench, 1)

    run(test)


def test_a_write_that_failed_is_the_stores_end_whatever_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies behind the log's end is unknown then, so nothing more may be written."""

    async def test(threads: LoopThreads) -> None:
        bench = Bench(threads, Durability.SYNC)
        await bench.send(message())

        def fails(_position: int, _data: bytes) -> None:
            raise ValueError("mmap closed or invalid")

        segment = bench.opened.segments.open_for_writing(PhysicalOffset(0))
        monkeypatch.setattr(type(segment), "write", lambda _segment, position, data: fails(position, data))
        with pytest.raises(ValueError, match="mmap"):
            await bench.send(message())
        with pytest.raises(StorePoisoned):
            await bench.send(message())
        assert len(bench.poisoned) == 1

    run(test)
