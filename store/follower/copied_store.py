"""A copy of a primary's store: its log byte for byte, its rows of `quarry/`, and queues that follow from both.

What a copy receives is in the order of the primary: bytes of the log, batches of changes, and positions. A batch rests
on a position. It is applied when the queues have all records below this position and none above it. So the rows never
refer to a message that is not here, and a deletion finds the queues as they were when the primary deleted.

The row `replicated` says up to which batch and position a copy is. After a crash the log is cut there, before recovery,
and the primary sends the rest again: recovery alone would put entries into the queues that the rows do not know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import NamedTuple

from quarry_mq.kv.recording import Change, ChangeKind
from quarry_mq.protocol.clock import Clock, ReportProgress
from quarry_mq.store.engines import StoreEngines
from quarry_mq.store.errors import StoreUnusable
from quarry_mq.store.follower.followed_store import FollowedStore, follow
from quarry_mq.store.follower.points import PointsOnRequest
from quarry_mq.store.fs import CopyingDisk, Disk
from quarry_mq.store.layout.queue_phase import require_copyable
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.opening.open_store import Copied, RecoveredStore, recover_store
from quarry_mq.store.opening.repair import Orders
from quarry_mq.store.settings import StoreSettings
from quarry_mq.store.state.deletions import Deletion, Deletions
from quarry_mq.store.state.identity import FAMILIES, META, QUEUES_OUTDATED
from quarry_mq.store.state.state_log import (
    ALL_KEYS,
    AS_PRIMARY,
    StateCursor,
    decode_changes,
    is_own_row,
    put_cursor,
    read_cursor,
)


class QueuesOutdated(Exception):
    """The queues do not follow from the log and the rows any more: open the copy again, which rebuilds them.

    The primary has taken back a deletion, or the queues have records from before and after one.
    """


class _Waiting(NamedTuple):
    """Something that is applied when the log has reached its position."""

    cursor: StateCursor
    changes: Sequence[Change]


class CopiedStore:
    """A store that copies the store of a primary. One thread calls everything."""

    def __init__(self, recovered: RecoveredStore, followed: FollowedStore) -> None:
        """Continue a store that was opened by `open_copy`."""
        self._followed = followed
        self._engine = recovered.parts.state_engine
        self._meta = self._engine.family(META)
        self._waiting: list[_Waiting] = []
        cursor = read_cursor(self._engine)
        # the queues of a store that was a primary have all records of its log
        self._cursor = cursor._replace(position=followed.dispatched_up_to) if cursor.position < 0 else cursor
        self._snapshot: dict[str, dict[bytes, bytes]] | None = None
        self._primary_minimum = PhysicalOffset(0)

    @property
    def cursor(self) -> StateCursor:
        """Return how far the copy is: all changes up to a batch, and all records below a position."""
        return self._cursor

    @property
    def received_up_to(self) -> PhysicalOffset:
        """Return the end of the log as it was received."""
        return self._followed.received_up_to

    @property
    def flushed_up_to(self) -> PhysicalOffset:
        """Return the end of the log that is durable."""
        return self._followed.flushed_up_to

    @property
    def minimum(self) -> PhysicalOffset:
        """Return the offset where the log begins."""
        return self._followed.minimum

    @property
    def segment_size(self) -> int:
        """Return the size of the log's segments in bytes."""
        return self._followed.segment_size

    # -- what the primary sends, in its order

    def receive(self, offset: PhysicalOffset, data: bytes | memoryview) -> None:
        """Write bytes of the primary's log; see `FollowedStore.receive` for what it raises."""
        self._followed.receive(offset, data)

    def drop_waiting(self) -> None:
        """Drop what was taken and not applied."""
        self._waiting, self._snapshot = [], None

    def take(self, cursor: StateCursor, changes: bytes | memoryview) -> None:
        """Take a batch of changes; it is applied by `commit`. Raises Invalid if it cannot be read."""
        self._waiting.append(_Waiting(cursor, decode_changes(changes)))

    def take_rows(self, part: bytes | memoryview) -> None:
        """Take a part of all rows of the primary. Raises Invalid if it cannot be read."""
        if self._snapshot is None:
            self._snapshot = {name: {} for name in FAMILIES}
        for change in decode_changes(part):
            self._snapshot[change.family][change.key] = change.value

    def rows_end(self, cursor: StateCursor) -> None:
        """Let the rows that were taken replace those that are here, once the log has reached the cursor's position."""
        rows, self._snapshot = self._snapshot or {name: {} for name in FAMILIES}, None
        self._waiting = [_Waiting(cursor, self._changes_to(rows))]

    def reach(self, cursor: StateCursor) -> None:
        """Let the queues have the records below the cursor's position: all changes up to its batch were taken before.

        If the log is not as far yet, it happens later.
        """
        if self._waiting and not self._waiting[-1].changes:
            self._waiting.pop()
        if cursor != self._cursor:
            self._waiting.append(_Waiting(cursor, ()))

    def note_log_begin(self, minimum: PhysicalOffset) -> None:
        """Note where the log of the primary begins: changes that come later may rest on that."""
        self._primary_minimum = minimum

    def retire(self, minimum: PhysicalOffset) -> None:
        """Remove the segments below `minimum`, as the primary has done; see `FollowedStore.retire`."""
        if minimum > self.minimum:
            self.flush()
            self._followed.retire(minimum)

    # -- applying it

    def commit(self) -> None:
        """Make everything received durable, and apply what the log has reached.

        Raises StorePoisoned, StoreDamaged, kv.KvError; QueuesOutdated, then the rows are up to date.
        """
        end = self._followed.flush_log()
        ready = 0
        while ready < len(self._waiting) and self._waiting[ready].cursor.position <= end:
            ready += 1
        reached, self._waiting = self._waiting[:ready], self._waiting[ready:]
        # batches without deletions are applied at once: a batch more than one position later still refers to records
        # that are here
        for has_deletions, steps in groupby(reached, lambda step: any(map(_deletion_of, step.changes))):
            for run in ([step] for step in steps) if has_deletions else (list(steps),):
                self._apply(run[-1].cursor, [change for step in run for change in step.changes])

    def _apply(self, cursor: StateCursor, changes: Sequence[Change]) -> None:
        is_outdated = not self._delete_queues(changes)
        if not is_outdated:
            self._followed.dispatch(cursor.position)
        batch = self._engine.batch()
        for kind, name, key, value in changes:
            if is_own_row(name, key):
                continue
            family = self._engine.family(name)
            if kind == ChangeKind.PUT:
                batch.put(family, key, value)
            elif kind == ChangeKind.DELETE:
                batch.delete(family, key)
            else:
                batch.delete_range(family, ALL_KEYS._replace(start=key, end=value))
        cursor = cursor._replace(position=max(cursor.position, self._cursor.position))
        if changes or cursor != self._cursor:
            put_cursor(self._engine, batch, cursor)
            if is_outdated:
                batch.put(self._meta, QUEUES_OUTDATED, b"")
            self._engine.write(batch, sync=True)  # the copy acknowledges it
        self._cursor = cursor
        if is_outdated:
            raise QueuesOutdated

    def _delete_queues(self, changes: Iterable[Change]) -> bool:
        """Delete the queues that the primary has deleted with these changes; return False if that is not possible."""
        for change in changes:
            if change.family != META or change.kind == ChangeKind.DELETE_RANGE:
                continue
            before = self._meta.get(change.key)
            old = None if before is None else Deletions.read_row(change.key, before)
            new = Deletions.read_row(change.key, change.value) if change.kind == ChangeKind.PUT else None
            if old == new:
                continue
            if new is None or (old is not None and new.below < old.below):
                if not self._is_forgotten(old, new):
                    return False
                if old is not None:
                    self._followed.lower_deletion(old, new)
            elif not self._followed.delete(new.name, new.below):
                return False
        return True

    def _is_forgotten(self, old: Deletion | None, new: Deletion | None) -> bool:
        """Return whether a deletion may disappear: its records have expired, or no record is here that it concerns."""
        if old is None or old.below <= max(self.minimum, self._primary_minimum):
            return True
        return new is not None and new.below >= self._followed.dispatched_up_to

    def _changes_to(self, rows: Mapping[str, Mapping[bytes, bytes]]) -> list[Change]:
        """Return the changes that make the rows here equal to the given ones."""
        changes: list[Change] = []
        for name, wanted in rows.items():
            missing = dict(wanted)
            for key, value in self._engine.family(name).iterate(ALL_KEYS):
                if is_own_row(name, key):
                    continue
                new = missing.pop(key, None)
                if new is None:
                    changes.append(Change(ChangeKind.DELETE, name, key, b""))
                elif new != value:
                    changes.append(Change(ChangeKind.PUT, name, key, new))
            changes += [Change(ChangeKind.PUT, name, key, value) for key, value in missing.items()]
        return changes

    def make_wanted_point(self) -> None:
        """Make a point if a command wants one; see `FollowedStore.make_wanted_point`."""
        self._followed.make_wanted_point()

    def flush(self) -> None:
        """Make the queues durable, and write down how far the copy is, so that a crash takes little back."""
        batch = self._engine.batch()
        put_cursor(self._engine, batch, self._cursor)
        self._engine.write(batch)
        self._followed.flush_queues()

    def close(self, *, keeps_end: bool = False) -> None:
        """Close the copy. The log ends where the queues end, so that the primary sends the rest again.

        With `keeps_end` it ends after its last whole record: there may be nobody who sends the rest.
        """
        self.flush()
        self._followed.close(up_to=None if keeps_end else self._cursor.position)

    def close_for_promotion(self) -> PhysicalOffset:
        """Close the copy with all whole records that were received, and return the end of the log.

        Raises what `commit` raises.
        """
        self.commit()
        self._followed.commit()
        end = self._followed.dispatched_up_to
        self._cursor = self._cursor._replace(position=AS_PRIMARY)
        self.flush()
        self._followed.close()
        return end


