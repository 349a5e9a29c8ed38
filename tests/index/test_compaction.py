"""Chains, and the runs they are compacted into: the same items by the same hashes, and every wrong byte is noticed."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Final

import numpy as np
import pytest

from quarry_mq.store.errors import StoreDamaged
from quarry_mq.store.fs import SegmentFile
from quarry_mq.store.index.tiered.chain_file import ChainedFile, IndexItems, IndexShape
from quarry_mq.store.index.tiered.layout import (
    HEADER_SIZE,
    SPAN_MAX_MS,
    FileHeader,
    HeaderDamaged,
    Kind,
    chain_shape,
    runs_at,
)
from quarry_mq.store.index.tiered.runs import CompactedFile, Compaction
from tests.faults.disk import FaultyDisk

PAYLOAD: Final = np.dtype([("at", ">i8"), ("size", ">i4")])
SHAPE: Final = IndexShape(slots=7, items_max=400, payload=PAYLOAD)
HASHES: Final = range(40)
FOLDER: Final = Path("/index")

Model = list[tuple[int, int, int]]
"""Hash, time and payload of each item, the oldest first."""


class Reader:
    """The bytes of a file, as a compacted one is read."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.reads: list[tuple[int, int]] = []

    path = FOLDER / "read"

    def read(self, position: int, size: int) -> bytes:
        self.reads.append((position, size))
        return self.content[position : position + size]


def items_of(rows: Model) -> IndexItems:
    payloads = np.zeros(len(rows), PAYLOAD)
    payloads["at"] = [at for _, _, at in rows]
    payloads["size"] = 7
    return IndexItems(
        np.array([hashed for hashed, _, _ in rows], np.int32),
        np.array([time_ms for _, time_ms, _ in rows], np.int64),
        payloads,
    )


def file_on(disk: FaultyDisk, name: str = "a", shape: IndexShape = SHAPE) -> ChainedFile:
    disk.make_directories(FOLDER)
    size = chain_shape(shape.slots, shape.items_max, shape.payload).file_size
    return ChainedFile.begin(disk.create_segment(FOLDER / name, size), shape)


def filled(disk: FaultyDisk, seed: int, count: int) -> tuple[ChainedFile, Model]:
    random, file = Random(seed), file_on(disk)
    model: Model = []
    now_ms = 1_000_000
    while len(model) < count:
        rows: Model = []
        for _ in range(min(random.randrange(1, 30), count - len(model))):
            now_ms += random.randrange(3)
            rows.append((random.choice(HASHES), now_ms, len(model) + len(rows)))
        file.add(items_of(rows))
        model += rows
    return file, model


def wanted(model: Model, hashed: int) -> list[tuple[int, int]]:
    return [(time_ms, at) for each, time_ms, at in reversed(model) if each == hashed]


def found(file: ChainedFile | CompactedFile, hashed: int) -> list[tuple[int, int]]:
    return [(each.time_ms, int(each.payload["at"])) for each in file.find(hashed)]


def compacted(disk: FaultyDisk, file: ChainedFile) -> tuple[SegmentFile, FileHeader]:
    compaction = Compaction(file, SHAPE)
    target = disk.create_segment(FOLDER / "b", compaction.file_size)
    header = compaction.write(target)
    compaction.check(target)
    return target, header


