"""A store that is taken through the phases by hand, in the order in which the broker does it."""

from __future__ import annotations

from quarry_mq.store.layout.queue_phase import QueuePhase
from quarry_mq.store.migration import AgreementReport
from quarry_mq.store.opening.open_store import OpenStore

CLEAN = AgreementReport(
    began_at_ms=1, ended_at_ms=2, asked_by="test", log_begin=0, log_end=0, queues=0, units=0, differences={}
)


def step(store: OpenStore, target: QueuePhase) -> None:
    """One step, all three parts of it."""
    migration = store.migration
    if target is QueuePhase.ROCKSDB:
        store.messages.flush()
        store.messages.flush_queues()
    engine = migration.prepare(target)
    migration.switch(target, "test", engine)()


def remove_files(store: OpenStore) -> None:
    removal = store.migration.removal()
    assert removal is not None
    while removal.step():
        pass
    store.migration.removed()


def backfill(store: OpenStore) -> None:
    """All of it, portion by portion."""
    work = store.migration.backfill()
    if work is None:
        return
    try:
        while (portion := work.read()) is not None:
            while work.is_stale(portion):
                work.look_up_again(portion)
            while work.put(portion):
                pass
        while work.raise_max_offsets():
            pass
        store.messages.flush()
        store.messages.flush_queues()
        work.save(work.end)
    finally:
        work.close()


def advance(store: OpenStore) -> QueuePhase:
    backfill(store)
    target = store.migration.target_of_advance()
    if store.migration.needs_comparison(target):
        store.migration.keep_report(CLEAN)
    step(store, target)
    return target


def roll_back(store: OpenStore) -> QueuePhase:
    target = store.migration.target_of_rollback()
    step(store, target)
    return target
