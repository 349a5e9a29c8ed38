"""The check of a live log reads it piece by piece, and says of every byte what the exact decoder says."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.store.commitlog import CommitLogReader, SegmentList
from quarry_mq.store.errors import OffsetOutOfRange, StoreDamaged
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.opening.open_store import OpenStore, open_store
from quarry_mq.store.record import Blank, Corrupt, StoredMessage, Torn
from quarry_mq.store.scan import next_readable
from quarry_mq.store.settings import StoreSettings
from quarry_mq.store.verify import LogCheck, check_readable, log_check
from quarry_mq.store.verify.log_check import PIECE_BYTES
from tests.store.assembly import message
from tests.verify.stores import send

SEGMENT_SIZE = 64 * 1024


class SickDisk(PosixDisk):
    """A disk that cannot read some pages of one file."""

    def __init__(self) -> None:
        self.sick: range = range(0)
        self.path = Path()
        self.error = errno.EIO
        self.largest = 0

    def read_once(self, path: Path, position: int, size: int) -> bytes:
        self.largest = max(self.largest, size)
        if path == self.path and position < self.sick.stop and self.sick.start < position + size:
            raise OSError(self.error, os.strerror(self.error), os.fspath(path))
        return super().read_once(path, position, size)


class Bench:
    """A store with a log of several segments."""

    def __init__(self, root: Path, segment_size: int = SEGMENT_SIZE) -> None:
        self.disk = SickDisk()
        settings = StoreSettings(root=root, segment_size=segment_size)
        self.store: OpenStore = open_store(settings, disk=self.disk, clock=ManualClock(), report=lambda _: None)
        self.segments: SegmentList = self.store.segments

    @property
    def end(self) -> PhysicalOffset:
        return self.store.messages.flushed_up_to

    def send(self, count: int) -> None:
        send(self.store, count)
        self.store.messages.flush()

    def check(self, start: int = 0) -> LogCheck:
        return LogCheck(self.segments, lambda: self.end, PhysicalOffset(start))

    def records(self) -> list[StoredMessage]:
        found = CommitLogReader(self.segments).scan(self.segments.minimum)
        return [each for each in found if isinstance(each, StoredMessage)]

    def path_of(self, at: int) -> Path:
        return self.segments.path_of(PhysicalOffset(at))

    def write(self, at: int, octets: bytes) -> bytes:
        """Write over the log behind the broker's back; return what was there."""
        base = self.segments.base_of(PhysicalOffset(at))
        with self.path_of(at).open("r+b") as file:
            file.seek(at - base)
            before = file.read(len(octets))
            file.seek(at - base)
            file.write(octets[: len(before)])
        return before

    def flip(self, at: int) -> None:
        (before,) = self.write(at, b"\0")
        self.write(at, bytes([before ^ 0x40]))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "store")
    yield made
    made.store.close()


def read(check: LogCheck) -> tuple[int, list[StoreDamaged]]:
    """Return the number of whole records, and the damage."""
    records, damage = 0, []
    while (piece := check.step()) is not None:
        records += piece.records
        damage += [] if piece.damage is None else [piece.damage]
    return records, damage


def expected(bench: Bench) -> tuple[int, list[tuple[int, str]]]:
    """Read record by record with the decoder that every reader uses."""
    records, damage, at = 0, [], bench.segments.minimum
    reader = CommitLogReader(bench.segments, lambda: bench.end)
    while at < bench.end:
        match found := reader.decode(at, check_crc=True):
            case StoredMessage():
                records, at = records + 1, PhysicalOffset(at + found.size)
                continue
            case Blank():
                at = PhysicalOffset(bench.segments.base_of(at) + SEGMENT_SIZE)
                continue
            case Torn(reason=reason) | Corrupt(reason=reason):
                damage.append((int(at), reason))
            case _:
                damage.append((int(at), "nothing was written there"))
        after = next_readable(bench.segments, at)
        at = PhysicalOffset(bench.segments.base_of(at) + SEGMENT_SIZE) if after is None else after
    return records, damage


def test_a_whole_log_is_read_to_what_is_durable(bench: Bench) -> None:
    bench.send(800)
    send(bench.store, 10)
    check = bench.check()
    assert read(check) == (2_400, [])
    assert check.at == bench.end < bench.store.messages.appended_up_to
    bench.store.messages.flush()
    assert read(check) == (30, []), "it goes on where it was"


