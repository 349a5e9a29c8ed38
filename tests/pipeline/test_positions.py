"""The table `positions` beside the rows that it is made of."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import EqualTo

from quarry_mq.kv import KeyValueEngine
from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.pipeline.source.derived.positions import Position, joined
from quarry_mq.server.delivery.state.inflight import InFlight, InFlightTable
from quarry_mq.store.errors import StoreDamaged, StoreLocked
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.metadata import ConsumerOffsetTable
from quarry_mq.store.rocketmq import read_metadata
from quarry_mq.store.state.identity import FAMILIES, INFLIGHT, OFFSETS, open_state_engine
from quarry_mq.store.state.in_flight_key import ROWS, parse_key, subscription_prefix
from tests import golden
from tests.conftest import GoldenStore
from tests.pipeline.tables import table
from tests.pipeline.test_rebuild import open_and_close

ROW = InFlight(1_700_000_000_000, 1, 0, 1, "client")


def stage(engine: KeyValueEngine, group: str, queue: QueueId, offset: int | None, taken: int) -> None:
    batch = engine.batch()
    if offset is not None:
        ConsumerOffsetTable(engine).stage(batch, group, queue, QueueOffset(offset))
    for number in range(taken):
        prefix = subscription_prefix(group, queue.topic)
        InFlightTable(engine).put(batch, prefix, queue.number, QueueOffset(number), ROW)
    engine.write(batch, sync=True)


@pytest.mark.parametrize("name", golden.HALF_SLOW)
def test_positions_of_rocketmq_are_its_offsets(golden_store: GoldenStore, name: str) -> None:
    root = golden_store(name) / "store"
    metadata = read_metadata(PosixDisk(), root)
    assert metadata.offsets
    assert table(root, table="positions") == [
        {"group": group, "topic": queue.topic, "queueId": queue.number, "nextOffset": offset, "inFlight": None}
        for group, queue, offset in (*metadata.offsets, *metadata.light_offsets)
    ]


def test_positions_tell_how_many_messages_are_in_flight(golden_copy: GoldenStore) -> None:
    root = golden_copy("rocks-clean") / "store"
    open_and_close(root)
    before = {(row["group"], row["topic"], row["queueId"]): row for row in table(root, table="positions")}
    assert {row["inFlight"] for row in before.values()} == {0}
    engine = open_state_engine(StorePaths(root).quarry, create=False)
    stage(engine, "readers", QueueId("acme-orders", 2), 9, 3)
    engine.close()
    expected = {"group": "readers", "topic": "acme-orders", "queueId": 2, "nextOffset": 9, "inFlight": 3}
    found = table(root, EqualTo(("group",), "readers"), table="positions")
    assert found == [expected]
    assert len(table(root, table="positions")) == len(before) + 1


names = st.sampled_from(["a", "b", "aa", "é", "zz", "%LMQ%1"])
holders = st.tuples(names, st.builds(QueueId, names, st.integers(0, 3)))
rows = st.dictionaries(holders, st.tuples(st.none() | st.integers(0, 99), st.integers(0, 3)), max_size=12)


@given(rows)
def test_offsets_and_deliveries_meet_in_the_order_of_their_keys(
    stored: dict[tuple[str, QueueId], tuple[int | None, int]],
) -> None:
    engine = MemoryEngine(FAMILIES, write_ahead_log=True)
    for (group, queue), (offset, taken) in stored.items():
        stage(engine, group, queue, offset, taken)
    offsets = (((group, queue), offset) for group, queue, offset in ConsumerOffsetTable(engine).all_rows())
    deliveries = (parse_key(key)[:2] for key, _ in engine.family(INFLIGHT).iterate(ROWS))
    assert sorted(joined(offsets, deliveries)) == sorted(
        Position(group, queue, QueueOffset(offset), taken)
        for (group, queue), (offset, taken) in stored.items()
        if offset is not None
    )


def test_a_store_that_a_broker_runs_on_is_refused(golden_copy: GoldenStore) -> None:
    root = golden_copy("rocks-clean") / "store"
    lock = PosixDisk().lock(StorePaths(root).lock)
    try:
        with pytest.raises(StoreLocked):
            table(root, table="positions")
    finally:
        lock.release()


@pytest.mark.parametrize(("key", "value"), [(b"\x01short", b""), (b"\x01\0\0\0\1g\0\0\0\1t\0\0\0\0", b"7 bytes")])
def test_what_is_no_row_is_reported(golden_copy: GoldenStore, key: bytes, value: bytes) -> None:
    root: Path = golden_copy("rocks-clean") / "store"
    open_and_close(root)
    engine = open_state_engine(StorePaths(root).quarry, create=False)
    batch = engine.batch()
    batch.put(engine.family(OFFSETS), key, value)
    engine.write(batch, sync=True)
    engine.close()
    with pytest.raises(StoreDamaged, match=f"{root}/quarry: an invalid row"):
        table(root, table="positions")
