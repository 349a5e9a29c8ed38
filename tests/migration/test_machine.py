"""The steps from file queues to RocksDB: which there are, what each of them asks for, and what it leaves behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.store.errors import Busy, Forbidden, StoreUnusable
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.queue_phase import QueueMode, QueuePhase, QueuePlace, QueuePlaces
from quarry_mq.store.opening.open_store import OpenStore, open_store
from quarry_mq.store.settings import StoreSettings
from tests.migration.walking import CLEAN, advance, remove_files, roll_back, step
from tests.store.test_queue_modes import LITE, ORDERS, bodies, crash, entries, send

PHASES = list(QueuePhase)


def opened(
    root: Path,
    mode: QueueMode | None = None,
    places: QueuePlaces = QueuePlaces(),  # noqa: B008 - frozen
    doubled: tuple[str, ...] | None = None,
) -> OpenStore:
    settings = StoreSettings(
        root=root,
        segment_size=64 * 1024,
        queue_mode=mode,
        queue_places=places,
        doubled_topics=doubled,
        units_per_file=16,
    )
    return open_store(settings, disk=PosixDisk(), clock=ManualClock(), report=lambda _: None)


@pytest.fixture
def new(tmp_path: Path) -> OpenStore:
    """A store in files, opened again without the setting that made it so. Nothing was sent: RocksDB is complete."""
    opened(tmp_path, QueueMode.FILE).close()
    return opened(tmp_path)


def sent(store: OpenStore) -> list[bytes]:
    return [b"%d" % number for number in range(len(entries(store, ORDERS)))]


def test_all_phases_forth_and_back_and_forth(new: OpenStore, tmp_path: Path) -> None:
    store = new
    total = 0
    walked = [store.migration.phase]
    moves = [advance] * 4 + [roll_back] * 4 + [advance] * 5
    for move in moves:
        send(store, 7)
        total += 7
        walked.append(move(store))
        assert store.queues.phase is store.migration.phase is walked[-1]
        send(store, 3)
        total += 3
        assert len(entries(store, ORDERS)) == total
        assert len(bodies(store, LITE)) == len(moves[: len(walked) - 1]) * 4
    assert walked == [*PHASES[:5], *PHASES[:4][::-1], *PHASES[1:]]
    steps = list(store.migration.rows.steps())
    assert [each.origin for each in steps] == walked[:-1]
    assert [each.target for each in steps] == walked[1:]
    assert {each.asked_by for each in steps} == {"test"}
    store.close()
    again = opened(tmp_path)
    assert again.queues.phase is QueuePhase.ROCKSDB
    assert len(entries(again, ORDERS)) == total
    again.close()


@pytest.mark.parametrize("crashed", [False, True], ids=["stopped", "crashed"])
@pytest.mark.parametrize("phase", PHASES)
def test_a_restart_stands_where_the_last_step_led_to(
    new: OpenStore, tmp_path: Path, phase: QueuePhase, crashed: bool
) -> None:
    store = new
    while store.migration.phase is not phase:
        advance(store)
        send(store, 5)
    expected = [entries(store, queue) for queue in (ORDERS, LITE)]
    crash(store) if crashed else store.close()
    again = opened(tmp_path)
    assert again.queues.phase is phase
    assert [entries(again, queue) for queue in (ORDERS, LITE)] == expected
    assert again.queues.store.next_offset(ORDERS) == len(expected[0])
    again.close()


def test_the_queues_of_a_new_store_are_both_what_they_would_be_alone(new: OpenStore) -> None:
    while new.migration.phase is not QueuePhase.READING_ROCKSDB:
        advance(new)
        send(new, 5)
    files, rocks = new.queues.files, new.queues.rocks
    assert files is not None
    assert rocks is not None
    send(new, 3)
    assert files.next_offset(ORDERS) == rocks.next_offset(ORDERS) == 23
    assert files.dispatched_up_to() == rocks.dispatched_up_to() == new.messages.dispatched_up_to
    new.close()


def test_what_a_step_leaves_after_is_removed(new: OpenStore, tmp_path: Path) -> None:
    send(new, 40)
    advance(new)
    assert (tmp_path / "consumequeue_rocksdb" / "CURRENT").exists()
    roll_back(new)
    assert not (tmp_path / "consumequeue_rocksdb").exists()
    assert new.migration.rows.removing() is None
    assert len(entries(new, ORDERS)) == 40
    new.close()


def test_file_queues_are_removed_after_the_last_step_and_a_removal_that_was_killed_goes_on(
    new: OpenStore, tmp_path: Path
) -> None:
    while new.migration.phase is not QueuePhase.ROCKSDB:
        advance(new)
        send(new, 20)
    removal = new.migration.removal()
    assert removal is not None
    assert removal.step()
    assert len(list((tmp_path / "consumequeue").iterdir())) == 2
    crash(new)
    again = opened(tmp_path)
    assert len(entries(again, ORDERS)) == 100
    remove_files(again)
    assert again.migration.removal() is None
    assert not (tmp_path / "consumequeue").exists()
    assert not again.identity.files_up_to
    again.close()
    assert len(entries(opened(tmp_path), ORDERS)) == 100


def test_file_queues_that_no_step_has_left_stay(tmp_path: Path) -> None:
    """Those of a RocketMQ store whose queues were made anew: RocketMQ may be what somebody goes back to."""
    store = opened(tmp_path)
    (tmp_path / "consumequeue" / "orders" / "0").mkdir(parents=True)
    assert store.migration.removal() is None
    store.close()


# -- refusals


def test_the_ends_of_the_way(new: OpenStore) -> None:
    with pytest.raises(Forbidden, match="has not begun"):
        new.migration.target_of_rollback()
    while new.migration.phase is not QueuePhase.ROCKSDB:
        advance(new)
    with pytest.raises(Forbidden, match="complete"):
        new.migration.target_of_advance()
    with pytest.raises(Forbidden, match=r"`quarry migrate .* --to file`"):
        new.migration.target_of_rollback()
    new.close()


@pytest.mark.parametrize("target", PHASES)
def test_no_step_passes_over_a_phase(new: OpenStore, target: QueuePhase) -> None:
    advance(new)
    advance(new)
    if target not in (QueuePhase.DOUBLE_WRITE, QueuePhase.VERIFIED):
        with pytest.raises(Forbidden, match="no step leads"):
            step(new, target)
        assert new.migration.phase is QueuePhase.BACKFILLING
    new.close()


def test_a_backfill_that_is_not_through(tmp_path: Path) -> None:
    store = opened(tmp_path, QueueMode.FILE)
    send(store, 10)
    store.close()
    store = opened(tmp_path)
    advance(store)
    advance(store)
    with pytest.raises(Busy, match=r"not complete: 0 of \d+"):
        store.migration.target_of_advance()
    store.close()


@pytest.mark.parametrize("phase", [QueuePhase.BACKFILLING, QueuePhase.VERIFIED, QueuePhase.READING_ROCKSDB])
def test_forwards_only_with_a_report_that_stands(new: OpenStore, tmp_path: Path, phase: QueuePhase) -> None:
    store = new
    while store.migration.phase is not phase:
        advance(store)
    target = store.migration.target_of_advance()
    if phase is QueuePhase.BACKFILLING:
        assert store.migration.needs_comparison(target) == "files and RocksDB were never compared"
        with pytest.raises(Forbidden, match="never compared"):
            step(store, target)
        store.migration.keep_report(CLEAN)
    assert store.migration.needs_comparison(target) is None
    crash(store)
    store = opened(tmp_path)
    assert "did not stop cleanly" in (store.migration.needs_comparison(target) or "")
    with pytest.raises(Forbidden, match="cleanly"):
        step(store, target)
    assert store.migration.phase is phase
    store.close()


def test_after_the_way_back_queues_are_compared_again(new: OpenStore) -> None:
    while new.migration.phase is not QueuePhase.VERIFIED:
        advance(new)
    roll_back(new)
    assert "taken back" in (new.migration.needs_comparison(QueuePhase.VERIFIED) or "")
    new.close()


def test_a_step_after_which_the_settings_would_refuse_the_store(tmp_path: Path) -> None:
    store = opened(tmp_path, QueueMode.FILE)
    with pytest.raises(Forbidden, match=r"consume_queue\.mode says `file`"):
        store.migration.target_of_advance()
    store.close()
    store = opened(tmp_path, QueueMode.DOUBLE_WRITE)
    assert [(each.origin, each.asked_by) for each in store.migration.rows.steps()] == [
        (QueuePhase.FILE, "consume_queue.mode")
    ]
    with pytest.raises(Forbidden, match=r"consume_queue\.mode says `double_write`"):
        store.migration.target_of_rollback()
    while store.migration.phase is not QueuePhase.READING_ROCKSDB:
        advance(store)
    with pytest.raises(Forbidden, match=r"consume_queue\.mode says `double_write`"):
        store.migration.target_of_advance()
    store.close()


# -- settings


def test_who_reads_and_who_assigns_offsets_may_be_said(new: OpenStore, tmp_path: Path) -> None:
    store = new
    while store.migration.phase is not QueuePhase.VERIFIED:
        advance(store)
        send(store, 5)
    store.close()
    for read in QueuePlace:
        for assign in QueuePlace:
            store = opened(tmp_path, places=QueuePlaces(read, assign))
            switchable = store.queues.store
            assert getattr(switchable, "read_rocks") is (read is QueuePlace.ROCKSDB)  # noqa: B009
            assert getattr(switchable, "assign_rocks") is (assign is QueuePlace.ROCKSDB)  # noqa: B009
            assert len(entries(store, ORDERS)) == 15
            store.close()
    store = opened(tmp_path, places=QueuePlaces(read=QueuePlace.ROCKSDB))
    with pytest.raises(Forbidden, match=r"consume_queue\.read says `rocksdb`"):
        store.migration.target_of_rollback()
    store.close()
    store = opened(tmp_path, places=QueuePlaces(read=QueuePlace.FILE))
    advance(store)
    with pytest.raises(Forbidden, match="says `file`"):
        store.migration.target_of_advance()
    store.close()


def test_rocksdb_is_not_read_before_it_is_complete(tmp_path: Path) -> None:
    opened(tmp_path, QueueMode.DOUBLE_WRITE).close()
    with pytest.raises(StoreUnusable, match="does not hold everything"):
        opened(tmp_path, places=QueuePlaces(assign=QueuePlace.ROCKSDB))
    opened(tmp_path, places=QueuePlaces(assign=QueuePlace.FILE)).close()


def test_double_write_of_some_topics_goes_no_further_than_backfilling(tmp_path: Path) -> None:
    """rmq#10450."""
    store = opened(tmp_path, QueueMode.DOUBLE_WRITE, doubled=("bill*",))
    send(store, 10)
    assert store.queues.rocks is not None
    assert store.queues.rocks.next_offset(ORDERS) == 0
    store.close()
    store = opened(tmp_path, doubled=("bill*",))
    advance(store)
    with pytest.raises(Forbidden, match="double_write_topics"):
        store.migration.target_of_advance()
    end = store.messages.dispatched_up_to
    store.close()
    store = opened(tmp_path)
    assert (store.identity.backfilled_to, store.identity.backfill_end) == (0, end), "what was left out is to come"
    with pytest.raises(Busy, match="not complete"):
        store.migration.target_of_advance()
    store.identity.backfilled_to = end
    advance(store)
    store.close()
    with pytest.raises(StoreUnusable, match="double_write_topics"):
        opened(tmp_path, doubled=("bill*",))


def test_rocksdb_that_is_gone_is_made_again_before_it_is_read(new: OpenStore, tmp_path: Path) -> None:
    store = new
    while store.migration.phase is not QueuePhase.READING_ROCKSDB:
        advance(store)
        send(store, 5)
    expected = entries(store, ORDERS)
    store.close()
    (tmp_path / "consumequeue_rocksdb").rename(tmp_path / "elsewhere")
    again = opened(tmp_path)
    assert again.queues.phase is QueuePhase.BACKFILLING
    assert entries(again, ORDERS) == expected
    assert not again.migration.is_backfilled
    again.close()
