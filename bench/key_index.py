"""Measures how fast the tiered index takes keys in, and finds them in each stage of its files.

Ten files of keys (`bench.key_items`) are filled as a broker does it. Then files in all stages exist at once: the oldest
half in an object store, an S3-compatible server in its own process that is reached over HTTP, two compacted, two
sealed, one being filled. Lookups are in one file each, by the time of its messages, in turns: for a message's id, all
sixteen messages of an order, all messages of a customer in this file, and a missing key. They return positions of
records; no record is read. Last, all files are searched for a customer's newest message, and for all of them.

The uploaded files are also read from a server that delays its answers, like one that is far away.

The target is that 300,000 keys are taken in per second.
"""

from __future__ import annotations

import http.client
import os
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import numpy as np

from bench.harness import Case, Options, Sample, Scale, alternate, measure, peak_memory, require_room
from bench.key_items import (
    ALL,
    BEGIN_MS,
    KEYS_EACH,
    TOPIC,
    Find,
    KeyColumns,
    KeyKind,
    Lookups,
    look_up,
    look_up_cold,
)
from bench.peers.object_server import ObjectServer
from quarry_mq.kv.options import MIB
from quarry_mq.protocol.messages.property_names import KEYS, UNIQUE_KEY
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.index.keys import items_of
from quarry_mq.store.index.message_index import TIME_MAX_MS, WRITTEN_AT_ONCE
from quarry_mq.store.index.tiered.chain_file import IndexShape
from quarry_mq.store.index.tiered.folders import Stage, TieredFile
from quarry_mq.store.index.tiered.layout import CRC_SIZE, PART_SIZE, chained_item, item_of
from quarry_mq.store.index.tiered.object_store.cloud import CloudObjects
from quarry_mq.store.index.tiered.tiered_index import TieredIndex
from quarry_mq.store.index.tiered_keys import PLACE, TieredKeyFiles
from quarry_mq.store.message import DispatchRequest, PhysicalOffset, QueueOffset