@pytest.mark.parametrize("piece_bytes", [8192, PIECE_BYTES])
def test_of_any_spoilt_bytes_it_says_what_the_decoder_says(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    monkeypatch.setattr(log_check, "PIECE_BYTES", piece_bytes)
    bench.send(200)
    random = Random(7)
    spoilt = 0
    for trial in range(40):
        at = random.randrange(bench.end)
        size = random.choice([1, 1, 4, 60, 5_000])
        octets = random.randbytes(size) if random.random() < 0.5 else bytes(size)
        before = bench.write(at, octets)
        records, damage = expected(bench)
        found, met = read(bench.check())
        assert (found, [each.record_at for each in met]) == (records, [at for at, _ in damage]), (trial, at)
        for each, (at, reason) in zip(met, damage, strict=True):
            assert str(each) == f"{bench.path_of(at)}: the record at offset {at} is damaged: {reason}"
        spoilt += bool(damage)
        bench.write(at, before)
    assert spoilt > 20


def test_a_record_larger_than_a_piece_is_read(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", segment_size=8 << 20)
    for size in (PIECE_BYTES - 300, PIECE_BYTES, 3 * PIECE_BYTES, 10):
        bench.store.messages.append([message("orders", 0, b"x" * size)])
    bench.store.messages.flush()
    assert read(bench.check()) == (4, [])
    at = bench.records()[2].physical_offset
    bench.flip(at + 2 * PIECE_BYTES)
    records, damage = read(bench.check())
    assert (records, [each.record_at for each in damage]) == (3, [at])
    bench.store.close()


def test_a_record_with_a_damaged_size_is_not_read_into_memory(tmp_path: Path) -> None:
    """A wrong bit makes 64 MiB of a small record: nothing of that size is read."""
    bench = Bench(tmp_path / "store", segment_size=128 << 20)
    bench.send(10)
    at = bench.records()[7].physical_offset
    bench.write(at, bytes([4]))
    records, damage = read(bench.check())
    assert (records, [each.record_at for each in damage]) == (29, [at])
    assert "does not fit size" in str(damage[0])
    assert bench.disk.largest <= PIECE_BYTES
    bench.store.close()


def test_pages_that_the_disk_cannot_read_are_told_and_the_rest_is_read(bench: Bench) -> None:
    bench.send(600)
    lost = range(8192, 16384)
    bench.disk.path, bench.disk.sick = bench.path_of(SEGMENT_SIZE), lost
    touched = [
        each
        for each in bench.records()
        if each.physical_offset < SEGMENT_SIZE + lost.stop
        and SEGMENT_SIZE + lost.start < each.physical_offset + each.size
    ]
    records, (damage,) = read(bench.check())
    assert records == 1_800 - len(touched)
    assert damage.record_at == touched[0].physical_offset
    assert str(damage).endswith(f"the record at offset {damage.record_at} cannot be read: {os.strerror(errno.EIO)}")
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        check_readable(bench.segments, touched[0].physical_offset)
    bench.disk.sick = range(0)
    check_readable(bench.segments, touched[0].physical_offset)
    assert read(bench.check()) == (1_800, [])


def test_errors_that_say_nothing_of_the_bytes_are_no_damage_and_the_step_can_be_repeated(bench: Bench) -> None:
    bench.send(600)
    bench.disk.path, bench.disk.sick, bench.disk.error = bench.path_of(0), range(SEGMENT_SIZE), errno.EMFILE
    check = bench.check()
    with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
        check.step()
    bench.disk.sick = range(0)
    assert read(check) == (1_800, [])


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (Path.unlink, "the file is missing"),
        (lambda path: os.truncate(path, 40_000), "the file has 40000 bytes, a segment of this log 65536"),
    ],
)
def test_a_file_that_is_gone_or_cut_short_is_told_once(bench: Bench, spoil: Callable[[Path], None], words: str) -> None:
    """Through a mapping a file that was cut short would end the process."""
    bench.send(600)
    path = bench.path_of(SEGMENT_SIZE)
    before = [each for each in bench.records() if each.physical_offset < SEGMENT_SIZE]
    after = [each for each in bench.records() if each.physical_offset >= 2 * SEGMENT_SIZE]
    bench.segments.close()
    spoil(path)
    records, damage = read(bench.check())
    assert [str(each) for each in damage] == [f"{path}: {words}"]
    assert len(before) + len(after) <= records < 1_800
    at = damage[-1].record_at
    assert at is not None
    with pytest.raises((OSError, StoreDamaged)):
        check_readable(bench.segments, PhysicalOffset(at))


def test_segments_that_expire_while_they_are_read_are_passed(bench: Bench) -> None:
    bench.send(600)
    check = bench.check()
    check.step()
    for path in bench.segments.retire_before(PhysicalOffset(2 * SEGMENT_SIZE)):
        path.unlink()
    left = len(bench.records())
    records, damage = read(check)
    assert (records, damage) == (left, [])
    with pytest.raises(OffsetOutOfRange):
        check_readable(bench.segments, PhysicalOffset(0))


def test_it_begins_with_the_segment_that_holds_the_offset(bench: Bench) -> None:
    bench.send(600)
    assert bench.check(SEGMENT_SIZE + 777).at == SEGMENT_SIZE
    assert bench.check(1 << 40).at == 0
    bench.segments.retire_before(PhysicalOffset(SEGMENT_SIZE))
    assert bench.check(5).at == SEGMENT_SIZE


def test_an_empty_log_is_read(bench: Bench) -> None:
    assert read(bench.check()) == (0, [])
