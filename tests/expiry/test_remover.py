"""Files of expired segments on a real disk: cut shorter step by step, and never under somebody's eyes."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from random import Random
from threading import Event, Thread

import pytest

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.store.commitlog import CommitLogReader, SegmentList
from quarry_mq.store.errors import OffsetOutOfRange
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.paths import expired_directory, segment_name
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.opening.open_store import open_store
from quarry_mq.store.record import StoredMessage
from quarry_mq.store.retention import SegmentRemover
from quarry_mq.store.retention import remover as remover_module
from quarry_mq.store.retention.remover import STEP_BYTES
from quarry_mq.store.settings import StoreSettings
from tests.store.assembly import message

SIZE = 3 * STEP_BYTES
SMALL = 64 * 1024
SEGMENTS = 40


class WatchedDisk(PosixDisk):
    """Remembers in which steps files were given back."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, int]] = []
        self.move_error: int | None = None

    def move(self, path: Path, target: Path) -> None:
        super().move(path, target)
        if self.move_error is not None:
            raise OSError(self.move_error, os.strerror(self.move_error), str(path))

    def truncate(self, path: Path, size: int) -> None:
        self.steps.append(("truncate", size))
        super().truncate(path, size)

    def remove(self, path: Path) -> None:
        self.steps.append(("remove", path.stat().st_size))
        super().remove(path)


@pytest.fixture
def disk() -> WatchedDisk:
    return WatchedDisk()


def remover_of(disk: WatchedDisk, log: Path) -> SegmentRemover:
    disk.make_directories(log)
    reader = CommitLogReader(SegmentList(disk, log, SIZE, writable=False))
    return SegmentRemover(disk, log, reader, clock=ManualClock(), patience_s=0, pause_s=0)


def sparse(path: Path) -> Path:
    with path.open("wb") as file:
        file.truncate(SIZE)
    return path


def test_a_large_file_goes_in_steps(disk: WatchedDisk, tmp_path: Path) -> None:
    """rmq#7799: removing old files stalled the sends."""
    remover = remover_of(disk, tmp_path)
    remover.take([sparse(tmp_path / segment_name(PhysicalOffset(0)))])
    assert [(each.path.name, each.size) for each in remover.run()] == [(segment_name(PhysicalOffset(0)), SIZE)]
    assert disk.steps == [("truncate", 2 * STEP_BYTES), ("truncate", STEP_BYTES), ("remove", STEP_BYTES)]
    assert not list(expired_directory(tmp_path).iterdir())


def test_a_file_with_another_name_is_not_cut_shorter(disk: WatchedDisk, tmp_path: Path) -> None:
    """A hard link is how a backup keeps a segment: the same bytes under another name."""
    remover = remover_of(disk, tmp_path)
    path = sparse(tmp_path / segment_name(PhysicalOffset(0)))
    (tmp_path / "backup").hardlink_to(path)
    remover.take([path])
    remover.run()
    assert disk.steps == [("remove", SIZE)]
    assert (tmp_path / "backup").stat().st_size == SIZE


def test_a_file_that_is_mapped_is_not_cut_shorter_even_when_patience_is_over(disk: WatchedDisk, tmp_path: Path) -> None:
    """Reading a page behind the end of a mapped file kills the process (SIGBUS)."""
    remover = remover_of(disk, tmp_path)
    path = sparse(tmp_path / segment_name(PhysicalOffset(0)))
    view = disk.open_segment(path, writable=False).view()
    remover.take([path])
    assert len(remover.run()) == 1
    assert disk.steps == [("remove", SIZE)]
    assert view[SIZE - 1] == 0


def test_what_an_earlier_process_left_is_removed(disk: WatchedDisk, tmp_path: Path) -> None:
    disk.make_directories(expired_directory(tmp_path))
    sparse(expired_directory(tmp_path) / segment_name(PhysicalOffset(0)))
    remover = remover_of(disk, tmp_path)
    assert (remover.pending, remover.pending_bytes(SIZE)) == (1, SIZE)
    remover.run()
    assert not list(expired_directory(tmp_path).iterdir())


def test_a_stop_ends_it_between_two_steps_and_the_next_life_goes_on(disk: WatchedDisk, tmp_path: Path) -> None:
    remover = remover_of(disk, tmp_path)
    remover.take([sparse(tmp_path / segment_name(PhysicalOffset(0)))])
    remover.stop()
    assert remover.run() == []
    assert [path.name for path in tmp_path.iterdir()] == [segment_name(PhysicalOffset(0))]
    again = remover_of(disk, tmp_path)
    again.take([tmp_path / segment_name(PhysicalOffset(0))])
    again.run()
    assert again.pending == 0


def test_a_file_that_somebody_else_took_away_is_no_trouble(disk: WatchedDisk, tmp_path: Path) -> None:
    remover = remover_of(disk, tmp_path)
    remover.take([tmp_path / segment_name(PhysicalOffset(0))])
    assert remover.run() == []
    assert remover.pending == 0


def test_a_move_that_fails_after_the_rename_loses_sight_of_nothing(disk: WatchedDisk, tmp_path: Path) -> None:
    """The sync of the folder is a part of it, and comes last."""
    remover = remover_of(disk, tmp_path)
    path = sparse(tmp_path / segment_name(PhysicalOffset(0)))
    remover.take([path])
    disk.move_error = errno.EIO
    with pytest.raises(OSError, match="Input/output"):
        remover.run()
    assert remover.pending == 1
    disk.move_error = None
    assert len(remover.run()) == 1
    assert not list(expired_directory(tmp_path).iterdir())


def test_readers_of_real_mappings_are_never_cut_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments go in steps of a page while threads hold views of them: a step too early would end this process."""
    monkeypatch.setattr(remover_module, "STEP_BYTES", 4096)
    monkeypatch.setattr(remover_module, "STEP_PAUSE_MIN_S", 0.0)
    clock = ManualClock()
    settings = StoreSettings(root=tmp_path, segment_size=SMALL)
    store = open_store(settings, disk=PosixDisk(), clock=clock, report=lambda _: None)
    for number in range(SEGMENTS):
        store.messages.append([message(body=b"%02d" % number + bytes(SMALL // 2))])
    store.messages.dispatch(store.messages.flush())
    store.messages.flush_queues()
    expiry, reader = store.expiry, store.messages.reader
    expiry.remover.configure(patience_s=0.01, pause_s=0)
    done = Event()
    wrong: list[object] = []

    def read(chance: Random) -> None:
        kept: list[tuple[int, memoryview]] = []
        while not done.is_set():
            number = chance.randrange(SEGMENTS)
            with suppress(OffsetOutOfRange):
                found = reader.decode(PhysicalOffset(number * SMALL), check_crc=True)
                if isinstance(found, StoredMessage):
                    kept.append((number, found.body))
                else:
                    wrong.append(found)
            wrong.extend(each for each in kept if bytes(each[1]) != b"%02d" % each[0] + bytes(SMALL // 2))
            if len(kept) > chance.randrange(1, 8):
                kept.clear()

    threads = [Thread(target=read, args=(Random(seed),)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for number in range(1, SEGMENTS - 1):
        assert expiry.retire(PhysicalOffset(number * SMALL)) == number * SMALL
        while expiry.remover.pending:
            clock.advance(0.001)
            expiry.remover.run()
    done.set()
    for thread in threads:
        thread.join()
    store.close()
    assert not wrong
