"""Export metrics of the process and its last recovery, and those of Prometheus' library for any Python process.

Metrics of the process are read from the operating system's reports of it.
"""

from __future__ import annotations

import gc
import platform
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric

from quarry_mq.protocol.clock import Clock, Progress
from quarry_mq.server.counters import BucketHistogram

LATE_BOUNDS_S: Final = tuple(0.001 * 2**step for step in range(13))
"""Bounds of the histogram, 1 ms … 4 s."""

PAUSE_BOUNDS_S: Final = tuple(0.000_1 * 4**step for step in range(9))
"""Bounds of the histogram, 100 µs … 6.5 s."""


class ProcessStats:
    """Hold the measurements, which are counted where they happen and read on any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.loop_late: Final = BucketHistogram(LATE_BOUNDS_S)
        self.pauses: Final = BucketHistogram(PAUSE_BOUNDS_S)
        self._pause_began_s = 0.0
        self._latest_s: float | None = None

    def late(self, seconds: float) -> None:
        """Note that the event loop was late by `seconds`."""
        self.loop_late.add(seconds)
        self._latest_s = max(seconds, self._latest_s or 0.0)

    def take_latest_s(self) -> float | None:
        """Return how late the loop was at worst since the last call; None if it was not measured meanwhile."""
        latest_s, self._latest_s = self._latest_s, None
        return latest_s

    @contextmanager
    def watching_garbage(self) -> Iterator[None]:
        """Time each search for cyclic garbage."""
        gc.callbacks.append(self._searched)
        try:
            yield
        finally:
            gc.callbacks.remove(self._searched)

    def _searched(self, phase: str, _: dict[str, Any]) -> None:
        if phase == "start":
            self._pause_began_s = self._clock.monotonic_s()
        else:
            self.pauses.add(self._clock.monotonic_s() - self._pause_began_s)


class PhaseStats:
    """Hold when one phase of the opening ran and how much log it read. Times are on the monotonic clock."""

    __slots__ = ("began_s", "done_bytes", "ended_s")

    def __init__(self, began_s: float) -> None:
        self.began_s = self.ended_s = began_s
        self.done_bytes = 0


class RecoveryStats:
    """Hold the phases of the last opening by name. Reported on one thread, read on any."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._phases: dict[str, PhaseStats] = {}
        self._last_s = clock.monotonic_s()

    def report(self, progress: Progress) -> None:
        """Note the progress of a phase, which lasts from the report before its first one to its last."""
        now_s = self._clock.monotonic_s()
        phase = self._phases.get(progress.phase) or self._phases.setdefault(progress.phase, PhaseStats(self._last_s))
        phase.ended_s = self._last_s = now_s
        phase.done_bytes = max(phase.done_bytes, progress.done_bytes)

    def phases(self) -> list[tuple[str, PhaseStats]]:
        return list(self._phases.items())


def watch_python(registry: CollectorRegistry) -> None:
    """Export memory, open files, CPU time and start of the process, and Python's counts of garbage."""
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)


def process_metrics(stats: ProcessStats, version: str) -> Iterator[Metric]:
    build = GaugeMetricFamily(
        "quarry_build_info", "Always 1; the labels tell the versions of Quarry and Python", labels=["version", "python"]
    )
    build.add_metric([version, platform.python_version()], 1)
    yield build
    yield HistogramMetricFamily(
        "quarry_loop_late_seconds",
        "How late the event loop ran a check that is due twice a second",
        buckets=list(stats.loop_late.buckets()),
        sum_value=stats.loop_late.total,
    )
    yield HistogramMetricFamily(
        "quarry_garbage_pause_seconds",
        "Duration of Python's garbage collections, which stop everything else",
        buckets=list(stats.pauses.buckets()),
        sum_value=stats.pauses.total,
    )


def recovery_metrics(stats: RecoveryStats) -> Iterator[Metric]:
    seconds = GaugeMetricFamily(
        "quarry_recovery_seconds", "Duration of the last opening of the store, by phase", labels=["phase"]
    )
    read = GaugeMetricFamily(
        "quarry_recovery_bytes", "Bytes of commit log that the last opening read, by phase", labels=["phase"]
    )
    for name, phase in stats.phases():
        seconds.add_metric([name], phase.ended_s - phase.began_s)
        read.add_metric([name], phase.done_bytes)
    yield seconds
    yield read


_STATM: Final = Path("/proc/self/statm")
_STATUS: Final = Path("/proc/self/status")
_FILES: Final = Path("/proc/self/fd")
_PAGE_SIZE: Final = resource.getpagesize()


def cpu_seconds() -> float:
    """Return the CPU seconds of all threads since the start."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def resident_bytes() -> int | None:
    """Return the process's resident memory; None if the system does not report it."""
    with suppress(OSError, ValueError, IndexError):
        return int(_STATM.read_bytes().split()[1]) * _PAGE_SIZE
    return None


def own_bytes() -> int | None:
    """Return the memory in use without mapped files, which come and go; None if the system does not report it."""
    with suppress(OSError, ValueError, IndexError):
        resident, shared = _STATM.read_bytes().split()[1:3]
        return (int(resident) - int(shared)) * _PAGE_SIZE
    return None


def open_files() -> int | None:
    """Return the number of open files, in time linear in it; None if the system does not report it."""
    with suppress(OSError):
        return sum(1 for _ in _FILES.iterdir()) - 1  # the one that this call has opened
    return None


def open_files_if_many(many: int) -> int:
    """Return the number of open files; 0 if the size of the kernel's table shows that they are fewer than `many`."""
    with suppress(OSError, ValueError, IndexError, StopIteration):
        table = next(line for line in _STATUS.read_text().splitlines() if line.startswith("FDSize:"))
        if int(table.split()[1]) < many:
            return 0
    return open_files() or 0
