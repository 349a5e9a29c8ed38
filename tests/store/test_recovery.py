"""Recovery: the decision table row by row, and a recovery that is killed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import pytest

from quarry_mq.store.commitlog import SegmentList
from quarry_mq.store.consumequeue.dispatch import OffsetAssignment
from quarry_mq.store.errors import StoreDamaged
from quarry_mq.store.message import Appended, PhysicalOffset, QueueId
from quarry_mq.store.recovery.verdict import VERDICTS, Ending, Place, Stop
from quarry_mq.store.scan import FoundRecords, scan_records
from tests.faults.disk import FaultyDisk
from tests.store.assembly import LOG, Assembly, assemble, message, queue_engine
from tests.store.test_crashes import content, rows

QUEUE = QueueId("orders", 0)
RECORDS = 10
BROKEN = 6
"""Number of the record that is broken, or missing together with those behind it."""

DAMAGE = {Ending.TORN: b"\0\0\0\0", Ending.CORRUPT: b"\xff\xff\xff\xff"}
"""Bytes in place of the broken record's magic code."""


def log_of(ending: Ending) -> tuple[FaultyDisk, list[Appended]]:
    """A log of ten records that breaks at number six."""
    disk = FaultyDisk()
    live = assemble(disk, queue_engine())
    places = live.store.append([message(body=b"%d" % number * 50) for number in range(RECORDS)])
    live.store.flush()
    segment = disk.open_segment(LOG / f"{0:020d}", writable=True)
    at = places[BROKEN].physical_offset
    if ending is Ending.NOTHING_MORE:
        segment.write(at, bytes(places[-1].physical_offset + places[-1].size - at))
    else:
        segment.write(at + 4, DAMAGE[ending])
    segment.flush()
    return disk, places


def promise(places: list[Appended], place: Place) -> PhysicalOffset:
    """An offset that was told durable, so that the log breaks at this place."""
    number = {Place.BELOW: BROKEN + 2, Place.AT: BROKEN, Place.ABOVE: BROKEN - 2}[place]
    return places[number].physical_offset


REFUSED = {
    *((Place.BELOW, stop, ending) for stop in Stop for ending in Ending),
    (Place.ABOVE, Stop.CLEAN, Ending.TORN),
    (Place.ABOVE, Stop.CLEAN, Ending.CORRUPT),
}


@pytest.mark.parametrize(("place", "stop", "ending"), VERDICTS, ids=lambda value: value.value)
def test_a_row_of_the_decision_table(place: Place, stop: Stop, ending: Ending) -> None:
    """Corruption is reported, never skipped. RocketMQ ends the log at the first bad record, wherever it lies."""
    disk, places = log_of(ending)
    before = disk.read(LOG / f"{0:020d}")
    at = places[BROKEN].physical_offset

    def start() -> Assembly:
        clean = stop is Stop.CLEAN
        return assemble(disk, queue_engine(), flushed_up_to=promise(places, place), clean_shutdown=clean)

    if (place, stop, ending) in REFUSED:
        with pytest.raises(StoreDamaged, match=f"offset {at}.*quarry recover /store --replace-damaged") as refused:
            start()
        assert refused.value.path == LOG / f"{0:020d}"
        assert disk.read(LOG / f"{0:020d}") == before
        assert not disk.exists(LOG / "broken")
    else:
        opened = start()
        assert opened.report.end == at
        assert len(content(opened)) == BROKEN
        kept = [disk.read(path) for path in opened.report.removed.kept]
        assert kept == ([] if ending is Ending.NOTHING_MORE else [before[at:].rstrip(b"\0")])
        assert not any(disk.read(LOG / f"{0:020d}")[at:])


def test_the_table_is_complete() -> None:
    assert VERDICTS.keys() == {(place, stop, ending) for place in Place for stop in Stop for ending in Ending}


def test_the_first_record_that_was_not_dispatched_is_not_passed_over() -> None:
    """RocketMQ's normal recovery dispatches only what lies behind the exclusive end of what was (defect B1)."""
    disk, engine = FaultyDisk(), queue_engine()
    live = assemble(disk, engine)
    live.store.append([message(body=b"%d" % number) for number in range(5)])
    live.store.flush()
    opened = assemble(disk, engine, flushed_up_to=live.store.flushed_up_to, clean_shutdown=True)
    assert [body for _, body in sorted(content(opened).items())] == [b"0", b"1", b"2", b"3", b"4"]
    opened.store.append([message(body=b"5")])
    opened.store.flush()
    again = assemble(disk, engine, flushed_up_to=opened.store.flushed_up_to, clean_shutdown=True)
    assert again.report.findings.dispatched == 1
    assert len(content(again)) == 6


class Killed(Exception):
    """The process died here."""


