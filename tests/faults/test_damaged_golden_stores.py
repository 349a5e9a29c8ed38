"""Stores of RocketMQ cut at any byte, with pages lost, or with a flipped byte in their JSON.

They open, or are refused by name. What opens has every whole record from before the damage and hands out no wrong one.
QUARRY_DAMAGE=<seed> takes other places; a failure names the place.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from structlog.testing import capture_logs

from quarry_mq.kv import KvError
from quarry_mq.store.consumequeue import ConsumeQueueEntry
from quarry_mq.store.errors import StoreDamaged, StoreUnusable
from quarry_mq.store.layout.paths import StorePaths, segment_name
from quarry_mq.store.message import PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.opening.open_store import OpenStore
from tests.golden import NAMES
from tests.store.test_golden_stores import opened, records_of

PAGE: Final = 4096
SEGMENT_SIZE: Final = 1 << 20
QUICK: Final = 4
ALL: Final = 200
Records = list[dict[str, Any]]
Damage = Callable[[Path], int]
"""Damages a log and returns the offset of the first byte that is not as it was."""


def segment_of(commit_log: Path, offset: int) -> Path:
    return commit_log / segment_name(PhysicalOffset(offset - offset % SEGMENT_SIZE))


def zero(path: Path, begin: int, end: int) -> None:
    with path.open("r+b") as file:
        file.seek(begin)
        file.write(bytes(end - begin))


def log_ends(commit_log: Path, at: int) -> int:
    """Everything from the byte on was never written: the files keep their lengths, as a power cut leaves them."""
    for path in sorted(commit_log.iterdir()):
        base = int(path.name)
        if base + SEGMENT_SIZE > at:
            zero(path, max(at - base, 0), SEGMENT_SIZE)
    return at


def file_is_cut(commit_log: Path, at: int) -> int:
    os.truncate(segment_of(commit_log, at), at % SEGMENT_SIZE)
    return at


def later_files_are_gone(commit_log: Path, at: int) -> int:
    """The log ends in the middle of a segment, and with it the list of files."""
    zero(segment_of(commit_log, at), at % SEGMENT_SIZE, SEGMENT_SIZE)
    for path in commit_log.iterdir():
        if int(path.name) > at:
            path.unlink()
    return at


def pages_are_lost(commit_log: Path, at: int) -> int:
    """One to four pages, the first of them where the byte lies."""
    chance = Random(at)
    first = at - at % PAGE
    for start in [first, *(first + PAGE * chance.randrange(1, 200) for _ in range(chance.randrange(4)))]:
        path = segment_of(commit_log, start)
        if path.exists():
            zero(path, start % SEGMENT_SIZE, start % SEGMENT_SIZE + PAGE)
    return first


KINDS = (log_ends, file_is_cut, later_files_are_gone, pages_are_lost)


class Golden:
    def __init__(self, name: str, unpacked: Path) -> None:
        self.name = name
        self.store = unpacked / "store"
        self.records = records_of(unpacked)
        last = self.records[-1]
        self.end = last["phyOffset"] + last["storeSize"]

    def copy(self, to: Path) -> Path:
        """Copy the store and keep holes: queue files are nearly nothing but holes."""
        subprocess.run(["cp", "-r", "--sparse=always", str(self.store), str(to)], check=True)
        return to


@pytest.fixture(params=NAMES)
def golden(request: pytest.FixtureRequest, golden_store: Callable[[str], Path]) -> Golden:
    return Golden(request.param, golden_store(request.param))


def body_of(store: OpenStore, entry: ConsumeQueueEntry) -> memoryview | StoreDamaged:
    try:
        return store.messages.read(entry).body
    except StoreDamaged as error:
        return error


def check_content(store: OpenStore, golden: Golden, first_damaged: int) -> None:
    """Every whole record from before the damage is there; what else is there is right, or refused by name."""
    bodies = {record["phyOffset"]: record["bodySha1"] for record in golden.records}
    found = set()
    for queue in store.messages.iterate_queues():
        for entry in store.messages.entries(queue, QueueOffset(0), 100_000):
            body = body_of(store, entry)
            if isinstance(body, StoreDamaged):
                assert entry.physical_offset + entry.size > first_damaged, f"{queue} {entry}: {body}"
                assert re.search(rf"[0-9]{{20}}: .*offset {entry.physical_offset}", str(body)), body
                continue
            assert hashlib.sha1(body).hexdigest() == bodies[entry.physical_offset], f"{queue} {entry}: a wrong body"
            found.add((queue, int(entry.queue_offset), int(entry.physical_offset)))
    # a queue offset given twice is the later record's
    expected = {(QueueId(each["topic"], each["queueId"]), each["queueOffset"]): each for each in golden.records}
    for (queue, offset), each in expected.items():
        if each["phyOffset"] + each["storeSize"] <= first_damaged:
            assert (queue, offset, each["phyOffset"]) in found, f"{queue} {offset} is silently missing"


def check(golden: Golden, copy: Path, damage: Damage) -> str:
    golden.copy(copy)
    first_damaged = damage(StorePaths(copy).commit_log)
    refusal = refusal_of(copy, lambda store: check_content(store, golden, first_damaged))
    if refusal is None:
        return "opened"
    assert re.search(r"commitlog/[0-9]{20}\b|commitlog:", refusal), f"no file is named: {refusal}"
    assert re.search(r"offset \d+|\d+ bytes|segment \d+ is missing", refusal), f"no place is named: {refusal}"
    return "refused"


def refusal_of(copy: Path, look: Callable[[OpenStore], None]) -> str | None:
    """Return why the store does not open, or what stops its inspection. The copy is used up."""
    try:
        with capture_logs():
            store = opened(copy)
            try:
                look(store)
            finally:
                store.close()
    except (StoreUnusable, KvError) as error:
        return str(error)
    finally:
        subprocess.run(["rm", "-r", str(copy)], check=True)
    return None


def check_many(golden: Golden, directory: Path, kind: Callable[[Path, int], int], rounds: int) -> set[str]:
    seed = int(os.environ.get("QUARRY_DAMAGE", "1"))
    chance = Random(f"{seed} {golden.name} {kind.__name__}")
    outcomes = set()
    for number in range(rounds):
        # also close to the end, where a store must not be refused
        at = chance.randrange(1, golden.end) if number % 4 else golden.end - chance.randrange(1, 3000)
        try:
            outcomes.add(check(golden, directory / str(number), lambda log, at=at: kind(log, at)))  # type: ignore[misc]
        except Exception as error:
            error.add_note(f"{golden.name}, {kind.__name__} at {at}")
            raise
    return outcomes


@pytest.mark.parametrize("kind", KINDS)
def test_some_places(golden: Golden, tmp_path: Path, kind: Callable[[Path, int], int]) -> None:
    assert check_many(golden, tmp_path, kind, QUICK) <= {"opened", "refused"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_two_hundred_places(golden: Golden, tmp_path: Path, kind: Callable[[Path, int], int]) -> None:
    check_many(golden, tmp_path, kind, ALL)


def test_what_a_power_cut_may_have_taken_from_a_killed_store_opens(
    golden_store: Callable[[str], Path], tmp_path: Path
) -> None:
    """The last segment of an unclean store is not known to have been flushed: it is cut, not refused."""
    golden = Golden("file-kill", golden_store("file-kill"))
    for number in range(8):
        at = golden.end - 1 - number * 30_000
        assert check(golden, tmp_path / str(number), lambda log, at=at: log_ends(log, at)) == "opened"  # type: ignore[misc]


JSON_FILES: Final = ("topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json")


def check_json(golden: Golden, copy: Path, file: str, at: int, mask: int) -> None:
    """JSON has no checksum, so another name may come out of it; but all messages do, and nothing breaks."""
    golden.copy(copy)
    path = StorePaths(copy).config / file
    data = bytearray(path.read_bytes())
    data[at] ^= mask
    path.write_bytes(data)

    def look(store: OpenStore) -> None:
        check_content(store, golden, golden.end)
        for queue in store.messages.iterate_queues():
            end = store.messages.bounds(queue).maximum
            for group in store.groups.list():
                assert (store.offsets.get(group.name, queue) or 0) <= end, f"{group.name} is ahead in {queue}"

    refusal = refusal_of(copy, look)
    assert refusal is None or file in refusal, f"{file} is not named: {refusal}"


@pytest.mark.parametrize("rounds", [3, pytest.param(1500, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["file-kill", "file-clean"])
def test_flipped_bytes_in_json(name: str, rounds: int, golden_store: Callable[[str], Path], tmp_path: Path) -> None:
    golden = Golden(name, golden_store(name))
    config = StorePaths(golden.store).config
    files = {file: (config / file).stat().st_size for file in JSON_FILES if (config / file).exists()}
    places = [(file, at) for file, size in files.items() for at in range(size)]
    chance = Random(rounds)
    for number, (file, at) in enumerate(chance.sample(places, min(rounds, len(places)))):
        mask = 1 << chance.randrange(8)
        try:
            check_json(golden, tmp_path / str(number), file, at, mask)
        except Exception as error:
            error.add_note(f"{name}: byte {at} of {file} flipped by {mask:#04x}")
            raise
