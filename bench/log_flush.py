"""Measures the cost of a flush of the log, and the gain from writing zeros ahead of it.

A commit log as under `sync`, with records added and flushed in turns, is compared with three others: the physical
limit, bare writes and fdatasyncs over blocks that zeros were written to before; the same log without zeros ahead, whose
blocks are only allocated, so that the file system has to note with each flush that they now hold data; and bare stores
into a mapping of such a file.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random
from typing import Final

from bench.harness import Case, Options, Sample, Scale, alternate, measure
from quarry_mq.kv.options import MIB
from quarry_mq.store.commitlog import CommitLogFlusher, CommitLogWriter, SegmentList
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.message import PhysicalOffset

QUESTION: Final = "What does a flush of the log cost, and what do the zeros save that lie ahead of it?"
RECORD_SIZE: Final = 1_200
RECORDS_PER_FLUSH: Final = (1, 16)


@dataclass(frozen=True, slots=True)
class Sizes:
    flushes: int
    rounds: int


SIZES: Final = {Scale.FULL: Sizes(1_000, 7), Scale.QUICK: Sizes(200, 3), Scale.TINY: Sizes(3, 1)}


def run(options: Options) -> list[Case]:
    bench = _LogFlush(options.scratch, SIZES[options.scale], Random(options.seed).randbytes(RECORD_SIZE))
    return [bench.case(records, name) for records in RECORDS_PER_FLUSH for name in bench.peers]


class _LogFlush:
    """The benchmark. Every sample has its own file, because blocks that were flushed once behave differently."""

    def __init__(self, scratch: Path, sizes: Sizes, record: bytes) -> None:
        self._scratch = scratch
        self._sizes = sizes
        self._record = record
        self._numbers = count()
        self.peers: dict[str, Callable[[int], Sample]] = {
            "bare writes over zeros": self._over_zeros,
            "the same log without zeros ahead": lambda records: self._log(records, lays_zeros=False),
            "bare stores into a mapping": self._into_a_mapping,
        }

    def case(self, records: int, peer: str) -> Case:
        theirs = self.peers[peer]
        samples = alternate(self._sizes.rounds, lambda: self._log(records, lays_zeros=True), lambda: theirs(records))
        return Case(
            name=f"{records} per flush, beside {peer}",
            unit="flushes",
            peer=peer,
            ours=samples[0],
            theirs=samples[1],
            details={"records_per_flush": records, "record_bytes": RECORD_SIZE},
        )

    def _log(self, records: int, *, lays_zeros: bool) -> Sample:
        directory = self._scratch / str(next(self._numbers))
        directory.mkdir()
        begin = PhysicalOffset(0)
        with (
            ThreadPoolExecutor(1) as executor,
            closing(SegmentList(PosixDisk(), directory, self._room(records), mapped_max=2, executor=executor)) as log,
        ):
            writer = CommitLogWriter(log, begin, lays_zeros=lays_zeros)
            flusher = CommitLogFlusher(log, writer, begin)

            def append(count: int) -> None:
                for _ in range(count):
                    writer.place(RECORD_SIZE)
                    writer.add(self._record)
                writer.commit()
                flusher.flush()

            def fill() -> int:
                for _ in range(self._sizes.flushes):
                    append(records)
                return self._sizes.flushes

            append(1)  # makes the segment
            return measure(fill)

    def _over_zeros(self, records: int) -> Sample:
        with _Scratch(self._scratch / str(next(self._numbers)), self._room(records)) as file:
            for at in range(0, file.size, MIB):
                os.pwrite(file.number, bytes(MIB), at)
            os.fsync(file.number)
            return self._fill(file, self._record * records, lambda data, at: os.pwrite(file.number, data, at))

    def _into_a_mapping(self, records: int) -> Sample:
        with (
            _Scratch(self._scratch / str(next(self._numbers)), self._room(records)) as file,
            mmap.mmap(file.number, file.size) as mapping,
        ):

            def store(data: bytes, at: int) -> None:
                mapping[at : at + len(data)] = data

            return self._fill(file, self._record * records, store)

    def _fill(self, file: _Scratch, data: bytes, put: Callable[[bytes, int], object]) -> Sample:
        def fill() -> int:
            for number in range(self._sizes.flushes):
                put(data, number * len(data))
                os.fdatasync(file.number)
            return self._sizes.flushes

        return measure(fill)

    def _room(self, records: int) -> int:
        needed = (self._sizes.flushes * records + 1) * RECORD_SIZE
        return (needed // MIB + 2) * MIB


class _Scratch:
    """A file with all of its blocks allocated; it is removed at the end."""

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self.size = size
        self.number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        os.posix_fallocate(self.number, 0, size)
        os.fsync(self.number)

    def __enter__(self) -> _Scratch:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.number)
        self._path.unlink()