def _deletion_of(change: Change) -> bool:
    return change.family == META and Deletions.is_row(change.key)


def recover_copy(
    settings: StoreSettings,
    *,
    disk: Disk,
    clock: Clock,
    report: ReportProgress,
    copied: Copied,
    engines: StoreEngines | None = None,
) -> RecoveredStore:
    """Recover the copy at `settings.root`, with its queues rebuilt if they are outdated.

    Raises what `recover_store` raises, and StoreUnusable if queues are in files.
    """
    recover = partial(recover_store, settings, disk=disk, clock=clock, report=report, engines=engines, followed=copied)
    recovered = recover()
    if recovered.parts.identity.queues_outdated:
        recovered.close()
        recovered = recover(orders=Orders(rebuild_queues=True))
        recovered.parts.identity.queues_rebuilt()
    try:
        require_copyable(recovered.parts.queues.phase, settings.root)
    except StoreUnusable:
        recovered.close()
        raise
    return recovered


def open_copy(
    settings: StoreSettings,
    *,
    disk: CopyingDisk,
    clock: Clock,
    report: ReportProgress,
    copied: Copied,
    begin: PhysicalOffset,
) -> CopiedStore:
    """Open the copy at `settings.root` to continue it, or make an empty one, whose log begins at `begin`.

    Raises what `recover_copy` raises.
    """
    recovered = recover_copy(settings, disk=disk, clock=clock, report=report, copied=copied)
    for entry in disk.list_directory(settings.root):
        if ".set-aside-" in entry.name:
            disk.remove_tree(
                settings.root / entry.name
            )  # made again from the log and the rows; nothing is lost with it
    points = PointsOnRequest(disk, settings.root, clock)
    return CopiedStore(recovered, follow(recovered, begin=begin, points=points))
