"""`quarry verify` over messages that wait: rows that the log does not know, and those that it misses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quarry_mq.kv import KeyRange, KeyValueEngine
from quarry_mq.protocol.names import HALF_TOPIC
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.pending import FAMILY, DueMessage, open_pending_engine
from quarry_mq.store.pending.rows import ALL_HALVES, ALL_TIMERS, TIMER_TOPIC, id_key
from quarry_mq.store.verify import Check, Note
from tests.store.assembly import message
from tests.verify.stores import delete, differences, opened, put, verified

DUE_MS = 4_000_000_000_000


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Three delayed messages and two half ones."""
    running = opened(tmp_path / "store")
    for number in range(3):
        late = message(TIMER_TOPIC, TIMER_DELIVER_MS=str(DUE_MS + number), UNIQ_KEY=f"late-{number}")
        running.messages.append([late])
    for number in range(2):
        running.messages.append([message(HALF_TOPIC, UNIQ_KEY=f"half-{number}")])
    running.messages.dispatch(running.messages.flush())
    running.close()
    return tmp_path / "store"


@contextmanager
def pending_rows(root: Path) -> Iterator[KeyValueEngine]:
    engine = open_pending_engine(StorePaths(root).pending_messages, create=False)
    try:
        yield engine
    finally:
        engine.close()


def first(engine: KeyValueEngine, keys: KeyRange) -> bytes:
    return engine.family(FAMILY).scan(keys, limit=1)[0][0]


def test_a_store_with_messages_that_wait_agrees(store: Path) -> None:
    report = verified(store)
    assert report.agrees
    assert tuple(report.counts[Check.PENDING]) == (5, 0)


@pytest.mark.parametrize("keys", [ALL_TIMERS, ALL_HALVES], ids=["delayed", "half"])
def test_a_message_that_would_never_be_delivered(store: Path, keys: KeyRange) -> None:
    with pending_rows(store) as engine:
        delete(engine, FAMILY, first(engine, keys))
    (difference,) = differences(store)
    assert (difference.check, difference.found) == (Check.PENDING, "none")


def test_a_message_that_would_be_delivered_again(store: Path) -> None:
    with pending_rows(store) as engine:
        row = DueMessage(DUE_MS, PhysicalOffset(1), 200)
        put(engine, FAMILY, row.key, row.row)
    (difference,) = differences(store)
    assert (difference.check, difference.expected) == (Check.PENDING, "no pending delayed message")


def test_a_size_that_is_not_that_of_the_record(store: Path) -> None:
    with pending_rows(store) as engine:
        [(key, value)] = engine.family(FAMILY).scan(ALL_TIMERS, limit=1)
        row = DueMessage.parse(key, value)
        put(engine, FAMILY, key, row._replace(size=row.size + 1).row)
    (difference,) = differences(store)
    assert difference.physical_offset == row.physical_offset
    assert f"{row.size} bytes" in difference.expected
    assert f"{row.size + 1} bytes" in difference.found


def test_a_half_message_that_its_id_does_not_lead_to(store: Path) -> None:
    with pending_rows(store) as engine:
        delete(engine, FAMILY, id_key("half-1"))
    (difference,) = differences(store)
    assert "half-1" in difference.expected


def test_what_expired_before_its_time_is_no_difference(tmp_path: Path) -> None:
    root = tmp_path / "store"
    running = opened(root)
    running.messages.append([message(HALF_TOPIC, UNIQ_KEY="half")])
    while running.messages.appended_up_to < 2 * 64 * 1024:
        running.messages.append([message("orders", 0, bytes(20_000))])
    running.messages.dispatch(running.messages.flush())
    running.close()
    (root / "commitlog" / f"{0:020d}").unlink()
    report = verified(root)
    assert report.counts[Check.PENDING].differences == 0
    assert report.notes[Note.EXPIRED_PENDING] == 1
