"""A segment that was cut is refused, also where it is the only one: nothing but a note tells what it was."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from quarry_mq.cli.main import app
from quarry_mq.protocol.clock import ManualClock
from quarry_mq.store.commitlog import SegmentList
from quarry_mq.store.errors import StoreDamaged, StoreUnusable
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.paths import StorePaths, segment_name
from quarry_mq.store.message import Host, Message, PhysicalOffset
from quarry_mq.store.offline import OfflineStore
from quarry_mq.store.opening.open_store import OpenStore, open_store
from quarry_mq.store.settings import Durability, StoreSettings

SIZE = 256 * 1024
HOST = Host(bytes([127, 0, 0, 1]), 8081)


def opened(root: Path, segment_size: int = SIZE) -> OpenStore:
    settings = StoreSettings(root=root, segment_size=segment_size, durability=Durability.SYNC)
    return open_store(settings, disk=PosixDisk(), clock=ManualClock(), report=lambda _: None)


def send(store: OpenStore, count: int) -> None:
    """Store messages as a broker does under `sync`: flushed messages are acknowledged."""
    for number in range(count):
        store.messages.append([Message("orders", 0, b"body %03d" % number * 16, {}, 1_700_000_000_000, HOST, HOST)])
        store.messages.dispatch(store.messages.flush())


def fill_up_to(store: OpenStore, offset: int) -> None:
    while store.messages.appended_up_to < offset:
        send(store, 1)


def killed(store: OpenStore, root: Path) -> Path:
    """Return a copy of the files that a process leaves which dies now."""
    left = root.with_name(f"{root.name}-killed")
    shutil.copytree(root, left)
    store.close()
    return left


def log_file(root: Path, base: int = 0) -> Path:
    return StorePaths(root).commit_log / segment_name(PhysicalOffset(base))


def cut(file: Path, size: int) -> None:
    with file.open("r+b") as opened_file:
        opened_file.truncate(size)


def messages_of(root: Path) -> int:
    store = opened(root)
    try:
        return sum(
            bounds.maximum - bounds.minimum for bounds in map(store.messages.bounds, store.messages.iterate_queues())
        )
    finally:
        store.close()


@pytest.fixture
def acknowledged(tmp_path: Path) -> Path:
    """200 messages that were acknowledged within the last second, and a process that died."""
    root = tmp_path / "store"
    store = opened(root)
    send(store, 200)
    return killed(store, root)


@pytest.mark.parametrize("left", [SIZE // 4, 4_096, 16_384, SIZE - 1])
def test_the_only_segment_that_was_cut_is_refused_whatever_lies_in_it(acknowledged: Path, left: int) -> None:
    cut(log_file(acknowledged), left)
    sizes = f"the file has {left} bytes, a segment of this log {SIZE}, as quarry/SEGMENT_SIZE says"
    says = f"{segment_name(PhysicalOffset(0))}: {sizes}"
    for _ in range(2):
        with pytest.raises(StoreDamaged, match=says):
            opened(acknowledged)
    with pytest.raises(StoreDamaged, match=says):
        OfflineStore.open(PosixDisk(), acknowledged)
    assert log_file(acknowledged).stat().st_size == left, "refused, and left as it is"
    for command in (["verify"], ["recover", "--dry-run"]):
        told = CliRunner().invoke(app, [command[0], str(acknowledged), *command[1:]])
        assert told.exit_code == 1
        assert f"{left} bytes" in told.stderr


def test_whole_it_opens_with_all(acknowledged: Path) -> None:
    assert messages_of(acknowledged) == 200


def test_the_last_of_several_segments_that_was_cut_is_refused(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill_up_to(store, SIZE + 5_000)
    last = store.segments.bases[-1]
    assert last == SIZE
    root = killed(store, tmp_path)
    cut(log_file(root, last), SIZE // 2)
    with pytest.raises(StoreDamaged, match=segment_name(last)):
        opened(root)


@pytest.mark.parametrize("base", [0, SIZE])
@pytest.mark.parametrize("gone", ["removed", "emptied"])
def test_the_last_segment_that_is_gone_right_after_its_first_message_is_missed(
    tmp_path: Path, base: int, gone: str
) -> None:
    """Nobody waited for the second in which the durable end of the log is written down."""
    store = opened(tmp_path)
    fill_up_to(store, base + 1)
    last = store.segments.bases[-1]
    assert last == base
    root = killed(store, tmp_path)
    if gone == "removed":
        log_file(root, last).unlink()
    else:
        cut(log_file(root, last), 0)
    for _ in range(2):
        with pytest.raises(StoreDamaged, match="was durable"):
            opened(root)


def test_a_store_that_knows_no_size_takes_that_of_its_only_segment_and_warns(tmp_path: Path) -> None:
    store = opened(tmp_path)
    send(store, 50)
    store.close()
    kept = tmp_path / "quarry" / "SEGMENT_SIZE"
    assert kept.read_text() == f"{SIZE}\n"
    kept.unlink()  # as an older version, or RocketMQ, left it
    with capture_logs() as lines:
        opened(tmp_path, 2 * SIZE).close()
    assert any(line["event"].startswith("the only segment has another size") for line in lines)
    assert kept.read_text() == f"{SIZE}\n"
    with capture_logs() as lines:
        opened(tmp_path, 2 * SIZE).close()
    assert not lines or all("another size" not in line["event"] for line in lines), "told once"


@pytest.mark.parametrize("left", [5_000, 4_096])
def test_a_store_that_knows_no_size_is_refused_where_its_only_segment_ends_in_a_record(
    acknowledged: Path, left: int
) -> None:
    (acknowledged / "quarry" / "SEGMENT_SIZE").unlink()
    cut(log_file(acknowledged), left)
    with pytest.raises(StoreUnusable, match=rf"the only segment has {left} bytes and ends in the middle of a record"):
        opened(acknowledged, 2 * SIZE)
    assert not (acknowledged / "quarry" / "SEGMENT_SIZE").exists()


def test_of_several_segments_most_tell_the_size(golden_copy: Callable[[str], Path]) -> None:
    root = golden_copy("rocks-clean") / "store"
    opened(root).close()
    assert (root / "quarry" / "SEGMENT_SIZE").read_text() == "1048576\n"


def test_a_full_segment_is_not_taken_for_a_cut_one(tmp_path: Path) -> None:
    store = opened(tmp_path)
    fill_up_to(store, SIZE)
    root = killed(store, tmp_path)
    log_file(root, SIZE).unlink()
    for name in ("quarry", "consumequeue_rocksdb", "held_rocksdb"):
        shutil.rmtree(root / name)
    opened(root, 2 * SIZE).close()


def test_a_store_without_a_segment_takes_the_size_from_the_settings(tmp_path: Path) -> None:
    opened(tmp_path).close()
    store = opened(tmp_path, 2 * SIZE)
    send(store, 1)
    store.close()
    assert log_file(tmp_path).stat().st_size == 2 * SIZE
    assert (tmp_path / "quarry" / "SEGMENT_SIZE").read_text() == f"{2 * SIZE}\n"


@pytest.mark.parametrize("text", ["", "many\n", "-5\n", "9" * 5_000])
def test_a_note_that_is_no_size_is_refused_by_name(tmp_path: Path, text: str) -> None:
    store = opened(tmp_path)
    send(store, 1)
    store.close()
    (tmp_path / "quarry" / "SEGMENT_SIZE").write_text(text)
    with pytest.raises(StoreDamaged, match="quarry/SEGMENT_SIZE: does not contain a size"):
        opened(tmp_path)


def test_a_segment_that_is_cut_while_the_log_is_open_is_told_when_it_is_mapped(acknowledged: Path) -> None:
    log = SegmentList(PosixDisk(), StorePaths(acknowledged).commit_log, SIZE)
    cut(log_file(acknowledged), 4_096)
    for use in (log.segment_at, log.open_for_writing):
        with pytest.raises(StoreDamaged, match="4096 bytes"):
            use(PhysicalOffset(0))


CUT_WHILE_MAPPED = """
import mmap, sys
import quarry_mq.cli.main

def read_what_is_gone():
    with open(sys.argv[1], "r+b") as file:
        mapped = mmap.mmap(file.fileno(), 0)
        file.truncate(0)
        return mapped[0]

quarry_mq.cli.main.app = read_what_is_gone
quarry_mq.cli.main.main()
"""


def test_a_process_that_reads_a_mapped_file_that_was_cut_shows_where(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(8_192))
    ended = subprocess.run(
        [sys.executable, "-c", CUT_WHILE_MAPPED, str(tmp_path / "file")], capture_output=True, text=True, check=False
    )
    assert ended.returncode == -signal.SIGBUS
    assert "Bus error" in ended.stderr
    assert "read_what_is_gone" in ended.stderr
