"""Makes points of a live broker from which a backup can be copied.

A point is one moment: the two databases as they were, copied by hard links into a folder of the store, and an offset
below which the log is durable and holds everything that they refer to. While the point is pinned, segments from the
log's beginning at that moment on do not expire. The copying process renews the point's lease; if the process dies the
lease ends, and the point is removed.

The broker makes the point and nothing else: it opens no file that a caller names. The command copies, on the same
machine, with the rights of the user that runs it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import structlog

from quarry_mq.kv import KeyValueEngine
from quarry_mq.protocol.clock import Clock
from quarry_mq.store.backup import BackupPoint
from quarry_mq.store.commitlog import KeptSize, SegmentList
from quarry_mq.store.commitlog.segments import SegmentPins
from quarry_mq.store.errors import Busy, Invalid
from quarry_mq.store.fs import CopyingDisk
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.state.identity import FAMILIES

log = structlog.get_logger(__name__)

LEASE_S: Final = 60.0
_NAME: Final = re.compile(r"[0-9]{13,}")
"""A wall clock in milliseconds."""
POINTS_MAX: Final = 4
"""Largest number of points at once: each keeps old tables and segments on the disk."""


class PointedStore(Protocol):
    """The part of the message store that a point needs."""

    @property
    def flushed_up_to(self) -> PhysicalOffset: ...

    @property
    def dispatched_up_to(self) -> PhysicalOffset: ...

    def flush(self) -> PhysicalOffset: ...

    def flush_entries(self) -> None: ...


class Engines(NamedTuple):
    """The databases of a store, and the name of the folder in which the queues' database lies."""

    queues: Callable[[], KeyValueEngine | None]
    """Returns the queues' database that is open now, or None when the queues are in files alone.

    A backup leaves out such files: the first start of the restored store rebuilds them.
    """
    queues_folder: str
    state: KeyValueEngine


class BackupLeases(Protocol):
    """The part of `BackupPoints` that its callers need."""

    async def begin(self) -> BackupPoint: ...

    def renew(self, name: str) -> None: ...

    def end(self, name: str) -> None: ...


class BackupPoints:
    """Makes, holds and removes points. Lives on the event loop's thread."""

    def __init__(
        self,
        root: Path,
        *,
        store: PointedStore,
        segments: SegmentList,
        engines: Engines,
        pins: SegmentPins,
        disk: CopyingDisk,
        clock: Clock,
        write_state: Callable[[], None],
    ) -> None:
        """`write_state` writes what delivery has staged; clients get their answers only after such a write.

        Points that an earlier broker left are removed.
        """
        self._paths = StorePaths(root.absolute())
        self._store = store
        self._segments = segments
        self._engines = engines
        self._pins = pins
        self._disk = disk
        self._clock = clock
        self._write_state = write_state
        self._points: dict[str, BackupPoint] = {}
        self._last_ms = 0
        for entry in disk.list_directory(self._paths.backup_points):
            if entry.is_directory and _NAME.fullmatch(entry.name):  # other names are not the broker's
                disk.remove_tree(self._paths.backup_points / entry.name)

    async def begin(self) -> BackupPoint:
        """Make a point, held for `LEASE_S`.

        Raises Busy, KvError, StorePoisoned or OSError; then nothing is left behind.
        """
        if len(self._points) >= POINTS_MAX:
            raise Busy(f"{POINTS_MAX} backups are already being made")
        self._last_ms = max(self._clock.wall_ms(), self._last_ms + 1)
        name = str(self._last_ms)
        with ExitStack() as on_failure:
            on_failure.callback(self._remove, name)
            self._pins.pin(name, self._segments.minimum, LEASE_S)
            self._disk.make_directories(self._paths.backup_points / name)
            await asyncio.to_thread(self._flush_beforehand)
            self._copy_databases(self._paths.backup_points / name)
            point = BackupPoint(
                name=name,
                root=self._paths.root,
                # read now: a removal that was under way when the point was pinned has ended
                log_begin=self._segments.minimum,
                # not sooner: a group's offset may lie after every message that was visible when it was copied
                log_end=await asyncio.to_thread(self._store.flush),
                segment_size=self._segments.segment_size,
            )
            self._pins.renew(name, LEASE_S)
            self._points[name] = point
            on_failure.pop_all()
        log.info("backup point made", name=name, log_begin=point.log_begin, log_end=point.log_end)
        return point

    def renew(self, name: str) -> None:
        """Hold the point for another `LEASE_S`. Raises Invalid when it is gone."""
        self._pins.renew(name, LEASE_S)

    def end(self, name: str) -> None:
        """Remove the point. Raises Invalid when there is none of the name."""
        if name not in self._points:
            raise Invalid(f"there is no backup point {name}")
        self._remove(name)

    def sweep(self) -> None:
        """Remove the points whose lease is over."""
        for name in list(self._points):
            if not self._pins.holds(name):
                log.warning("the lease of a backup point is over, it is removed", name=name)
                self._remove(name)

    def _flush_beforehand(self) -> None:
        """Do the long part of the flush beside running work: entries on disk never point beyond the durable log."""
        self._store.flush()
        self._store.flush_entries()
        self._engines.state.flush(FAMILIES)

    def _copy_databases(self, directory: Path) -> None:
        """Copy the databases in one step on the loop's thread.

        Nothing is dispatched, delivered or administered meanwhile. So metadata refers to nothing that the queues do not
        have, and both fit together. Only hard links and the flush of the last milliseconds are left to do here.
        """
        self._write_state()
        if self._store.dispatched_up_to > self._store.flushed_up_to:
            self._store.flush()  # under async durability consumers see messages that are not durable yet
        queues = self._engines.queues()
        if queues is not None:
            queues.checkpoint(directory / self._engines.queues_folder)
        self._engines.state.checkpoint(directory / self._paths.quarry.name)
        if len(self._segments):
            KeptSize(self._disk, directory / self._paths.quarry.name).keep(self._segments.segment_size)
        try:
            checkpoint = self._disk.read(self._paths.checkpoint)
        except FileNotFoundError:
            return
        self._disk.replace_atomically(directory / self._paths.checkpoint.name, checkpoint)

    def _remove(self, name: str) -> None:
        self._points.pop(name, None)
        self._pins.release(name)
        try:
            self._disk.remove_tree(self._paths.backup_points / name)
        except OSError as error:
            log.warning("a backup point could not be removed, the next start does", name=name, error=str(error))
