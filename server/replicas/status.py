"""The status of a copy says how far it is: as its primary knows it, or as the copy itself does and writes it down."""

from __future__ import annotations

import contextlib
import json
from collections import deque
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple

from quarry_mq.protocol.clock import Clock
from quarry_mq.store.fs import Disk
from quarry_mq.store.layout.paths import StorePaths

ENDS_KEPT: Final = 1_024
NOTED_EVERY_S: Final = 5.0
FRESH_S: Final = 15.0
"""Seconds after which the process that wrote the file has ended, or does a long step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaStatus:
    """A status says how far a copy is.

    The lag is what the primary has and the copy has not: durable bytes of the log, changes of `quarry/`, and for how
    long the primary has had the oldest of both. On the copy itself it counts to what the primary last said.
    """

    name: str
    address: str = ""
    """The address from which the copy connects; empty on the copy itself."""
    primary: str = ""
    """The name of the primary that the copy follows; empty on the primary."""
    is_connected: bool = False
    is_seeding: bool = False
    flushed: int = 0
    position: int = 0
    """The offset up to which the queues have the log."""
    number: int = 0
    """The number of the last change that the rows have."""
    lag_bytes: int = 0
    lag_changes: int = 0
    lag_s: float = 0.0
    heard_at_ms: int | None = None
    """The time when the copy last heard of its primary; None if it never did."""
    problem: str = ""

    @property
    def missing(self) -> str:
        """Return the words for what the copy does not have."""
        return f"{self.lag_bytes:,} bytes and {self.lag_changes:,} change{'' if self.lag_changes == 1 else 's'}"

    @property
    def document(self) -> dict[str, object]:
        """Return what a copy says about itself to programs."""
        return {
            "replica": self.name,
            "primary": self.primary or None,
            "connected": self.is_connected,
            "seeding": self.is_seeding,
            "logEnd": self.position,
            "missingBytes": self.lag_bytes,
            "missingChanges": self.lag_changes,
            "lagSeconds": round(self.lag_s, 3),
            "heardAtMs": self.heard_at_ms,
        }

    def text(self, now_ms: int) -> str:
        """Return one line about the copy itself, for operators."""
        if self.is_connected:
            seeding = "seeding, " if self.is_seeding else ""
            return f"follows {self.primary}: {seeding}{self.lag_s:.1f} s, {self.missing} behind"
        if self.heard_at_ms is None:
            return f"no primary: {self.problem}"
        ago_s = max(0, now_ms - self.heard_at_ms) / 1000
        return f"no primary: {self.problem}, last heard of {ago_s:.0f} s ago, {self.missing} behind"


class End(NamedTuple):
    """An end of the primary at a moment: of its durable log, and of the changes of its rows."""

    offset: int
    number: int

    def is_in(self, status: ReplicaStatus) -> bool:
        """Return whether a copy has all up to here."""
        return self.offset <= status.position and self.number <= status.number


class Lag:
    """The ends of a primary over time tell how far a copy is behind. May be used from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ends: deque[tuple[float, End]] = deque()
        self._lock = Lock()

    def measured(self, status: ReplicaStatus, end: End) -> ReplicaStatus:
        """Note the end of the primary as it is now, and return the copy's status with its lag; call it often."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            while self._ends and self._ends[0][1].is_in(status):
                self._ends.popleft()
            if len(self._ends) == ENDS_KEPT:  # the oldest one counts, and the newest
                self._ends.pop()
            if not end.is_in(status) and (not self._ends or self._ends[-1][1] != end):
                self._ends.append((now_s, end))
            since_s = self._ends[0][0] if self._ends else now_s
        return replace(
            status,
            lag_bytes=max(0, end.offset - status.position),
            lag_changes=max(0, end.number - status.number),
            lag_s=now_s - since_s,
        )


class LastFollowed(NamedTuple):
    """A copy has written this about how it follows."""

    at_ms: int
    is_running: bool
    """False once its process has stopped in order, or leads."""
    status: ReplicaStatus

    def is_fresh(self, now_ms: int) -> bool:
        """Return whether the process that wrote it still follows, as far as its age says.

        A clock that was set back tells no age.
        """
        return self.is_running and 0 <= now_ms - self.at_ms < 1000 * FRESH_S


class FollowingFile:
    """The file `replication/following.json` says how a copy last followed, for commands on its machine.

    It stays when the copy ends or is promoted, so that it can be told what a promotion may have lost.
    """

    def __init__(self, disk: Disk, root: Path, clock: Clock) -> None:
        self._disk = disk
        self._path = StorePaths(root).replication / "following.json"
        self._clock = clock
        self._noted_s: float | None = None
        self._is_connected = False

    def note(self, status: ReplicaStatus, *, is_running: bool = True) -> None:
        """Write the file, if it is due. A disk that takes no file does not keep a copy from following."""
        now_s = self._clock.monotonic_s()
        is_news = not is_running or status.is_connected != self._is_connected
        if self._noted_s is not None and not is_news and now_s - self._noted_s < NOTED_EVERY_S:
            return
        self._noted_s, self._is_connected = now_s, status.is_connected
        document = {"at_ms": self._clock.wall_ms(), "is_running": is_running, **asdict(status)}
        with contextlib.suppress(OSError):
            self._disk.make_directories(self._path.parent)
            data = json.dumps({_camel(name): value for name, value in document.items()})
            self._disk.replace_atomically(self._path, data.encode() + b"\n")

    def read(self) -> LastFollowed | None:
        """Return what the file says; None if it cannot be read."""
        try:
            found = json.loads(self._disk.read(self._path))
            status = ReplicaStatus(**{each.name: found[_camel(each.name)] for each in fields(ReplicaStatus)})
            return LastFollowed(int(found["atMs"]), bool(found["isRunning"]), status)
        except (OSError, ValueError, TypeError, KeyError):
            return None


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))
