"""The checkpoint follows what is durable: never ahead of it, and hardly behind."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.store.commitlog import CommitLogReader, SegmentList
from quarry_mq.store.errors import StoreDamaged
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.record import StoredMessage
from quarry_mq.store.recovery.checkpoint import StoreCheckpoint, durable_segments, read_checkpoint, taken_over
from quarry_mq.store.rocketmq import UNKNOWN, Checkpoint, encode_checkpoint
from quarry_mq.store.state.identity import FAMILIES, DurableState, StoreIdentity
from tests.faults.disk import FaultyDisk
from tests.store.assembly import LOG, Assembly, assemble, message, queue_engine
from tests.store.test_golden_stores import opened

PATH = LOG.parent / "checkpoint"


def keeper(assembly: Assembly, state: MemoryEngine, before: Checkpoint | None = None) -> StoreCheckpoint:
    identity = StoreIdentity(state, LOG.parent / "quarry")
    durable_state = DurableState(assembly.disk, LOG.parent / "quarry", state)
    assembly.disk.make_directories(LOG.parent / "quarry")
    return StoreCheckpoint(assembly.disk, PATH, identity, durable_state, assembly.store, before=before or Checkpoint())


def state_engine() -> MemoryEngine:
    return MemoryEngine(FAMILIES, write_ahead_log=True)


def stored_times(disk: FaultyDisk) -> list[tuple[PhysicalOffset, int]]:
    """End and store time of every whole record of the log."""
    segments = SegmentList(disk, LOG, None, writable=False)
    return [
        (PhysicalOffset(found.physical_offset + found.size), found.store_timestamp_ms)
        for found in CommitLogReader(segments).scan(segments.minimum)
        if isinstance(found, StoredMessage)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_it_never_claims_more_than_is_flushed(seed: int) -> None:
    """RocketMQ's own ran ahead of its queue files, so after a power cut entries were missing for good."""
    chance = Random(seed)
    disk, state = FaultyDisk(), state_engine()
    live = assemble(disk, queue_engine())
    checkpoint = keeper(live, state)
    for _ in range(60):
        match chance.randrange(4):
            case 0 | 1:
                live.store.append([message(body=chance.randbytes(chance.randrange(1, 3_000)))])
                live.clock.advance(chance.randrange(3) / 1000)
            case 2:
                live.store.flush()
            case _:
                checkpoint.save()
    found = read_checkpoint(disk, PATH)
    row = StoreIdentity(state, LOG.parent / "quarry").flushed_up_to or PhysicalOffset(0)
    after = stored_times(disk.power_loss(seed))
    whole_up_to = after[-1][0] if after else PhysicalOffset(0)
    assert found.confirmed_up_to == row <= whole_up_to, f"replay with {seed=}"
    assert found.log_flushed_ms <= max((stored for _, stored in after), default=0), f"replay with {seed=}"


def test_it_is_written_only_when_something_changed() -> None:
    disk = FaultyDisk()
    live = assemble(disk, queue_engine())
    checkpoint = keeper(live, state_engine())
    live.store.append([message()])
    flushed = live.store.flush()
    for _ in range(5):
        checkpoint.save()
    assert [name for operation, name in disk.log if operation == "replace"] == ["DURABLE", "checkpoint"]
    assert read_checkpoint(disk, PATH).confirmed_up_to == flushed
    live.store.append([message()])
    live.store.flush()
    checkpoint.save()
    assert [name for operation, name in disk.log if operation == "replace"] == ["DURABLE", "checkpoint"] * 2


def test_after_the_last_save_the_database_is_left_alone() -> None:
    """rmq#9875: something that persists after the database was closed crashed the process."""
    state = state_engine()
    live = assemble(FaultyDisk(), queue_engine())
    checkpoint = keeper(live, state)
    checkpoint.close()
    state.close()
    live.store.append([message()])
    live.store.flush()
    checkpoint.save()
    checkpoint.close()


@pytest.mark.parametrize("clean", [True, False])
def test_what_is_about_queue_files_is_kept_only_where_they_were_flushed(clean: bool) -> None:
    found = Checkpoint(5_000, 4_000, 3_000, PhysicalOffset(2_000), PhysicalOffset(1_000), PhysicalOffset(900))
    kept = taken_over(found, clean_shutdown=clean)
    assert (kept.file_queues_ms, kept.file_queues_up_to) == ((4_000, 900) if clean else (0, UNKNOWN))
    assert (kept.index_ms, kept.master_flushed_up_to) == (3_000, 2_000)


