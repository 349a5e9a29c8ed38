"""Points of a store that is followed: a command reads one while the store goes on.

    <store>/backup/follower    locked by the process that follows
    <store>/backup/wanted      locked by a command for as long as it wants a point
    <store>/backup/made        a JSON object: the name of the point and where its log ends, or why it could not be made
    <store>/backup/<name>/     the point: a whole store, of second names of the segments and copies of the databases

The process that follows looks for the command's lock between two steps, and is the only one that writes here. It
removes the point when nobody holds the lock, so also when the command was killed, and when the store is opened.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Final, NamedTuple

from quarry_mq.kv import KvError
from quarry_mq.protocol.clock import Clock, Progress, ReportProgress
from quarry_mq.store.errors import Busy, StoreUnusable
from quarry_mq.store.fs import CopyingDisk, Disk, DiskLock
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.message import PhysicalOffset

LOOK_S: Final = 0.05
WAIT_S: Final = 60.0
"""Seconds for which a command waits for a point: the process may be at a long step."""

_NAME: Final = re.compile(r"[0-9]{13,}")
"""A wall clock in milliseconds, as in the points of a broker."""


class _Files:
    """The paths in the folder of points."""

    def __init__(self, root: Path) -> None:
        self.folder = StorePaths(root).backup_points
        self.follower = self.folder / "follower"
        self.wanted = self.folder / "wanted"
        self.made = self.folder / "made"


class PointsOnRequest:
    """Makes points of a store in the process that follows, which calls everything on one thread."""

    def __init__(self, disk: CopyingDisk, root: Path, clock: Clock) -> None:
        """Begin when the store was opened: points of an earlier opening are not valid any more."""
        self._disk = disk
        self._files = _Files(root)
        self._clock = clock
        self._lock: DiskLock | None = None
        disk.make_directories(self._files.folder)
        self._remove()

    def look(self, make: Callable[[CopyingDisk, Path], PhysicalOffset]) -> None:
        """Let `make` make a point in a folder if a command wants one, and remove the point that no command wants.

        `make` returns where the log ends. It may raise OSError, kv.KvError and StoreUnusable: the command says so.
        """
        disk, files = self._disk, self._files
        if self._lock is None:
            self._lock = _locked(disk, files.follower)
        if not disk.exists(files.wanted):
            return
        free = _locked(disk, files.wanted)
        if free is not None:
            self._remove()
            free.release()
        elif not disk.exists(files.made):
            disk.replace_atomically(files.made, json.dumps(self._make(make)).encode())

    def _make(self, make: Callable[[CopyingDisk, Path], PhysicalOffset]) -> dict[str, object]:
        name = str(self._clock.wall_ms()).zfill(13)
        try:
            self._disk.make_directories(self._files.folder / name)
            return {"name": name, "logEnd": make(self._disk, self._files.folder / name)}
        except (OSError, KvError, StoreUnusable) as error:
            return {"problem": str(error)}

    def _remove(self) -> None:
        disk, files = self._disk, self._files
        if disk.exists(files.made):
            disk.remove(files.made)  # first: without it the rest is no point
        for entry in disk.list_directory(files.folder):
            if entry.is_directory and _NAME.fullmatch(entry.name):
                disk.remove_tree(files.folder / entry.name)

    def close(self) -> None:
        """Remove the point, and answer no more."""
        self._remove()
        if self._lock is not None:
            self._lock.release()


class FollowerPoint(NamedTuple):
    """A point of a store that another process follows."""

    root: Path
    log_end: PhysicalOffset


def is_followed(disk: Disk, root: Path) -> bool:
    """Return whether a process follows in this folder, so that it makes points."""
    try:
        disk.lock_shared(_Files(root).follower).release()
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


@contextmanager
def point_of_follower(disk: Disk, root: Path, clock: Clock, report: ReportProgress) -> Iterator[FollowerPoint]:
    """Give a point of a followed store while the block runs.

    Raises Busy if the process does not make one in time, or opens the store again while the block runs; StoreUnusable
    with its reason if it cannot make one; OSError.
    """
    files, pause = _Files(root), Event()
    deadline_s = clock.monotonic_s() + WAIT_S

    def waiting() -> None:
        if clock.monotonic_s() > deadline_s:
            raise Busy(f"{root}: the process that follows has made no point within {WAIT_S:.0f} s: try again")
        report(Progress("waiting for the process that follows", 0, 0))
        pause.wait(LOOK_S)

    while (lock := _locked(disk, files.wanted)) is None:  # another command has it, or the process looks
        waiting()
    try:
        while not disk.exists(files.made):
            waiting()
        made = disk.read(files.made)
        found = json.loads(made)
        if "problem" in found:
            raise StoreUnusable(root, f"the process that follows could make no point: {found['problem']}")
        try:
            yield FollowerPoint(files.folder / found["name"], PhysicalOffset(found["logEnd"]))
        finally:
            if not disk.exists(files.made) or disk.read(files.made) != made:
                raise Busy(f"{root}: the store was closed or opened again meanwhile: try again")
    finally:
        lock.release()


def _locked(disk: Disk, path: Path) -> DiskLock | None:
    """Return the lock of a file; None if somebody else has it."""
    try:
        return disk.lock(path)
    except BlockingIOError:
        return None
