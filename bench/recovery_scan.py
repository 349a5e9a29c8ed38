"""Measures how fast recovery reads a log from the page cache, and brings the queues up to it.

The same segment file is processed in the same run: read by bare reads; its CRC taken a megabyte at a time; decoded
record by record; scanned in bulk with every check (two CRCs per record); scanned and dispatched into a new RocksDB.
Bare reads and CRC are what the machine can do with the bytes at all, so those ratios cannot reach 1; the bulk scan
replaces the exact decoder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Final

from isal import isal_zlib

from bench.harness import Case, Options, Sample, Scale, alternate, measure, median_cpu_us, median_rate
from bench.scratch_store import make_messages, scratch_store
from quarry_mq.kv.options import MIB
from quarry_mq.store.commitlog import CommitLogReader, SegmentList
from quarry_mq.store.consumequeue import RocksConsumeQueues, open_consume_queue_engine
from quarry_mq.store.consumequeue.dispatch import StoredAssignment
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.record import StoredMessage
from quarry_mq.store.scan import LogScan, scan_in_bulk, scan_log, scan_records
from quarry_mq.store.settings import Durability

QUESTION: Final = "How fast does recovery read a log from the page cache, and bring the queues up to it?"
KIB: Final = 1024
PORTION_BYTES: Final = MIB
ROUND_MESSAGES: Final = 64


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of log for each size of a body."""

    log_bytes: dict[int, int]
    rounds: int


SIZES: Final = {
    Scale.FULL: Sizes({100: 100 * MIB, KIB: 250 * MIB, 16 * KIB: 250 * MIB}, rounds=7),
    Scale.QUICK: Sizes({100: 20 * MIB, KIB: 100 * MIB, 16 * KIB: 100 * MIB}, rounds=3),
    Scale.TINY: Sizes({100: 20_000, KIB: 100_000, 16 * KIB: 200_000}, rounds=1),
}


def run(options: Options) -> list[Case]:
    sizes = SIZES[options.scale]
    cases: list[Case] = []
    for body_bytes, log_bytes in sizes.log_bytes.items():
        root = options.scratch / str(body_bytes)
        _write(root, Random(options.seed), body_bytes, log_bytes)
        cases += _Comparison(root, options.scratch, body_bytes, sizes.rounds).cases()
    return cases


def _write(root: Path, random: Random, body_bytes: int, log_bytes: int) -> None:
    with scratch_store(root, Durability.ASYNC) as store:
        while store.messages.appended_up_to < log_bytes:
            store.messages.append(make_messages(random, ROUND_MESSAGES, body_sizes=range(body_bytes, body_bytes + 1)))
            store.messages.dispatch(store.messages.appended_up_to)


class _Comparison:
    """Hold one log that is read in every way."""

    def __init__(self, root: Path, scratch: Path, body_bytes: int, rounds: int) -> None:
        self._segments = SegmentList(PosixDisk(), StorePaths(root).commit_log, None, writable=False)
        self._databases = (scratch / f"queues-{body_bytes}-{number}" for number in count())
        self._name = f"{body_bytes:,} B"
        self._rounds = rounds
        batches = list(scan_log(self._segments, self._segments.minimum))
        self._records = sum(map(len, batches))
        self._log_bytes = batches[-1].end

    def cases(self) -> list[Case]:
        checked, decoded = "scanned, every check", "decoded one by one"
        return [
            self._case(checked, self._scan, "plain reads of the file", self._read),
            self._case(checked, self._scan, "one CRC of the bytes", self._crc),
            self._case(checked, self._scan, decoded, self._decode),
            self._case("scanned and dispatched", partial(self._dispatch, scan_in_bulk), decoded,
                       partial(self._dispatch, scan_records)),
        ]  # fmt: skip

    def _case(self, what: str, ours: Callable[[], int], peer_name: str, peer: Callable[[], int]) -> Case:
        samples = alternate(self._rounds, lambda: self._measured(ours), lambda: self._measured(peer))
        gigabytes = self._log_bytes / self._records / 1e9
        return Case(
            name=f"{self._name}, {what}",
            unit="records",
            peer=peer_name,
            ours=samples[0],
            theirs=samples[1],
            details={
                "record_bytes": round(self._log_bytes / self._records, 1),
                "log_bytes": self._log_bytes,
                "gigabytes_per_second": round(median_rate(samples[0]) * gigabytes, 3),
                "peer_gigabytes_per_second": round(median_rate(samples[1]) * gigabytes, 3),
                "gigabytes_per_cpu_second": round(gigabytes / median_cpu_us(samples[0]) * 1e6, 3),
            },
        )

    def _measured(self, work: Callable[[], int]) -> Sample:
        def checked() -> int:
            if (found := work()) != self._records:
                raise RuntimeError(f"{found} records were found, {self._records} are there")
            return found

        return measure(checked)

    def _scan(self) -> int:
        return sum(len(batch) for batch in scan_log(self._segments, self._segments.minimum))

    def _decode(self) -> int:
        return sum(isinstance(each, StoredMessage) for each in CommitLogReader(self._segments).scan(PhysicalOffset(0)))

    def _dispatch(self, scan: LogScan) -> int:
        engine = open_consume_queue_engine(next(self._databases), create=True)
        try:
            queues = RocksConsumeQueues(engine, minimum_physical_offset=PhysicalOffset(0))
            found = 0
            for each in scan(
                self._segments,
                PhysicalOffset(0),
                dispatch_from=PhysicalOffset(0),
                assignment=StoredAssignment(),
                from_device=False,
            ):
                queues.put(each.requests, each.end)
                found += each.records
            return found
        finally:
            engine.close()

    def _read(self) -> int:
        buffer = memoryview(bytearray(PORTION_BYTES))
        with self._segments.path_of(PhysicalOffset(0)).open("rb", buffering=0) as file:
            for at in range(0, self._log_bytes, PORTION_BYTES):
                file.readinto(buffer[: self._log_bytes - at])
        return self._records

    def _crc(self) -> int:
        segment = self._segments.segment_at(PhysicalOffset(0)).view()
        value = 0
        for at in range(0, self._log_bytes, PORTION_BYTES):
            value = isal_zlib.crc32(segment[at : min(at + PORTION_BYTES, self._log_bytes)], value)
        return self._records