def test_replication_is_never_told_of_more_than_is_flushed() -> None:
    live = assemble(FaultyDisk(), queue_engine())
    live.store.append([message()])
    flushed = live.store.flush()
    keeper(live, state_engine(), Checkpoint(master_flushed_up_to=PhysicalOffset(1 << 40))).save()
    assert read_checkpoint(live.disk, PATH).master_flushed_up_to == flushed


def test_a_store_keeps_it_from_the_start_to_the_stop(tmp_path: Path) -> None:
    """rmq#7233: a checkpoint left at zero meant a scan of the whole log at every start."""
    paths = StorePaths(tmp_path)
    store = opened(tmp_path)
    (place,) = store.messages.append([message()])
    store.close()
    stopped = read_checkpoint(PosixDisk(), paths.checkpoint)
    assert stopped.confirmed_up_to == place.physical_offset + place.size
    assert stopped.log_flushed_ms == place.store_timestamp_ms
    store = opened(tmp_path)
    assert store.recovery.findings.records == 0
    assert read_checkpoint(PosixDisk(), paths.checkpoint) == stopped, "nothing was read, and nothing forgotten"
    store.close()


def test_a_stop_that_finds_no_room_for_it_is_clean_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path)
    store.messages.append([message()])

    def replace_atomically(_: PosixDisk, path: Path, __: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with monkeypatch.context() as full:
        full.setattr(PosixDisk, "replace_atomically", replace_atomically)
        store.close()
    assert not StorePaths(tmp_path).abort.exists()
    store = opened(tmp_path)
    assert store.recovery.findings.records == 0
    store.close()


def test_damage_in_what_was_flushed_a_second_ago_refuses_to_start(tmp_path: Path) -> None:
    """Acknowledged messages must not be cut off in silence, however fresh they are."""
    store = opened(tmp_path / "live", segment_size=1 << 20)
    places = store.messages.append([message(body=b"%d" % number * 50) for number in range(10)])
    store.messages.flush()
    store.checkpoint.save()
    killed = shutil.copytree(tmp_path / "live", tmp_path / "killed")
    store.close()
    with (StorePaths(killed).commit_log / f"{0:020d}").open("r+b") as file:
        file.seek(places[4].physical_offset + 120)
        file.write(b"\xff")
    with pytest.raises(StoreDamaged, match=rf"{0:020d}.*offset {places[4].physical_offset}"):
        opened(killed)


@pytest.mark.parametrize(
    ("flushed_after_the_first_record_ms", "begin"),
    [(-1, 2_097_152), (2_999, 2_097_152), (3_000, 3_145_728), (60_000, 3_145_728)],
)
def test_rocketmqs_time_tells_which_segments_must_be_whole(
    flushed_after_the_first_record_ms: int, begin: int, golden_copy: Callable[[str], Path]
) -> None:
    paths = StorePaths(golden_copy("double-clean") / "store")
    segments = SegmentList(PosixDisk(), paths.commit_log, None, writable=False)
    last = CommitLogReader(segments).decode(segments.bases[-1])
    assert isinstance(last, StoredMessage)
    flushed_ms = last.store_timestamp_ms + flushed_after_the_first_record_ms
    assert durable_segments(segments, flushed_ms=flushed_ms, last_but_one=True) == begin
    segments.close()


def test_what_rocketmqs_checkpoint_says_was_flushed_must_be_there(golden_copy: Callable[[str], Path]) -> None:
    root = golden_copy("file-kill") / "store"
    paths = StorePaths(root)
    segments = SegmentList(PosixDisk(), paths.commit_log, None, writable=False)
    first = CommitLogReader(segments).decode(segments.bases[2])
    segments.close()
    assert isinstance(first, StoredMessage)
    with (paths.commit_log / f"{1_048_576:020d}").open("r+b") as file:
        file.seek(500_000)
        file.write(bytes(100_000))
    paths.checkpoint.write_bytes(encode_checkpoint(Checkpoint(log_flushed_ms=first.store_timestamp_ms + 3_000)))
    with pytest.raises(StoreDamaged, match=rf"{1_048_576:020d}.*everything below {2_097_152} was durable"):
        opened(root)
