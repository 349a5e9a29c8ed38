"""Measures how long `quarry serve` takes to be ready on a large store, after a clean stop and after kill -9.

A store with records of 1 to 16 KiB is started again and again with the real command: after clean stops, and after a
process that appended more than the queues' database had stored killed itself. The peer is the same broker on an empty
store; after kill -9 it also reads, from the device, as many bytes as were new.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from typing import Final

from bench.harness import Case, Options, Sample, Scale, alternate, cpu_s_of
from bench.peers.quarry import PROJECT, Quarry
from bench.scratch_store import make_messages
from quarry_mq.kv.options import MIB
from quarry_mq.protocol.clock import SystemClock
from quarry_mq.store.commitlog import SegmentList
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.opening.open_store import open_store
from quarry_mq.store.settings import Durability, StoreSettings

QUESTION: Final = "How long does a broker take to be ready on a large store, after a clean stop and after kill -9?"
BODY_SIZES: Final = range(1024, 16 * 1024 - 512)
ROUND_MESSAGES: Final = 64
FLUSH_EVERY_BYTES: Final = 256 * MIB
TARGET_S: Final = 2.0
"""Target for a start after a clean stop, in seconds."""


@dataclass(frozen=True, slots=True)
class Sizes:
    log_bytes: int
    new_bytes: tuple[int, ...]
    """Bytes that are appended before the process is killed, and that the queues' database has not stored."""
    segment_size: int
    rounds: int


SIZES: Final = {
    Scale.FULL: Sizes(10 << 30, (64 * MIB, 1 << 30), 1 << 30, rounds=3),
    Scale.QUICK: Sizes(1 << 30, (64 * MIB,), 1 << 30, rounds=3),
    Scale.TINY: Sizes(MIB, (MIB,), MIB, rounds=1),
}


def run(options: Options) -> list[Case]:
    sizes = SIZES[options.scale]
    comparison = _Comparison(options, sizes)
    return [comparison.after_clean_stop(), *map(comparison.after_kill, sizes.new_bytes)]


class _Comparison:
    """A large store and an empty one, each with a broker that is started again and again."""

    def __init__(self, options: Options, sizes: Sizes) -> None:
        self._sizes = sizes
        self._seed = options.seed
        self._large, self._empty = (Quarry(options.scratch / name, Durability.SYNC) for name in ("large", "empty"))
        self._root = options.scratch / "large" / "store"
        fill(self._root, sizes.log_bytes, options.seed, sizes.segment_size)
        _started(self._empty)  # makes the store

    def after_clean_stop(self) -> Case:
        samples = alternate(self._sizes.rounds, lambda: _started(self._large), lambda: _started(self._empty))
        details: dict[str, object] = {"log_bytes": self._sizes.log_bytes, "target_s": TARGET_S}
        return _case("after a clean stop", "a start on an empty store", samples, details)

    def after_kill(self, new_bytes: int) -> Case:
        samples = alternate(
            self._sizes.rounds, lambda: self._started_after_kill(new_bytes), lambda: self._started_and_read(new_bytes)
        )
        return _case(
            f"after kill -9, {new_bytes // MIB:,} MiB above the queues' checkpoint",
            "a start on an empty store, and a plain read of as many bytes from the device",
            samples,
            {"log_bytes": self._sizes.log_bytes, "new_bytes": new_bytes},
        )

    def _started_after_kill(self, new_bytes: int) -> Sample:
        script = "from pathlib import Path; from bench.recovery import fill; "
        script += f"fill(Path({str(self._root)!r}), {new_bytes}, {self._seed}, {self._sizes.segment_size}, kill=True)"
        # its output must not come between the results
        writer = subprocess.run([sys.executable, "-c", script], cwd=PROJECT, stdout=subprocess.DEVNULL, check=False)
        if writer.returncode != -signal.SIGKILL:
            raise RuntimeError(f"the process that was to kill itself ended with {writer.returncode}")
        return _started(self._large)

    def _started_and_read(self, new_bytes: int) -> Sample:
        started = _started(self._empty)
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        _read_tail(self._root, new_bytes)
        read_wall_s, read_cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
        return Sample(1, started.wall_s + read_wall_s, started.cpu_s + read_cpu_s)


def fill(root: Path, new_bytes: int, seed: int, segment_size: int, *, kill: bool = False) -> None:
    """Append that many bytes to a store, durably and dispatched; stop cleanly, or by SIGKILL."""
    random = Random(seed)
    settings = StoreSettings(root=root, durability=Durability.ASYNC, segment_size=segment_size)
    store = open_store(settings, disk=PosixDisk(), clock=SystemClock(), report=lambda _: None)
    messages = store.messages
    flushed = begin = messages.appended_up_to
    while messages.appended_up_to - begin < new_bytes:
        messages.append(make_messages(random, ROUND_MESSAGES, body_sizes=BODY_SIZES))
        messages.dispatch(messages.appended_up_to)
        if not kill and messages.appended_up_to - flushed >= FLUSH_EVERY_BYTES:
            messages.flush()
            messages.flush_queues()
            flushed = messages.flushed_up_to
    messages.flush()
    if kill:
        os.kill(os.getpid(), signal.SIGKILL)
    store.close()


def _started(broker: Quarry) -> Sample:
    """Measure one start, up to the line that says that the broker is ready; then stop it cleanly."""
    begin = time.perf_counter()
    try:
        broker.start()
        return Sample(1, time.perf_counter() - begin, cpu_s_of(broker.pid))
    finally:
        broker.close()


def _read_tail(root: Path, count: int) -> None:
    """Read that many bytes of the log, from its last segments, bypassing the page cache."""
    disk = PosixDisk()
    segments = SegmentList(disk, StorePaths(root).commit_log, None, writable=False)
    for base in reversed(segments.bases):
        path = segments.path_of(base)
        disk.drop_cached(path)
        part = min(count, disk.data_end(path))
        disk.fetch(path, 0, part)
        count -= part
        if not count:
            return
    raise RuntimeError(f"the log has {count} bytes fewer than are to be read")


def _case(name: str, peer: str, samples: tuple[list[Sample], list[Sample]], details: dict[str, object]) -> Case:
    ours, theirs = samples
    times: dict[str, object] = {
        "ready_s": round(median(each.wall_s for each in ours), 3),
        "ready_worst_s": round(max(each.wall_s for each in ours), 3),
        "peer_ready_s": round(median(each.wall_s for each in theirs), 3),
    }
    return Case(name=name, unit="starts", peer=peer, ours=ours, theirs=theirs, details=times | details)
