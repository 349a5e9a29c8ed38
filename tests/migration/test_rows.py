"""Rows of a migration."""

from __future__ import annotations

from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.store.layout.queue_phase import QueuePhase
from quarry_mq.store.migration import AgreementReport, MigrationRows, MigrationStep, QueueDifference
from quarry_mq.store.migration.rows import Removing
from quarry_mq.store.state.identity import FAMILIES, META

REPORT = AgreementReport(
    began_at_ms=1,
    ended_at_ms=2,
    asked_by="operator",
    log_begin=0,
    log_end=100,
    queues=3,
    units=40,
    differences={"missing": 2},
    first=(
        QueueDifference("missing", "orders", 0, 7, "RocksDB has no unit 7"),
        QueueDifference("missing", "orders", 1, None, "x"),
    ),
)


def rows() -> MigrationRows:
    return MigrationRows(MemoryEngine(FAMILIES, write_ahead_log=True))


def step(origin: QueuePhase, target: QueuePhase, at_ms: int = 5) -> MigrationStep:
    return MigrationStep(at_ms=at_ms, origin=origin, target=target, asked_by="operator")


def test_steps_are_read_in_the_order_in_which_they_were_taken() -> None:
    kept = rows()
    taken = [step(QueuePhase.FILE, QueuePhase.DOUBLE_WRITE, at) for at in range(300)]
    for each in taken:
        kept.take(each)
    assert list(kept.steps()) == taken


def test_a_step_writes_the_phase_and_what_it_leaves_after() -> None:
    engine = MemoryEngine(FAMILIES, write_ahead_log=True)
    kept = MigrationRows(engine)
    assert kept.removing() is None
    kept.take(step(QueuePhase.READING_ROCKSDB, QueuePhase.ROCKSDB), removing=Removing.FILES)
    assert engine.family(META).get(b"queue_phase") == b"rocksdb"
    assert kept.removing() is Removing.FILES
    kept.removed()
    assert kept.removing() is None


def test_a_report_comes_back_as_it_was() -> None:
    kept = rows()
    assert kept.report() is None
    kept.save_report(REPORT)
    assert kept.report() == REPORT
    assert not REPORT.agrees


def test_the_first_doubt_stays() -> None:
    kept = rows()
    kept.doubt("nothing to be doubted")
    assert kept.report() is None
    kept.save_report(REPORT)
    kept.doubt("a crash")
    kept.doubt("another crash")
    report = kept.report()
    assert report is not None
    assert report.doubt == "a crash"


def test_without_rocksdb_nothing_is_known_of_it() -> None:
    kept = rows()
    kept.save_report(REPORT)
    kept.set_doubled_topics(["orders*"])
    assert kept.doubled_topics() == ("orders*",)
    kept.take(step(QueuePhase.DOUBLE_WRITE, QueuePhase.FILE), removing=Removing.ROCKSDB)
    assert (kept.report(), kept.doubled_topics()) == (None, None)
    kept.set_doubled_topics([])
    kept.set_doubled_topics(None)
    assert kept.doubled_topics() is None