@dataclass
class KillableScan:
    """Counts what is read, and dies at a given run, counted over all lives."""

    read_bytes: int = 0
    runs: int = 0
    kill_at: set[int] = field(default_factory=set)

    def __call__(
        self,
        segments: SegmentList,
        start: PhysicalOffset,
        *,
        dispatch_from: PhysicalOffset,
        assignment: OffsetAssignment,
        from_device: bool,
    ) -> Iterator[FoundRecords]:
        before = start
        for run in scan_records(
            segments, start, dispatch_from=dispatch_from, assignment=assignment, from_device=from_device
        ):
            self.runs += 1
            self.read_bytes += run.end - before
            before = run.end
            if self.runs in self.kill_at:
                raise Killed
            yield run


@pytest.mark.parametrize("known_number", [0, 150, 299])
@pytest.mark.parametrize("already_dispatched", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_recovery_that_is_killed_again_and_again_goes_on_where_it_was(
    seed: int, already_dispatched: bool, known_number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """rmq#9587: a probe kills a slow recovery, and it starts over, forever. Both for a log that has only to be read
    again and for one whose queues have to be made.
    """
    monkeypatch.setattr("quarry_mq.store.scan.fields.RUN_RECORDS", 8)
    save_every_bytes, kills = 30_000, 12
    chance = Random(seed)
    disk, engine = FaultyDisk(), queue_engine()
    live = assemble(disk, engine)
    flushed = PhysicalOffset(0)
    for number in range(300):
        (place,) = live.store.append([message("orders", number % 3, chance.randbytes(chance.randrange(1, 3_000)))])
        if number == known_number:
            flushed = place.physical_offset
    end = live.store.flush()
    live.store.dispatch(end)
    expected = content(live)
    if already_dispatched:
        live.store.flush_queues()
    else:
        engine.crash(0)

    def save_position(position: PhysicalOffset) -> None:
        nonlocal flushed
        assert position > flushed
        flushed = position

    scan = KillableScan()
    lives = 0
    while True:
        lives += 1
        if lives <= kills:
            scan.kill_at = {scan.runs + chance.randrange(1, 12)}
        try:
            opened = assemble(
                disk,
                engine,
                flushed_up_to=flushed,
                scan=scan,
                save_position=save_position,
                save_every_bytes=save_every_bytes,
            )
            break
        except Killed:
            engine.crash(chance.randrange(4))
            disk = disk.process_death()
    assert content(opened) == expected, f"replay with {seed=}"
    longest_run_bytes = 8 * 4_000
    assert lives > 3 or (already_dispatched and known_number == 299), "there was something to read"
    assert scan.read_bytes <= end + (lives - 1) * (save_every_bytes + 2 * longest_run_bytes), f"replay with {seed=}"


@pytest.mark.parametrize("seed", range(30))
def test_queues_are_cut_back_to_any_offset_as_if_the_rest_had_never_been(seed: int) -> None:
    """RocketMQ's search breaks on equality without a result (defect B3); its bounds can end inverted (rmq#10417)."""
    chance = Random(seed)
    disk, engine = FaultyDisk(), queue_engine()
    live = assemble(disk, engine)
    places: list[Appended] = []
    for number in range(chance.randrange(1, 60)):
        light = {"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b"} if chance.random() < 0.3 else {}
        topic = chance.choice(["orders", "bills"])
        places += live.store.append([message(topic, chance.randrange(3), b"%d" % number, **light)])
    live.store.dispatch(live.store.flush())
    at = chance.choice([each.physical_offset for each in places])
    live.queues.truncate(at)

    fresh = queue_engine()
    segment = disk.open_segment(LOG / f"{0:020d}", writable=True)
    segment.write(at, bytes(live.store.appended_up_to - at))
    rebuilt = assemble(disk, fresh)
    assert rebuilt.report.end == at
    engine_rows, fresh_rows = rows(engine), rows(fresh)
    assert engine_rows["default"] == fresh_rows["default"], f"replay with {seed=}"
    # the watermark stands at the cut in either case, but for a log of which nothing was left to dispatch
    assert engine_rows["offset"].items() >= fresh_rows["offset"].items(), f"replay with {seed=}"
    for queue in live.queues.queues():
        bounds = live.queues.bounds(queue)
        assert bounds.minimum <= bounds.maximum, f"replay with {seed=}"
        assert bounds == rebuilt.queues.bounds(queue), f"replay with {seed=}"


def test_progress_is_told_from_the_first_moment_and_ends_at_the_end_of_the_data() -> None:
    """A segment that is nearly empty must not make the percentage stand at zero until all is read."""
    disk, engine = FaultyDisk(), queue_engine()
    live = assemble(disk, engine)
    end = live.store.append([message(body=bytes(40_000))])[0].size
    live.store.flush()
    opened = assemble(disk, queue_engine())
    assert opened.progress[0].percent == 0
    assert opened.progress[-1].done_bytes == end
    assert opened.progress[-1].percent >= 95
