"""No call of the native part keeps memory: each message makes several of them, and a broker runs for months."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from random import Random

import pytest

from bench.native_part import open_connection, pieces
from bench.raw_client import CallMaker
from bench.send_load import send_body
from bench.waiting_sends import PATH
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.server.remoting.sends.fast import make_reader
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.server.wire.parsing import shape_of
from quarry_mq.store.consumequeue.rocks_layout import BOUND, ENTRY, entry_key, keys_of
from quarry_mq.store.message import (
    Appended,
    ConsumeQueueEntry,
    DispatchRequest,
    Host,
    Message,
    PhysicalOffset,
    QueueId,
    QueueOffset,
)
from quarry_mq.store.native import Native
from quarry_mq.store.record import StoredMessage, encode_record
from tests.native.test_remoting_sends import frame_of

TIMES = 2_000
SENT = [send_body(Random(1)) for _ in range(4)]
PIECES = [
    "requests to send, read and checked",
    "rounds made",
    "answers to sends",
    "records read",
    "messages of receives written",
    "acknowledgements read",
]


def kept_per_time(work: Callable[[], object]) -> float:
    """Return how many pieces of memory a call keeps on average, once the first calls have made what is kept."""
    for _ in range(50):
        work()
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(TIMES):
        work()
    gc.collect()
    return (sys.getallocatedblocks() - before) / TIMES


@pytest.mark.parametrize("name", PIECES)
def test_what_is_done_for_a_message_keeps_nothing(native: Native, name: str) -> None:
    works = pieces(native, SENT)
    assert list(works) == PIECES
    for work in works[name]:
        assert kept_per_time(work) < 0.1


def test_records_that_are_read_together_keep_nothing(native: Native) -> None:
    host, places = Host(b"\x7f\0\0\1", 10_911), [PhysicalOffset(1 << 40), PhysicalOffset((1 << 40) + 20_000)]
    message = Message("orders", 1, b"body" * 200, {}, 1, host, host)
    properties = b"a\x01b\x02"
    records = [
        encode_record(message, QueueOffset(1 << 40), place, 1 << 40, properties, crc_property=True) for place in places
    ]
    segment = bytearray(40_000)
    for place, record in zip(places, records, strict=True):
        segment[place - places[0] : place - places[0] + len(record)] = record
    entries = [ConsumeQueueEntry(QueueOffset(7), place, len(records[0]), 0, 0) for place in places]
    reader = native.RecordReader(StoredMessage, Host, "")
    view, end = memoryview(segment).toreadonly(), places[0] + len(segment)

    def fetch(_position: int, _size: int) -> None: ...

    assert reader.read_all(view, places[0], end, entries, fetch) is not None
    assert kept_per_time(lambda: reader.read_all(view, places[0], end, entries, fetch)) < 0.1
    assert kept_per_time(lambda: reader.join(view, places[0], end, entries, fetch)) < 0.1
    assert kept_per_time(lambda: reader.read_all(view, places[0], end - 30_000, entries, fetch)) < 0.1


def test_entries_and_bounds_of_queues_keep_nothing(native: Native) -> None:
    queues = [QueueId("orders", number) for number in range(8)]
    table, make = native.MaxOffsetTable(1_000), native.EntryMaker(ConsumeQueueEntry).make
    rows = [(entry_key(queues[0], QueueOffset(1 << 40)), ENTRY.pack(1 << 40, 1_000, 1 << 40, 1 << 40))]
    max_offsets = [(keys_of(queue)[1], BOUND.pack(1 << 40, 1 << 40)) for queue in queues]
    begins = [(key, 1 << 40) for key, _ in max_offsets]
    requests = [
        DispatchRequest(*queue, QueueOffset(1 << 41), PhysicalOffset(1 << 41), 1_000, 0, 1 << 40, 0, {}, ())
        for queue in queues
    ]
    for work in (
        lambda: make(rows),
        lambda: table.put_all(max_offsets),
        lambda: table.put_min_offsets(begins),
        lambda: table.find(list(queues)),
        lambda: table.ends(list(queues)),
        lambda: table.place(queues[0], 1 << 39, 32, 1),
        lambda: table.stage(requests),
        lambda: table.remove(max_offsets[0][0]),
    ):
        assert kept_per_time(work) < 0.1


def test_calls_and_their_parts_keep_nothing(native: Native) -> None:
    connection, maker = open_connection(native.CallScanner), CallMaker(Random(1), PATH)
    numbers = iter(range(1 << 30))

    def calls() -> None:
        connection.receive(b"".join(maker.call(next(numbers), body) for body in SENT))
        connection.sender.take()

    assert kept_per_time(calls) < 0.5
    shape = shape_of(service.SendMessageRequest.DESCRIPTOR)
    deliveries = [(1 << 40, 1 << 40)]
    assert kept_per_time(lambda: native.fields_left(SENT[0], shape, 10_000)) < 0.1
    assert kept_per_time(lambda: native.receipt_handles(bytes(32), "g\0t\0", 70_000, deliveries, 1 << 40)) < 0.1
    assert kept_per_time(lambda: native.ack_answer("id" * 20, "h" * 52)) < 0.1


def test_sends_by_remoting_keep_nothing(native: Native) -> None:
    reader, host, frames = (
        make_reader(native, BrokerSettings()),
        Host(b"\x7f\0\0\1", 4_464),
        [frame_of({})] * 2,
    )
    appended = [Appended(QueueOffset(1 << 40), PhysicalOffset(1 << 40), 1_000, 1 << 40)] * 2

    def served() -> None:
        run = reader.read(frames, 0, host, host, 1 << 40)
        assert (run.count, len(run.messages), run.topics, run.size) == (2, 2, {"orders": 1}, 8)
        assert run.answers(appended, 0, host)

    assert kept_per_time(served) < 0.1
