"""The files by which a process that follows RocketMQ says how far it is, and is ordered to cut over.

<store>/quarry/FOLLOWING         a JSON object: the last report
<store>/quarry/CUT_OVER_ORDER    the order; it stays until it is carried out or the cut-over has failed
<store>/quarry/CUT_OVER          the cut-over is complete: a broker may open the store
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from quarry_mq.protocol.clock import Clock
from quarry_mq.store.fs import Disk
from quarry_mq.store.layout.paths import StorePaths

NOTED_EVERY_S: Final = 2.0


class State(StrEnum):
    """The state of a process that follows."""

    FOLLOWING = "following"
    CUTTING_OVER = "cutting-over"
    CUT_OVER = "cut-over"
    SERVED = "served"
    """The store cannot follow, since a broker has served it."""


NAMES: Final = {
    "state": "state",
    "broker": "broker",
    "at_ms": "atMs",
    "log_begin": "logBegin",
    "log_end": "logEnd",
    "lag_size": "behind",
    "problem": "problem",
    "failure": "failure",
    "refused_s": "refusedSeconds",
}
"""Each field of a report with its name in the file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """A report says how far a process is that follows RocketMQ."""

    state: State
    broker: str
    """The address of the broker that is followed."""
    at_ms: int = 0
    """The time of the report."""
    log_begin: int = 0
    log_end: int = 0
    """The end of the log up to which the queues here have everything."""
    lag_size: int = 0
    """The bytes of the broker's log that are not in the queues here."""
    problem: str = ""
    """The reason why nothing is received now."""
    failure: str = ""
    """The reason why the last cut-over has failed."""
    refused_s: float | None = None
    """The seconds from the first refused message to the end of the cut-over."""

    @classmethod
    def parse(cls, text: str | bytes) -> Report | None:
        """Return the report that a text has; None for any other text."""
        try:
            found = json.loads(text)
            values = {each.name: found[NAMES[each.name]] for each in fields(cls)}
            return cls(**{**values, "state": State(values["state"])})
        except (ValueError, TypeError, KeyError):
            return None

    @property
    def text(self) -> str:
        """Return the text that `parse` reads."""
        return json.dumps({NAMES[name]: value for name, value in asdict(self).items()})

    @property
    def news(self) -> tuple[object, ...]:
        """Return the fields whose change is written down at once: not those that grow with the log."""
        return self.state, self.broker, self.problem, self.failure, self.refused_s


class FollowerFiles:
    """The files of one store."""

    def __init__(self, disk: Disk, root: Path, clock: Clock) -> None:
        self._disk = disk
        self._paths = StorePaths(root)
        self._clock = clock
        self._noted_s = 0.0
        self._noted: tuple[object, ...] = ()

    @property
    def has_store(self) -> bool:
        """Return whether a store has begun here."""
        return self._disk.exists(self._paths.quarry)

    def note(self, report: Report) -> None:
        """Write a report, if it is due. A disk that takes no file does not keep the process from following."""
        now_s = self._clock.monotonic_s()
        if report.news != self._noted or now_s - self._noted_s >= NOTED_EVERY_S:
            self._noted_s, self._noted = now_s, report.news
            text = replace(report, at_ms=self._clock.wall_ms()).text
            with contextlib.suppress(OSError):
                self._disk.replace_atomically(self._paths.following, text.encode() + b"\n")

    def read(self) -> Report | None:
        """Return the last report; None if no report can be read."""
        try:
            return Report.parse(self._disk.read(self._paths.following))
        except OSError:
            return None

    def order(self) -> None:
        """Order the process that follows to cut over. Raises OSError."""
        self._disk.replace_atomically(self._paths.cut_over_order, b"")

    def is_ordered(self) -> bool:
        """Return whether a cut-over is ordered."""
        return self._disk.exists(self._paths.cut_over_order)

    def drop_order(self) -> None:
        """Remove the order, if there is one."""
        self._disk.remove(self._paths.cut_over_order)

    def complete(self, log_end: int) -> None:
        """Let a broker open the store, whose log ends there. Raises OSError."""
        self._disk.replace_atomically(self._paths.cut_over, b"%d\n" % log_end)

    def is_complete(self) -> bool:
        """Return whether a broker may open the store."""
        return self._disk.exists(self._paths.cut_over)

    def take_back(self) -> None:
        """Let no broker open the store, after which RocketMQ takes messages again."""
        if self.is_complete():
            self.drop_order()  # first: it was carried out
            self._disk.remove(self._paths.cut_over)
