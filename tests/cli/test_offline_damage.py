"""Offline commands report damaged stores, and directories that are no store at all."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from struct import pack

import pytest

from quarry_mq.store.fs import PosixDisk
from tests import golden
from tests.cli.offline_runner import flip, lines, refusal, run, zero

GoldenStore = Callable[[str], Path]

SEGMENT_SIZE = 1024 * 1024

RECORD_LOCK = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
    print("locked", flush=True)
    sys.stdin.read()
"""
"""What RocketMQ does: a classic exclusive record lock on byte 0."""


@pytest.fixture
def copy(golden_copy: GoldenStore) -> Path:
    return golden_copy("file-clean")


def segment(copy: Path, number: int = 0) -> Path:
    return copy / "store" / "commitlog" / f"{number * SEGMENT_SIZE:020d}"


def files(root: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path.relative_to(root)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in root.rglob("*")
        if path.is_file()
    }


def test_flipped_bit_of_a_body_is_reported_and_ends_the_list(copy: Path) -> None:
    expected = golden.records(copy)
    at = expected[100]["phyOffset"]
    flip(segment(copy), at + 88)
    result = run("decode", copy / "store", "--json")
    assert result.exit_code == 1
    assert len(result.stdout.splitlines()) == 100
    assert result.stderr == f"{segment(copy)}: offset {at}: corrupt: the body does not match its CRC\n"


def test_records_before_and_after_damage_can_be_read(copy: Path) -> None:
    expected = golden.records(copy)
    flip(segment(copy), expected[100]["phyOffset"] + 88)
    later = expected[101]["phyOffset"]
    assert lines("decode", copy / "store", "--at", later) == expected[101:]
    assert lines("decode", copy / "store", "--limit", 100) == expected[:100]


def test_hole_of_whole_sectors_is_no_end(copy: Path) -> None:
    """Zeros look like the end of the log; records behind them must not be passed over silently."""
    expected = golden.records(copy)
    first, second = expected[200]["phyOffset"], expected[210]["phyOffset"]
    zero(segment(copy), first, second)
    last_line = run("decode", copy / "store", "--json").stderr
    reason = f"nothing was written here, but bytes follow at offset {second + 2}"  # sizes begin with two zeros
    assert last_line == f"{segment(copy)}: offset {first}: torn: {reason}\n"


def test_hole_up_to_the_next_segment_is_no_end(copy: Path) -> None:
    expected = golden.records(copy)
    first = expected[200]["phyOffset"]
    zero(segment(copy), first, SEGMENT_SIZE)
    line = refusal(1, "decode", copy / "store", "--at", first)
    assert line.endswith(f"torn: nothing was written here, but bytes follow at offset {SEGMENT_SIZE + 2}")


def test_torn_tail_names_its_segment(copy: Path) -> None:
    at = golden.records(copy)[-1]["phyOffset"]
    zero(segment(copy, 2), at - 2 * SEGMENT_SIZE + 300, SEGMENT_SIZE)
    line = refusal(1, "decode", copy / "store", "--at", at)
    assert line.startswith(f"{segment(copy, 2)}: offset {at}: torn: ")


def test_offset_within_a_record(copy: Path) -> None:
    assert refusal(1, "decode", copy / "store", "--at", 1).startswith(f"{segment(copy)}: offset 1: ")


def test_offset_after_the_last_record(copy: Path) -> None:
    last = golden.records(copy)[-1]
    at = last["phyOffset"] + last["storeSize"]
    line = refusal(1, "decode", copy / "store", "--at", at)
    assert line == f"{segment(copy, 2)}: offset {at}: nothing was written here"


def test_entry_of_a_damaged_record(copy: Path) -> None:
    record = next(line for line in golden.records(copy) if line.get("topic") == "acme-orders")
    flip(segment(copy), record["phyOffset"] + 88)
    arguments = ("--topic", "acme-orders", "--queue", record["queueId"], "--offset", record["queueOffset"])
    line = refusal(1, "decode", copy / "store", *arguments)
    assert line == f"{segment(copy)}: offset {record['phyOffset']}: corrupt: the body does not match its CRC"


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (pack(">qiq", 2**40, 100, 0), f"offset {2**40} is outside the commit log"),
        (pack(">qiq", 340, 595, 0), "entry 0 says 595 bytes, the record 596"),
        (pack(">qiq", 340, 596, 0), "points here, but this is entry 0 of rmq_sys_wheel_timer/0"),
        (pack(">qiq", 341, 596, 0), "magic code"),
        (pack(">qiq", 1_048_454, 122, 0), "points here, but no record begins here"),
    ],
    ids=["no such offset", "wrong size", "wrong queue", "no record", "blank"],
)
def test_entry_that_disagrees_with_the_log(copy: Path, entry: bytes, reason: str) -> None:
    queue = copy / "store" / "consumequeue" / "acme-orders" / "0" / f"{0:020d}"
    with queue.open("r+b") as file:
        file.write(entry)
    arguments = ("--topic", "acme-orders", "--queue", 0, "--offset", 0)
    line = refusal(1, "decode", copy / "store", *arguments)
    assert reason in line
    assert line.startswith(f"{copy / 'store' / 'commitlog'}")


