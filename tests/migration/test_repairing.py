"""Files and RocksDB that disagree: found by their bounds, named, and repaired on request alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from quarry_mq.kv import WriteBatch
from quarry_mq.protocol.clock import ManualClock
from quarry_mq.store.consumequeue import DoubleWriteConsumeQueues, FileConsumeQueues, RocksConsumeQueues
from quarry_mq.store.consumequeue.rocks_layout import BOUND, ENTRIES_FAMILY, OFFSET_FAMILY, entry_key, maximum_key
from quarry_mq.store.errors import StoreUnusable
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.queue_phase import QueueMode, QueuePhase
from quarry_mq.store.message import PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.metadata import READ_WRITE, Topic, TopicType
from quarry_mq.store.migration import MigrationRows
from quarry_mq.store.migration.comparison import AgreementReport, begin_comparison
from quarry_mq.store.tools.queue_repair import Repaired, _Repair, repair_agreement
from tests.migration.test_offline import agrees, shown
from tests.store.test_queue_modes import opened, send

ORDERS = QueueId("orders", 0)
LITE = QueueId("%LMQ%lite", 0)


def repaired(root: Path) -> Repaired:
    return repair_agreement(PosixDisk(), ManualClock(), root, asked_by="operator", report=lambda _: None)


def bounds_of(root: Path, complete_from: int | None = None) -> AgreementReport:
    store = opened(root)
    queues = store.queues.store
    assert isinstance(queues, DoubleWriteConsumeQueues)
    since = None if complete_from is None else PhysicalOffset(complete_from)
    comparison = begin_comparison(queues, ManualClock(), asked_by="a start", complete_from=since, bounds_only=True)
    while comparison.step():
        pass
    comparison.close()
    store.close()
    return comparison.report()


@pytest.fixture(params=[QueuePhase.VERIFIED, QueuePhase.READING_ROCKSDB], ids=["files read", "RocksDB read"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    store = opened(tmp_path, QueueMode.DOUBLE_WRITE)
    store.topics.create(Topic("orders", TopicType.NORMAL, 1, 1, READ_WRITE, {}), internal=True)
    send(store, 40)
    store.identity.queue_phase = request.param.value
    store.close()
    return tmp_path


def spoil(root: Path) -> None:
    """Take the last unit of one queue and its maximum out of RocksDB, and change a unit of another."""
    store = opened(root)
    engine, rocks = store.queues.engine, store.queues.rocks
    assert engine is not None
    assert rocks is not None
    last = rocks.entries(ORDERS, QueueOffset(38), 1)[0]
    batch: WriteBatch = engine.batch()
    batch.delete(engine.family(ENTRIES_FAMILY), entry_key(ORDERS, QueueOffset(39)))
    batch.put(engine.family(OFFSET_FAMILY), maximum_key(ORDERS), BOUND.pack(last.physical_offset, 38))
    light = engine.family(ENTRIES_FAMILY).get(entry_key(LITE, QueueOffset(2)))
    assert light is not None
    batch.put(engine.family(ENTRIES_FAMILY), entry_key(LITE, QueueOffset(2)), light[:-9] + b"\x07" + light[-8:])
    engine.write(batch)
    engine.flush((ENTRIES_FAMILY, OFFSET_FAMILY))
    store.close()


def test_queues_that_agree_have_equal_bounds_and_nothing_is_repaired(root: Path) -> None:
    assert bounds_of(root).agrees
    done = repaired(root)
    assert done.queues == ()
    assert done.found is done.left
    assert done.left.agrees


def test_bounds_tell_of_a_queue_that_lags(root: Path) -> None:
    """rmq#10417 and its like: seen at the start, with the queue named, and not by a consumer weeks later."""
    spoil(root)
    report = bounds_of(root)
    assert report.differences == {"maximum": 1}
    assert [(each.topic, each.queue_number) for each in report.first] == [ORDERS]
    assert report.first[0].text == "the next offset is 40 in files, 39 in RocksDB"


def test_bounds_tell_of_a_queue_that_begins_late(root: Path) -> None:
    store = opened(root)
    rocks = store.queues.rocks
    assert rocks is not None
    engine = store.queues.engine
    assert engine is not None
    batch = engine.batch()
    for offset in range(3):
        batch.delete(engine.family(ENTRIES_FAMILY), entry_key(ORDERS, QueueOffset(offset)))
    engine.write(batch)
    engine.flush((ENTRIES_FAMILY,))
    store.close()
    report = bounds_of(root)
    assert [(each.kind, each.text) for each in report.first] == [
        ("minimum", "the first offset is 0 in files, 3 in RocksDB")
    ]


def test_what_rocksdb_does_not_have_yet_is_no_difference(tmp_path: Path) -> None:
    store = opened(tmp_path, QueueMode.FILE)
    send(store, 10)
    since = store.messages.dispatched_up_to
    store.close()
    store = opened(tmp_path, QueueMode.DOUBLE_WRITE)
    send(store, 1)
    store.close()
    assert bounds_of(tmp_path, complete_from=since).agrees
    assert not bounds_of(tmp_path).agrees
    done = repaired(tmp_path)
    assert done.found.agrees
    assert (done.found.units, done.queues) == (2, ())


def test_the_kind_that_is_not_read_is_made_to_agree(root: Path) -> None:
    spoil(root)
    done = repaired(root)
    assert done.found.differences.keys() == {"missing_in_rocksdb", "tags_code", "maximum"} or done.phase.reads_rocksdb
    assert set(done.queues) == {ORDERS, LITE}
    assert done.left.agrees
    assert bounds_of(root).agrees
    expected = 39 if done.phase.reads_rocksdb else 40
    assert [each.queue_offset for each in shown(root)[ORDERS]] == list(range(expected))
    assert agrees(root) is not done.phase.reads_rocksdb, "what is read is what counts, right or wrong"
    store = opened(root)
    assert store.migration.rows.report() == done.left
    store.close()


def test_one_kind_cannot_disagree(tmp_path: Path) -> None:
    opened(tmp_path).close()
    with pytest.raises(StoreUnusable, match="has one kind of queues"):
        repaired(tmp_path)


def test_what_is_reported_as_repaired_is_durable_before(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a power cut would bring back what differed, beside a report that all agrees."""
    spoil(root)
    events: list[str] = []

    def noting(owner: type, name: str, event: str) -> None:
        original = getattr(owner, name)

        def noted(*args: object, **kwargs: object) -> object:
            events.append(event)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, noted)

    for name in ("_put_in_files", "_put_in_rocksdb"):
        noting(_Repair, name, "put")
    noting(FileConsumeQueues, "flush_entries", "files")
    noting(RocksConsumeQueues, "flush", "rocksdb")
    noting(MigrationRows, "save_report", "report")
    assert len(repaired(root).queues) == 2
    last_put = len(events) - 1 - events[::-1].index("put")
    assert {"files", "rocksdb"} <= set(events[last_put : events.index("report")])
