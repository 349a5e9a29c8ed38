"""The module does the repairs that an operator may order when a store does not open: give up damaged bytes, or rebuild
the queues.

Damage in the middle of the durable log is not repaired by ending the log there: the records that follow are good. So
each damaged stretch, from the last whole record to the next, is copied to `commitlog/broken/` and then filled with
replacement records (`store.record.replacement`). Offsets do not change, neither in the log nor in the queues.

A crash may leave a stretch partly replaced; repeating the repair finds the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from quarry_mq.protocol.clock import Progress, ReportProgress
from quarry_mq.store.commitlog import SegmentList, end_of_bytes, keep
from quarry_mq.store.consumequeue.dispatch import StoredAssignment
from quarry_mq.store.engines import StoreEngines
from quarry_mq.store.fs import Disk
from quarry_mq.store.layout.kind import DATABASE_MARKER, FoundStore, StoreKind
from quarry_mq.store.layout.paths import PHYSICAL_OFFSET_MAXIMUM, StorePaths
from quarry_mq.store.layout.queue_phase import parse_phase
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.opening.parts import StoreParts, open_identity, stop_of
from quarry_mq.store.record import Corrupt, EndOfData, Torn, encode_replacement
from quarry_mq.store.record.layout import BLANK_SIZE, RECORD_SIZE_MINIMUM
from quarry_mq.store.recovery.checkpoint import durable_offset, known_of
from quarry_mq.store.recovery.verdict import Stop
from quarry_mq.store.scan import is_whole, next_whole, scan_in_bulk

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Orders:
    """The orders name the repairs that an operator accepts before recovery. None of them is ever done
    without an order.
    """

    replace_damaged: bool = False
    rebuild_queues: bool = False


NO_ORDERS: Final = Orders()


@dataclass(frozen=True, slots=True)
class DamagedStretch:
    """A damaged stretch is the bytes of one segment between two whole records."""

    begin: PhysicalOffset
    end: PhysicalOffset
    reason: str
    store_timestamp_ms: int
    """Store time of the record before the stretch, for the replacement: RocketMQ takes a segment that begins with 0 for
    unwritten.
    """


@dataclass(frozen=True, slots=True)
class Damage:
    """The damage is all that is damaged in the durable part of the log."""

    stretches: tuple[DamagedStretch, ...]
    log_end: PhysicalOffset
    """The end of the log once the stretches are replaced."""
    tail_is_lost: bool
    """True if durable bytes after `log_end` are lost: their files are gone, or nothing whole comes after it."""

    def __bool__(self) -> bool:
        return bool(self.stretches) or self.tail_is_lost


def find_damage(
    disk: Disk, directory: Path, *, durable_up_to: PhysicalOffset, stop: Stop, report: ReportProgress
) -> Damage:
    """Read the whole log in `directory` and return its damage. Changes nothing.

    After an unclean stop the first damage at or above `durable_up_to` ends the log, as it does for recovery, and is not
    reported; after a clean stop everything was durable.
    """
    # a separate list: what recovery reads from the device afterwards must not be mapped
    segments = SegmentList(disk, directory, None, writable=False)
    stretches: list[DamagedStretch] = []
    at, stored_ms, total_bytes = segments.minimum, 1, segments.end_of_files - segments.minimum
    try:
        while True:
            stopped_by = None
            for run in scan_in_bulk(
                segments, at, dispatch_from=segments.end_of_files, assignment=StoredAssignment(), from_device=False
            ):
                at, stopped_by = run.end, run.stopped_by
                stored_ms = run.last_stored_ms or stored_ms
                report(Progress("looking for damage", at - segments.minimum, total_bytes))
            if at >= segments.end_of_files or (at >= durable_up_to and stop is Stop.UNCLEAN):
                break
            end = _end_of_damage(segments, at, durable_up_to)
            if end is None:
                break
            stretches.append(DamagedStretch(at, end, _reason(stopped_by), stored_ms))
            at = end
    finally:
        segments.close()
    is_broken = isinstance(stopped_by, Torn | Corrupt) and stop is Stop.CLEAN
    return Damage(tuple(stretches), at, tail_is_lost=at < durable_up_to or (at > durable_up_to and is_broken))


def replace_all(disk: Disk, directory: Path, damage: Damage) -> list[Path]:
    """Put replacement records in the place of each stretch, durably, after its bytes are kept.

    Returns the files that keep bytes that were not zero. Raises OSError.
    """
    segments = SegmentList(disk, directory, None)
    try:
        kept = [_replace(segments, stretch) for stretch in damage.stretches]
    finally:
        segments.close()
    return [path for path in kept if path is not None]


def _replace(segments: SegmentList, stretch: DamagedStretch) -> Path | None:
    base = segments.base_of(stretch.begin)
    size = stretch.end - stretch.begin
    written = end_of_bytes(segments, stretch.begin, stretch.end)
    kept = keep(segments, stretch.begin, written) if written > stretch.begin else None
    segment = segments.open_for_writing(base)
    closes_segment = stretch.end == base + segments.segment_size
    records = encode_replacement(stretch.begin, size, stretch.store_timestamp_ms, closes_segment=closes_segment)
    for at, record in records:
        segment.write(at - base, record)
    segment.flush()
    log.warning("damaged bytes of the log were replaced", offset=stretch.begin, size=size, kept=str(kept or ""))
    return kept


def give_up_damaged(
    disk: Disk, paths: StorePaths, parts: StoreParts, found: FoundStore, *, report: ReportProgress
) -> Damage:
    """Find the damage in the durable part of the log, keep the damaged bytes, and replace them. Returns the damage.

    Afterwards the log is whole as far as it was durable, or as far as anything is left of it. After a crash the repair
    has to be ordered again. Raises OSError, kv.KvError.
    """
    identity, stop = parts.identity, stop_of(found)
    durable_up_to = durable_offset(disk, paths, parts.segments, found, known_of(identity))
    if stop is Stop.CLEAN:
        durable_up_to = max(durable_up_to, parts.queues.store.dispatched_up_to() or durable_up_to)
    damage = find_damage(disk, paths.commit_log, durable_up_to=durable_up_to, stop=stop, report=report)
    if damage:
        # first: groups may be at offsets after the damage, and must not pass over what comes in its place
        identity.seen_up_to = PhysicalOffset(PHYSICAL_OFFSET_MAXIMUM)
        replace_all(disk, paths.commit_log, damage)
    if damage.tail_is_lost:
        parts.queues.store.truncate(damage.log_end)
        identity.flushed_up_to = damage.log_end
        identity.log_begin = parts.segments.minimum
        log.warning("the end of the log was given up", log_end=damage.log_end, durable_up_to=durable_up_to)
    return damage


def set_queues_aside(disk: Disk, paths: StorePaths, found: FoundStore, engines: StoreEngines) -> None:
    """Move the files of the queues' database, and Quarry's own file queues, beside their directory. Recovery makes new
    ones.

    Files are moved one by one, because file queues may lie in the same directory. `CURRENT` goes last, because without
    it there is no database: if a crash interrupts this, the store is refused as damaged until it is repeated.
    """
    # what the store was decides how light queues get their offsets; without the database it would look different
    engine, identity = open_identity(engines, paths.quarry, disk, found)
    try:
        has_files = parse_phase(identity.queue_phase, paths.root).writes_files and found.kind is StoreKind.QUARRY
        if has_files:
            identity.clear_file_progress()
    finally:
        engine.close()
    _set_database_files_aside(disk, found.rocksdb_directory)
    if has_files:
        topics = [entry.name for entry in disk.list_directory(paths.consume_queue) if entry.is_directory]
        set_names_aside(disk, paths.consume_queue, topics)


def aside_of(disk: Disk, directory: Path) -> Path:
    """Return an unused name beside the directory, for what is kept of it."""
    number = 0
    while disk.exists(aside := directory.with_name(f"{directory.name}.set-aside-{number}")):
        number += 1
    return aside


def set_names_aside(disk: Disk, directory: Path, names: list[str]) -> None:
    """Move these files and directories of `directory` beside it, in this order."""
    if not names:
        return
    aside = aside_of(disk, directory)
    disk.make_directories(aside)
    for name in names:
        disk.move(directory / name, aside / name)
    log.warning("queues were set aside", directory=str(directory), aside=str(aside))


def databases(disk: Disk, paths: StorePaths) -> list[Path]:
    """Return the directories in which databases of queues lie."""
    places = (paths.consume_queue_rocksdb, paths.consume_queue)
    return [place for place in places if disk.exists(place / DATABASE_MARKER)]


def set_databases_aside(disk: Disk, paths: StorePaths) -> Path | None:
    """Move every database of queues beside its place. Returns where one of them is kept; None if there was none."""
    asides = []
    for directory in databases(disk, paths):
        asides.append(aside_of(disk, directory))
        if directory == paths.consume_queue:
            _set_database_files_aside(disk, directory)
        else:
            disk.move(directory, asides[-1])
    return asides[0] if asides else None


def free_database_place(disk: Disk, paths: StorePaths) -> Path | None:
    """Move databases away as `set_databases_aside` does, and anything else that lies where Quarry's own
    database goes.
    """
    aside = set_databases_aside(disk, paths)
    if disk.exists(paths.consume_queue_rocksdb):
        disk.move(paths.consume_queue_rocksdb, aside_of(disk, paths.consume_queue_rocksdb))
    return aside


def _set_database_files_aside(disk: Disk, directory: Path) -> None:
    """Move the files of a database aside, but no folders: they may hold queue files. `CURRENT` goes last; without it,
    there is no database.
    """
    files = [entry.name for entry in disk.list_directory(directory) if not entry.is_directory]
    set_names_aside(disk, directory, sorted(files, key=lambda name: (name == DATABASE_MARKER, name)))


def _reason(stopped_by: EndOfData | Torn | Corrupt | None) -> str:
    return stopped_by.reason if isinstance(stopped_by, Torn | Corrupt) else "nothing was written there"


def _end_of_damage(segments: SegmentList, at: PhysicalOffset, durable_up_to: PhysicalOffset) -> PhysicalOffset | None:
    """Return where the log continues, or up to where it is to be filled; None if nothing follows that has to be
    reached.
    """
    segment_end = PhysicalOffset(segments.base_of(at) + segments.segment_size)
    if segment_end - at < BLANK_SIZE:
        return None
    following = next_whole(segments, at)
    if following is not None:
        return following
    if durable_up_to >= segment_end or is_whole(segments, segment_end):
        return segment_end
    return durable_up_to if durable_up_to - at >= RECORD_SIZE_MINIMUM else None