@pytest.mark.parametrize(("seed", "count"), [(1, 1), (2, 30), (3, 399), (4, 400)])
def test_runs_hold_what_chains_held(seed: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quarry_mq.store.index.tiered.runs.ITEMS_AT_ONCE", 50)
    disk = FaultyDisk()
    file, model = filled(disk, seed, count)
    target, header = compacted(disk, file)
    assert header == FileHeader.unpack(target.view()[:HEADER_SIZE])
    assert (header.kind, header.items, header.file_size) == (Kind.RUNS, count, target.size)
    reader = Reader(bytes(target.view()))
    runs = CompactedFile(reader, SHAPE, header)
    for hashed in HASHES:
        assert found(file, hashed) == found(runs, hashed) == wanted(model, hashed)
    assert len(reader.reads) <= 2 * len(HASHES), "one read for the slot, one for its run"


def test_every_wrong_byte_is_noticed() -> None:
    """Whatever is flipped, what is found is right or an error."""
    disk = FaultyDisk()
    file, model = filled(disk, 5, 60)
    target, header = compacted(disk, file)
    whole = bytes(target.view())
    for position in range(HEADER_SIZE, len(whole)):
        for mask in (1, 0x80):
            damaged = bytearray(whole)
            damaged[position] ^= mask
            runs = CompactedFile(Reader(bytes(damaged)), SHAPE, header)
            noticed = 0
            for hashed in range(SHAPE.slots):
                try:
                    assert found(runs, hashed) == wanted(model, hashed)
                except StoreDamaged:
                    noticed += 1
            assert noticed == (1 if position >= runs_at(SHAPE.slots) else SHAPE.slots)


@pytest.mark.parametrize("zeros", [HEADER_SIZE, HEADER_SIZE + 8 * SHAPE.slots, 400])
def test_zeros_in_place_of_bytes_are_noticed(zeros: int) -> None:
    disk = FaultyDisk()
    file, _ = filled(disk, 6, 200)
    target, header = compacted(disk, file)
    content = bytes(target.view())[:zeros].ljust(target.size, b"\0")
    runs = CompactedFile(Reader(content), SHAPE, header)
    damaged = 0
    for hashed in range(SHAPE.slots):
        try:
            found(runs, hashed)
        except StoreDamaged:
            damaged += 1
    assert damaged > 0


def test_a_compaction_that_went_wrong_is_noticed() -> None:
    disk = FaultyDisk()
    file, _ = filled(disk, 7, 300)
    target, _ = compacted(disk, file)
    compaction = Compaction(file, SHAPE)
    for position in (HEADER_SIZE + 5, target.size - 1, target.size // 2):
        before = bytes(target.view()[position : position + 1])
        target.write(position, bytes([before[0] ^ 4]))
        with pytest.raises(StoreDamaged, match=r"its content differs from|differs from what was written"):
            compaction.check(target)
        target.write(position, before)
    compaction.check(target)


def test_a_file_holds_so_many_items_and_49_days() -> None:
    file = file_on(FaultyDisk())
    rows = [(1, 5_000, 0), (2, 5_000 + SPAN_MAX_MS, 1), (3, 5_001 + SPAN_MAX_MS, 2)]
    assert file.room_for(items_of(rows)) == 2
    file.add(items_of(rows[:2]))
    assert file.room_for(items_of(rows[2:])) == 0
    assert found(file, 2) == [(5_000 + SPAN_MAX_MS, 1)]
    many = [(1, 5_000 + SPAN_MAX_MS, 9)] * SHAPE.items_max
    assert file.room_for(items_of(many)) == SHAPE.items_max - 2


def test_an_item_older_than_the_one_before_counts_as_that_old() -> None:
    file = file_on(FaultyDisk())
    file.add(items_of([(1, 5_000, 0), (1, 4_000, 1)]))
    file.add(items_of([(1, 4_500, 2)]))
    assert found(file, 1) == [(5_000, 2), (5_000, 1), (5_000, 0)]
    assert (file.header.begin_ms, file.header.end_ms) == (5_000, 5_000)


def test_a_restored_file_knows_only_what_it_knew() -> None:
    disk = FaultyDisk()
    file, model = filled(disk, 8, 100)
    header = file.header
    file.add(items_of([(each, 2_000_000, 500) for each in HASHES]))
    file.restore(header)
    for hashed in HASHES:
        assert found(file, hashed) == wanted(model, hashed)
    again = ChainedFile.opened(disk.open_segment(FOLDER / "a", writable=True), SHAPE)
    assert again.header == header


@pytest.mark.parametrize(
    ("position", "value", "words"), [(0, b"X", "CRC"), (30, b"\xff", "CRC"), (0, b"QIXC\0\2", "CRC")]
)
def test_a_damaged_header_is_refused(position: int, value: bytes, words: str) -> None:
    disk = FaultyDisk()
    file, _ = filled(disk, 9, 10)
    content = bytearray(disk.read(FOLDER / "a"))
    content[position : position + len(value)] = value
    with pytest.raises(HeaderDamaged, match=words):
        FileHeader.unpack(bytes(content))
    with pytest.raises(HeaderDamaged, match="10 bytes"):
        FileHeader.unpack(bytes(content[:10]))
    file.close()


def test_a_file_of_another_shape_is_refused() -> None:
    disk = FaultyDisk()
    file_on(disk)
    file = disk.open_segment(FOLDER / "a", writable=False)
    other = IndexShape(slots=7, items_max=400, payload=np.dtype([("at", ">i8")]))
    with pytest.raises(StoreDamaged, match="a different kind"):
        ChainedFile.opened(file, other)