def test_truncated_segment(copy: Path) -> None:
    os.truncate(segment(copy, 1), SEGMENT_SIZE - 1)
    line = refusal(1, "decode", copy / "store")
    assert line == f"{segment(copy, 1)}: the file has {SEGMENT_SIZE - 1} bytes, a segment of this log {SEGMENT_SIZE}"


def test_missing_segment(copy: Path) -> None:
    segment(copy, 1).unlink()
    line = refusal(1, "decode", copy / "store")
    assert f"segment {segment(copy, 1).name} is missing" in line


def test_damaged_rocksdb_is_reported_not_shortened(golden_copy: GoldenStore) -> None:
    """A damaged table block once made a scan end early without an error."""
    store = golden_copy("rocks-clean") / "store"
    for table in (store / "consumequeue").glob("*.sst"):
        for position in range(0, table.stat().st_size // 2, 64):
            flip(table, position, 0xFF)
    line = refusal(1, "units", store, "--topic", "acme-orders", "--queue", 0)
    assert str(store) in line


def test_not_a_store(tmp_path: Path, golden_store: GoldenStore) -> None:
    """Each names the path at fault, in one line (a wrong mount shows as an empty directory: rocketmq-docker#115)."""
    empty = tmp_path / "empty"
    empty.mkdir()
    file = tmp_path / "file"
    file.write_bytes(b"")
    foreign = tmp_path / "foreign"
    (foreign / "commitlog").mkdir(parents=True)
    (foreign / "commitlog" / "notes.txt").write_bytes(b"x")
    for command in (("decode",), ("queues",), ("units", "--topic", "t", "--queue", 0)):
        for path, named in (
            (tmp_path / "missing", tmp_path / "missing"),
            (empty, empty),
            (file, file),
            (foreign, foreign / "commitlog" / "notes.txt"),
            (golden_store("file-clean"), golden_store("file-clean") / "store"),
        ):
            assert str(named) in refusal(2, *command, path), (command, path)
    assert list(empty.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("decode", "--at", 3 * SEGMENT_SIZE + 1), "outside the commit log"),
        (("units", "--topic", "no-such-topic", "--queue", 0), "no queue 0 of topic no-such-topic"),
        (("units", "--topic", "acme-orders", "--queue", 99), "no queue 99 of topic acme-orders"),
        (("units", "--topic", "../commitlog", "--queue", 0), "no queue 0"),
        (("units", "--topic", "CHECKPOINT_TOPIC", "--queue", 0), "no queue 0"),
        (("decode", "--topic", "acme-tx", "--queue", 0, "--offset", 2), "acme-tx/0 holds the offsets [0, 2), not 2"),
        (("queues", "--source", "file"), "no file queues"),
    ],
)
def test_what_is_not_there(golden_store: GoldenStore, arguments: tuple[object, ...], named: str) -> None:
    store = golden_store("rocks-clean") / "store"
    line = refusal(2, *arguments, store)
    assert named in line
    assert str(store) in line


def test_rocksdb_that_is_not_there(golden_store: GoldenStore) -> None:
    """Looking makes no database."""
    store = golden_store("file-clean") / "store"
    assert "no queues in RocksDB" in refusal(2, "queues", store, "--source", "rocksdb")
    assert not (store / "consumequeue_rocksdb").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("decode", "--topic", "t"),
        ("decode", "--topic", "t", "--queue", 0),
        ("decode", "--topic", "t", "--queue", 0, "--offset", 0, "--at", 0),
        ("decode", "--limit", 0),
        ("decode", "--at", -1),
        ("units", "--topic", "t", "--queue", -1),
        ("queues", "--source", "memory"),
    ],
)
def test_wrong_options(golden_store: GoldenStore, arguments: tuple[object, ...]) -> None:
    result = run(*arguments, golden_store("file-clean") / "store")
    assert result.exit_code == 2
    assert result.stdout == ""


def test_store_of_a_running_rocketmq_is_refused(copy: Path) -> None:
    lock = copy / "store" / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", RECORD_LOCK, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as broker:
        assert broker.stdout is not None
        assert broker.stdout.readline() == b"locked\n"
        line = refusal(2, "decode", copy / "store")
    assert line == f"{lock}: a broker is running on this store; stop it first"
    assert run("decode", copy / "store", "--limit", 1).exit_code == 0


def test_store_of_a_running_quarry_is_refused(copy: Path) -> None:
    lock = PosixDisk().lock(copy / "store" / "lock")
    assert "a broker is running" in refusal(2, "queues", copy / "store")
    lock.release()
    assert run("queues", copy / "store").exit_code == 0


def test_nothing_is_changed(golden_copy: GoldenStore) -> None:
    """No lock file is made where there is none; opening RocksDB leaves neither LOCK nor LOG."""
    store = golden_copy("double-clean") / "store"
    (store / "lock").unlink()
    before = files(store)
    lines("decode", store)
    for source in ("file", "rocksdb"):
        lines("queues", store, "--source", source)
        lines("units", store, "--topic", "acme-orders", "--queue", 1, "--source", source)
    assert files(store) == before


def test_store_made_by_moving_rocksdb_to_its_own_folder(golden_copy: GoldenStore) -> None:
    """`consumequeue_rocksdb/` is where newer RocketMQ can be told to keep it (rmq#10173)."""
    store = golden_copy("rocks-clean") / "store"
    expected = lines("queues", store)
    shutil.move(store / "consumequeue", store / "consumequeue_rocksdb")
    assert lines("queues", store) == expected