QUESTION: Final = (
    "How fast are keys taken in, and found in each stage of the tiered index, here and in an object store?"
)
FILES: Final = 10
UPLOADED: Final = 5
COMPACTED: Final = 2
ITEMS_PER_SLOT: Final = 4
"""Items per slot of a file: the default of the index's settings."""
TARGET_PER_SECOND: Final = 300_000
DISK_BYTES_EACH: Final = 100
FAR_MS: Final = 20.0
BARE_READ_SIZE: Final = 64


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes by scale: `lookups` of each kind per stage and round, `cold` and `far` are numbers of ids in all."""

    items_per_file: int
    lookups: int
    rounds: int
    cold: int
    far: int


SIZES: Final = {
    Scale.FULL: Sizes(items_per_file=2_000_000, lookups=200, rounds=5, cold=200, far=100),
    Scale.QUICK: Sizes(items_per_file=100_000, lookups=100, rounds=3, cold=50, far=20),
    Scale.TINY: Sizes(items_per_file=1_000, lookups=10, rounds=1, cold=3, far=2),
}


def run(options: Options) -> list[Case]:
    sizes = SIZES[options.scale]
    require_room(options.scratch, FILES * sizes.items_per_file * DISK_BYTES_EACH)
    columns = KeyColumns.make(options.scratch / "messages.npy", options.seed, FILES * sizes.items_per_file)
    with ExitStack() as ending:
        server = ending.enter_context(closing(ObjectServer(options.scratch / "objects")))
        filled = _FilledIndex(options, sizes, columns, server)
        ending.enter_context(closing(filled))
        cases = [filled.put(), filled.compact(), filled.upload(), *filled.look_up_by_stage(), filled.look_for_newest()]
        far = ending.enter_context(closing(ObjectServer(options.scratch / "objects", delay_ms=FAR_MS)))
        filled.close()
        filled.open(far)
        return [*cases, filled.look_up_far_away(far)]


class _CountingObjects:
    """The objects of a server; it counts what was read of them."""

    def __init__(self, server: ObjectServer) -> None:
        self._objects = CloudObjects.at(server.url, server.options)
        self.address = self._objects.address
        self.reads = self.read_bytes = 0

    def put(self, name: str, content: memoryview) -> None:
        self._objects.put(name, content)

    def read(self, name: str, position: int, size: int) -> bytes:
        self.reads += 1
        self.read_bytes += size
        return self._objects.read(name, position, size)

    def chunks(self, name: str) -> Iterator[bytes]:
        return self._objects.chunks(name)

    def remove(self, name: str) -> None:
        self._objects.remove(name)


class _BareRequests:
    """Bare requests for an object as large as an uploaded file: the least time of uploads and lookups."""

    def __init__(self, server: ObjectServer, size: int) -> None:
        host, _, port = server.address.partition(":")
        self._connection = http.client.HTTPConnection(host, int(port), timeout=60)
        self._path = server.path_of("bare")
        self._size = size

    def put(self, content: bytes) -> int:
        """Store the object; return its size."""
        self._connection.request("PUT", self._path, body=content)
        self._connection.getresponse().read()
        return len(content)

    def sample(self, lookups: int, random: Random) -> Sample:
        """Make as many pairs of reads."""

        def work() -> int:
            for _ in range(2 * lookups):
                begin = random.randrange(self._size - BARE_READ_SIZE)
                asked = {"Range": f"bytes={begin}-{begin + BARE_READ_SIZE - 1}"}
                self._connection.request("GET", self._path, headers=asked)
                if len(self._connection.getresponse().read()) != BARE_READ_SIZE:
                    raise RuntimeError(f"not what {self._path} holds at {begin}")
            return lookups

        return measure(work)

    def close(self) -> None:
        self._connection.close()


@dataclass(slots=True)
class _Stage:
    """A file in a stage, the range of its items, and the results of lookups in it."""

    file: TieredFile
    first: int
    end: int
    found: dict[KeyKind, list[Lookups]] = field(default_factory=lambda: {kind: [] for kind in KeyKind})
    bare: list[Sample] = field(default_factory=list)
    remote_reads: int = 0

    def samples(self) -> list[Sample]:
        return [each.sample for each in self.found[KeyKind.ID]]

    def facts(self) -> dict[str, dict[str, float]]:
        return {kind.name.lower(): Lookups.joined(some).facts() for kind, some in self.found.items()}


class _FilledIndex:
    """The index and the steps of the benchmark, in the order of the methods."""

    def __init__(self, options: Options, sizes: Sizes, columns: KeyColumns, server: ObjectServer) -> None:
        self._scratch = options.scratch
        self._root = options.scratch / "key_index"
        self._random = Random(options.seed)
        self._sizes = sizes
        self._columns = columns
        self._server = server
        self._disk = PosixDisk()
        self._bare_size = 0
        self._shape = IndexShape(sizes.items_per_file // ITEMS_PER_SLOT, sizes.items_per_file, PLACE)
        self.open(server)

    def open(self, server: ObjectServer) -> None:
        self._objects = _CountingObjects(server)
        # no slots in memory: each lookup is like one in a file that was not used recently
        self._index = TieredIndex(
            self._disk, self._root, self._shape, objects=self._objects, keep_uploaded=False, slot_cache_bytes=0
        )
        self._files = TieredKeyFiles(self._index)

    def close(self) -> None:
        self._index.close()

    # -- from stage to stage

    def put(self) -> Case:
        numbers = iter(range(FILES))
        size = self._sizes.items_per_file
        item_size = chained_item(PLACE).itemsize
        peaks: list[int] = []

        def ours() -> Sample:
            number = next(numbers)
            batches = self._columns.batches(number * size, (number + 1) * size)

            def work() -> int:
                for batch in batches:
                    self._files.put(batch)
                self._files.flush()
                return size

            with peak_memory() as peak:
                sample = measure(work)
            peaks.append(peak.bytes)
            return sample

        def peer() -> Sample:
            return measure(lambda: self._write(size * item_size, WRITTEN_AT_ONCE * item_size) and size)

        samples, theirs = alternate(FILES, ours, peer)
        return Case(
            name=f"put {WRITTEN_AT_ONCE:,} at a time",
            unit="items",
            peer="a plain write of as many bytes",
            ours=samples,
            theirs=theirs,
            details={
                "items": FILES * size,
                "target_per_second": TARGET_PER_SECOND,
                "bytes_per_item": round(self._index.files[0].header.file_size / size, 2),
                "peak_private_mib": round(max(peaks) / MIB, 1),
                "keys_from_messages_cpu_us": round(_keys_from_messages().cpu_us, 2),
            },
        )

    def _write(self, size: int, at_once: int) -> int:
        """Write this number of bytes, in pieces, to a separate file; return the number."""
        path = self._scratch / "plain"
        piece = self._random.randbytes(at_once)
        with closing(self._disk.create_segment(path, size)) as file:
            for begin in range(0, size, at_once):
                file.write(begin, piece[: size - begin])
            file.flush()
        self._disk.remove(path)
        return size

    def compact(self) -> Case:
        """Compact all files but the two that were sealed last."""
        self._files.settle(self._files.state)
        names = iter([each.name for each in self._index.files])
        peaks: list[int] = []

        def ours() -> Sample:
            with peak_memory() as peak:
                sample = measure(lambda: self._index.compact_one() and self._sizes.items_per_file)
            peaks.append(peak.bytes)
            return sample

        def peer() -> Sample:
            size = self._path(Stage.COMPACTED, next(names)).stat().st_size
            return measure(lambda: self._write(size, MIB) and self._sizes.items_per_file)

        samples, theirs = alternate(UPLOADED + COMPACTED, ours, peer)
        return Case(
            name="compact a file",
            unit="items",
            peer="a plain write of as many bytes",
            ours=samples,
            theirs=theirs,
            details={
                "bytes_per_item": round(self._index.files[0].header.file_size / self._sizes.items_per_file, 2),
                "peak_private_mib": round(max(peaks) / MIB, 1),
            },
        )

    def upload(self) -> Case:
        self._bare_size = file_size = self._index.files[0].header.file_size
        peaks: list[int] = []

        def ours() -> Sample:
            with peak_memory() as peak:
                sample = measure(lambda: self._index.upload_one() and self._sizes.items_per_file)
            peaks.append(peak.bytes)
            return sample

        def peer() -> Sample:
            content = self._random.randbytes(file_size)
            with closing(_BareRequests(self._server, file_size)) as bare:
                return measure(lambda: bare.put(content) and self._sizes.items_per_file)

        samples, theirs = alternate(UPLOADED, ours, peer)
        return Case(
            name="upload a file and read it back",
            unit="items",
            peer="a bare PUT of as many bytes",
            ours=samples,
            theirs=theirs,
            details={
                "file_mib": round(file_size / MIB, 1),
                "mib_per_second": [round(file_size / MIB / each.wall_s, 1) for each in samples],
                "peak_private_mib": round(max(peaks) / MIB, 1),
            },
        )

    # -- looking up

    def look_up_by_stage(self) -> list[Case]:
        stages = self._stages()
        with closing(_BareRequests(self._server, self._bare_size)) as bare:
            for _ in range(self._sizes.rounds):
                for stage in stages.values():
                    for kind in KeyKind:
                        stage.found[kind].append(self._look_into(stage, kind))
                    if stage.file.stage is Stage.UPLOADED:
                        stage.bare.append(bare.sample(self._sizes.lookups, self._random))
                    else:
                        path = self._path(stage.file.stage, stage.file.name)
                        stage.bare.append(_bare_reads(path, self._sizes.lookups, self._random))
        return [self._case_of(stage, stages) for stage in stages.values()]

    def _stages(self) -> dict[Stage, _Stage]:
        """Return the newest file of each stage."""
        size = self._sizes.items_per_file
        stages = {}
        for number, file in enumerate(self._index.files):
            stages[file.stage] = _Stage(file, number * size, (number + 1) * size)
        if len(stages) != len(Stage):
            raise RuntimeError(f"files are {[file.stage for file in self._index.files]}")
        return dict(reversed(stages.items()))

    def _look_into(self, stage: _Stage, kind: KeyKind) -> Lookups:
        header, before = stage.file.header, self._objects.reads
        texts = self._columns.some(kind, stage.first, stage.end, self._sizes.lookups, self._random)
        lookups = look_up(self._search(header.begin_ms, header.end_ms), texts)
        if kind is KeyKind.ID:
            stage.remote_reads += self._objects.reads - before
        return lookups

    def _search(self, begin_ms: int = 0, end_ms: int = TIME_MAX_MS, limit: int = ALL) -> Find:
        def find(text: str) -> tuple[int, int]:
            answer = self._files.find(text, begin_ms=begin_ms, end_ms=end_ms, limit=limit, accept=int)
            if answer.unread:
                raise RuntimeError(f"not read: {answer.unread}")
            return len(answer.found), answer.files

        return find

    def _case_of(self, stage: _Stage, stages: dict[Stage, _Stage]) -> Case:
        kind = stage.file.stage
        if kind is Stage.COMPACTED:
            peer, theirs = "such a file in chains", stages[Stage.SEALED].samples()
        elif kind is Stage.UPLOADED:
            peer, theirs = "two bare GETs of an object as large", stage.bare
        else:
            peer, theirs = "two bare reads of the same file", stage.bare
        return Case(
            name=f"find a message's id: file {kind.value}",
            unit="lookups",
            peer=peer,
            ours=stage.samples(),
            theirs=theirs,
            details={"stage": kind.value, "lookups": stage.facts(), **self._reads_of(stage)},
        )

    def _reads_of(self, stage: _Stage) -> dict[str, float]:
        """Return what lookups of ids read: counted for the object store, computed from the format for local files."""
        kind, count = stage.file.stage, self._sizes.rounds * self._sizes.lookups
        slots = self._columns.items(stage.first, stage.end).hashes % self._shape.slots
        chain = float(np.bincount(slots)[slots[::KEYS_EACH]].mean())
        if kind in (Stage.FILLING, Stage.SEALED):
            reads, read_bytes = 1 + chain, 4 + chain * chained_item(PLACE).itemsize
        else:
            reads, read_bytes = 2.0, PART_SIZE + chain * item_of(PLACE).itemsize + CRC_SIZE
        if kind is Stage.UPLOADED:
            reads = stage.remote_reads / count
        facts = {"reads_each": round(reads, 2), "read_bytes_each": round(read_bytes, 1)}
        return facts if kind in (Stage.FILLING, Stage.UPLOADED) else {**facts, **self._cold(stage)}

    def _cold(self, stage: _Stage) -> dict[str, float]:
        header, path = stage.file.header, self._path(stage.file.stage, stage.file.name)
        texts = self._columns.some(KeyKind.ID, stage.first, stage.end, self._sizes.cold, self._random)
        find = self._search(header.begin_ms, header.end_ms)
        return look_up_cold(find, texts, lambda: self._disk.drop_cached(path))

    def look_for_newest(self) -> Case:
        """Look up keys over all files, without a time."""
        wanted = {
            "customer, newest": (KeyKind.CUSTOMER, 1),
            "customer, newest 32": (KeyKind.CUSTOMER, 32),
            "customer, all": (KeyKind.CUSTOMER, ALL),
            "order, newest 32": (KeyKind.ORDER, 32),
            "id": (KeyKind.ID, 1),
            "missing": (KeyKind.MISSING, 1),
        }
        found: dict[str, list[Lookups]] = {name: [] for name in wanted}
        for _ in range(self._sizes.rounds):
            for name, (kind, limit) in wanted.items():
                count = max(1, self._sizes.lookups // 10) if limit == ALL else self._sizes.lookups
                texts = self._columns.some(kind, 0, len(self._columns), count, self._random)
                found[name].append(look_up(self._search(limit=limit), texts))
        return Case(
            name="find a customer's newest message in all files",
            unit="lookups",
            peer="all messages of the customer",
            ours=[each.sample for each in found["customer, newest"]],
            theirs=[each.sample for each in found["customer, all"]],
            details={
                "files": FILES,
                "uploaded": UPLOADED,
                "lookups": {name: Lookups.joined(some).facts() for name, some in found.items()},
            },
        )

    def look_up_far_away(self, server: ObjectServer) -> Case:
        """Look up ids in one uploaded file, and in all of them: remote files are read several at a time."""
        stage, count = self._stages()[Stage.UPLOADED], self._sizes.far
        header, begin_ms = stage.file.header, self._index.files[0].header.begin_ms
        ids = self._columns.some(KeyKind.ID, stage.first, stage.end, count, self._random)
        missing = self._columns.some(KeyKind.MISSING, 0, 0, count, self._random)
        with closing(_BareRequests(server, self._bare_size)) as bare:
            one = look_up(self._search(header.begin_ms, header.end_ms), ids)
            peer = bare.sample(count, self._random)
        every = look_up(self._search(begin_ms, header.end_ms), missing)
        return Case(
            name=f"find a message's id: file uploaded, answers come {FAR_MS:.0f} ms later",
            unit="lookups",
            peer="two bare GETs of an object as large",
            ours=[one.sample],
            theirs=[peer],
            details={"lookups": {"id": one.facts(), "missing in all of them": every.facts()}},
        )

    def _path(self, stage: Stage, name: str) -> Path:
        return self._root / stage.value / name


def _bare_reads(path: Path, lookups: int, random: Random) -> Sample:
    """Make as many pairs of reads, each pair with an open and a close."""
    size = path.stat().st_size

    def work() -> int:
        for _ in range(lookups):
            descriptor = os.open(path, os.O_RDONLY)
            for _ in range(2):
                os.pread(descriptor, BARE_READ_SIZE, random.randrange(size))
            os.close(descriptor)
        return lookups

    return measure(work)


def _keys_from_messages() -> Sample:
    """Measure the work before: keys of dispatched messages are collected and hashed."""
    requests = []
    for number in range(WRITTEN_AT_ONCE):
        offset, stored_ms = PhysicalOffset(number * 1024), BEGIN_MS + number
        properties = {UNIQUE_KEY: f"01{number:032X}", KEYS: f"order-{number:08d}"}
        requests.append(DispatchRequest(TOPIC, 0, QueueOffset(number), offset, 1024, 0, stored_ms, 0, properties, ()))
    return measure(lambda: len(items_of(requests, with_tags=False)))
