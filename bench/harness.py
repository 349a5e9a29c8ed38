"""The common parts of benchmarks: samples are taken in alternating rounds, and compared with a peer.

Machines are shared and their speed drifts, so a single rate means little. Each benchmark measures a peer (another
server, or the bare resource below the code) in the same run, in turns with the code: A B A B. The ratio is the median
over the rounds of (ours / peer), each taken from two neighbouring samples.
"""

from __future__ import annotations

import gc
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple, Protocol

_CPU_CLOCK: Final = 2
"""The bits that clock_getcpuclockid(3) adds to a process id to name its clock."""

_LOOK_INTERVAL_S: Final = 0.02


class Scale(Enum):
    """The amount of work that the benchmarks do."""

    FULL = "full"  # for figures
    QUICK = "quick"  # for a first look: seconds each
    TINY = "tiny"  # to see that they run at all


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """The options of one run of the benchmarks. `scratch` is an empty directory that is removed afterwards."""

    scale: Scale
    seed: int
    scratch: Path
    named: bool
    """The benchmark was asked for by name, not only as one of all."""


class Server(Protocol):
    """A running server under load."""

    @property
    def endpoint(self) -> str: ...

    @property
    def pid(self) -> int: ...


class CannotRun(Exception):
    """Something that the benchmark needs is not on this machine. The text says what."""


def require_room(directory: Path, needed: int) -> None:
    """Raise CannotRun if the disk has fewer free bytes than needed."""
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise CannotRun(f"{needed >> 20} MiB of free disk are needed, there are {free >> 20}")


class Sample(NamedTuple):
    """Count what a stretch of work did, and the wall and CPU time (all threads) it took."""

    done: int
    wall_s: float
    cpu_s: float

    def joined(self, later: Sample) -> Sample:
        """Return both samples as one."""
        return Sample(self.done + later.done, self.wall_s + later.wall_s, self.cpu_s + later.cpu_s)

    @property
    def per_second(self) -> float:
        return self.done / self.wall_s

    @property
    def cpu_us(self) -> float:
        """CPU time per thing, in microseconds."""
        return self.cpu_s / self.done * 1e6


def measure(work: Callable[[], int]) -> Sample:
    """Time `work` in this process. `work` returns how many things it did.

    The garbage collector stays on, as in a broker, but does not examine objects that were prepared before.
    """
    gc.collect()
    gc.freeze()
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    done = work()
    sample = Sample(done, time.perf_counter() - wall_s, time.process_time() - cpu_s)
    gc.unfreeze()
    return sample


def cpu_s_of(pid: int) -> float:
    """Return the CPU time of a process so far: all threads, user and system, in nanoseconds' resolution (Linux)."""
    return time.clock_gettime(~pid << 3 | _CPU_CLOCK)


BYTES_PER_MESSAGE: Final = 1_400
"""Bytes that a message with a body of 1 KiB takes in a store: a record in the log and its entry."""


def wait_until_at_rest(pids: Sequence[int], *, look_s: float, cpu_share: float, timeout_s: float) -> None:
    """Wait until the disk has written everything, and each process takes less than this share of a core.

    Raises RuntimeError when that takes longer than the timeout.
    """
    os.sync()
    give_up_s = time.monotonic() + timeout_s
    while True:
        before_s = [cpu_s_of(pid) for pid in pids]
        time.sleep(look_s)
        if all(cpu_s_of(pid) - each < cpu_share * look_s for pid, each in zip(pids, before_s, strict=True)):
            return
        if time.monotonic() > give_up_s:
            raise RuntimeError(f"a process with nothing to do is still busy after {timeout_s} s")


def resident_bytes_of(pid: int) -> int:
    """Return the resident memory of a process, in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def private_bytes_of(pid: int) -> int:
    """Return the private memory of a process: without mapped files, which the kernel reclaims as it needs."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this kernel does not tell what memory is a process's own")


def read_bytes_of(pid: int) -> int:
    """Return the bytes that a process has read from block devices, by calls and mappings; 0 if not counted."""
    for line in Path(f"/proc/{pid}/io").read_text().splitlines():
        if line.startswith("read_bytes:"):
            return int(line.split()[1])
    return 0


@dataclass(slots=True)
class PeakMemory:
    """The highest private memory of this process, sampled every few milliseconds on its own thread."""

    bytes: int = 0


@contextmanager
def peak_memory() -> Iterator[PeakMemory]:
    """Measure the growth of private memory in the block: at its end `bytes` has the highest growth since its begin."""
    before = private_bytes_of(os.getpid())
    peak = PeakMemory()
    is_over = threading.Event()

    def look() -> None:
        peak.bytes = max(peak.bytes, private_bytes_of(os.getpid()) - before)

    def watch() -> None:
        while not is_over.wait(_LOOK_INTERVAL_S):
            look()

    watcher = threading.Thread(target=watch, name="memory-watcher")
    watcher.start()
    try:
        yield peak
    finally:
        is_over.set()
        watcher.join()
        look()


def alternate(rounds: int, ours: Callable[[], Sample], peer: Callable[[], Sample]) -> tuple[list[Sample], list[Sample]]:
    """Take samples of both in turns: ours, peer, ours, peer, … Neighbouring samples ran under similar conditions."""
    pairs = [(ours(), peer()) for _ in range(rounds)]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """The result for one set of circumstances. `details` are added to its JSON object unchanged."""

    name: str
    unit: str
    """The things that are counted: messages, reads."""
    peer: str
    """The name of what `ratio` compares with."""
    ours: Sequence[Sample]
    theirs: Sequence[Sample]
    details: Mapping[str, object] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """Our rate as a multiple of the peer's."""
        return median(a.per_second / b.per_second for a, b in zip(self.ours, self.theirs, strict=True))

    def facts(self) -> dict[str, object]:
        """Return the case as its JSON object."""
        return {
            "case": self.name,
            "unit": self.unit,
            "per_second": round(median_rate(self.ours), 1),
            "cpu_us": round(median_cpu_us(self.ours), 2),
            "ratio": round(self.ratio, 4),
            "peer": self.peer,
            "peer_per_second": round(median_rate(self.theirs), 1),
            "peer_cpu_us": round(median_cpu_us(self.theirs), 2),
            "runs": [round(each.per_second, 1) for each in self.ours],
            "peer_runs": [round(each.per_second, 1) for each in self.theirs],
            **self.details,
        }


def median_rate(samples: Sequence[Sample]) -> float:
    return median(each.per_second for each in samples)


def median_cpu_us(samples: Sequence[Sample]) -> float:
    return median(each.cpu_us for each in samples)
