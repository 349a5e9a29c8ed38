from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from quarry_mq.kv import EngineFull
from quarry_mq.kv.rocks import RocksEngine
from quarry_mq.protocol.clock import Progress
from quarry_mq.store.consumequeue.rocks_layout import BOUND, OFFSET_FAMILY, maximum_key, minimum_key
from quarry_mq.store.errors import NotAStore, StoreDamaged, StoreLocked, StoreUnusable
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.message import PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.state.identity import StoreIdentity
from tests.store.assembly import message
from tests.store.test_golden_stores import entries_of, opened
from tests.verify.stores import get, put, queue_rows, state_rows

QUEUE = QueueId("orders", 0)


def bodies(root: Path) -> list[bytes]:
    store = opened(root)
    try:
        messages = store.messages
        return [bytes(messages.read(entry).body) for entry in messages.entries(QUEUE, QueueOffset(0), 1_000)]
    finally:
        store.close()


def fill(root: Path, count: int = 3) -> None:
    store = opened(root)
    store.messages.append([message(body=b"%d" % number) for number in range(count)])
    store.close()


def test_what_is_sent_is_there_after_a_clean_stop(tmp_path: Path) -> None:
    fill(tmp_path / "store")
    assert bodies(tmp_path / "store") == [b"0", b"1", b"2"]
    assert not StorePaths(tmp_path / "store").abort.exists()


def test_the_marker_of_an_unclean_stop_is_there_while_the_store_is_open(tmp_path: Path) -> None:
    store = opened(tmp_path)
    assert StorePaths(tmp_path).abort.read_text() == str(os.getpid())
    store.close()


def test_a_stop_on_a_full_disk_leaves_the_rest_to_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path)
    store.messages.append([message(body=b"%d" % number) for number in range(3)])
    with monkeypatch.context() as full:

        def flush(_: RocksEngine, __: Sequence[str]) -> None:
            raise EngineFull("IO error: No space left on device")

        full.setattr(RocksEngine, "flush", flush)
        store.close()
    assert StorePaths(tmp_path).abort.exists(), "the stop was not clean"
    assert bodies(tmp_path) == [b"0", b"1", b"2"]


def test_a_store_that_another_broker_holds_is_refused_before_anything_is_touched(tmp_path: Path) -> None:
    fill(tmp_path)
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            (
                "import sys\nfrom pathlib import Path\nfrom tests.store.test_golden_stores import opened\n"
                "store = opened(Path(sys.argv[1]))\nprint('open', flush=True)\nsys.stdin.readline()"
            ),
            str(tmp_path),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=Path(__file__).parents[2],
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        assert any(line == b"open\n" for line in iter(holder.stdout.readline, b""))
        before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
        with pytest.raises(StoreLocked, match="lock: another broker"):
            opened(tmp_path)
        assert sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before
    finally:
        holder.kill()
        holder.wait()
        holder.stdin.close()
        holder.stdout.close()
    assert bodies(tmp_path) == [b"0", b"1", b"2"]


def test_a_failed_opening_gives_the_lock_back(tmp_path: Path) -> None:
    fill(tmp_path)
    current = StorePaths(tmp_path).consume_queue_rocksdb / "CURRENT"
    current.write_bytes(b"MANIFEST-999999\n")
    with pytest.raises(StoreUnusable, match=str(tmp_path)):
        opened(tmp_path)
    shutil.rmtree(StorePaths(tmp_path).consume_queue_rocksdb)
    assert bodies(tmp_path) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("lost", ["consumequeue_rocksdb", "quarry", "both"])
def test_deleting_derived_data_and_metadata_loses_no_message(lost: str, tmp_path: Path) -> None:
    """Promise 1: everything except the commit log is a function of the commit log."""
    fill(tmp_path)
    store = opened(tmp_path)
    before = entries_of(store.messages, QUEUE)
    store.close()
    for name in ("consumequeue_rocksdb", "quarry"):
        if lost in (name, "both"):
            shutil.rmtree(tmp_path / name)
    store = opened(tmp_path)
    assert entries_of(store.messages, QUEUE) == before
    if lost != "consumequeue_rocksdb":
        assert store.topics.get("orders") is not None, "a topic whose metadata is lost is found in its queues"
    store.close()
    assert bodies(tmp_path) == [b"0", b"1", b"2"]


def test_a_directory_that_is_no_store_is_refused_by_name_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"x")
    with pytest.raises(NotAStore, match=str(tmp_path)):
        opened(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["holiday.jpg"]


def test_a_new_store_without_room_for_a_segment_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing could ever be sent; better told by the start than by each send."""
    monkeypatch.setattr(PosixDisk, "free_bytes", lambda *_: 5_000_000)
    with pytest.raises(StoreUnusable, match=r"commitlog: the first segment needs 1073741824 bytes.* only 5000000 free"):
        opened(tmp_path)
    assert not StorePaths(tmp_path).quarry.exists(), "refused before anything is made"


def test_a_store_without_room_for_another_segment_opens_with_a_warning(
    golden_copy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store without room for another segment opens, since its messages can be received."""
    root = golden_copy("rocks-clean") / "store"
    monkeypatch.setattr(PosixDisk, "free_bytes", lambda *_: 1_000_000)
    with capture_logs() as lines:
        store = opened(root)
    left_bytes = store.messages.appended_up_to
    store.close()
    (line,) = [line for line in lines if "no room" in line["event"]]
    assert (line["needed_bytes"], line["free_bytes"]) == (1_048_576, 1_000_000)
    assert line["left_in_the_last_bytes"] == 1_048_576 - left_bytes % 1_048_576
    assert line["directory"] == str(StorePaths(root).commit_log)


def test_a_file_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises((NotAStore, OSError), match="file"):
        opened(tmp_path / "file")


def test_a_truncated_segment_is_refused_by_name(tmp_path: Path, golden_copy: Callable[[str], Path]) -> None:
    root = golden_copy("rocks-clean") / "store"
    segment = StorePaths(root).commit_log / f"{1_048_576:020d}"
    with segment.open("r+b") as file:
        file.truncate(500_000)
    with pytest.raises(StoreDamaged, match=segment.name):
        opened(root)


def test_segments_missing_at_the_beginning_are_named_once(golden_copy: Callable[[str], Path]) -> None:
    """Expired by RocketMQ, or lost: only the operator knows, so it is said and not refused."""
    root = golden_copy("file-clean") / "store"
    with capture_logs() as first:
        opened(root).close()
    for base in (0, 1_048_576):
        (StorePaths(root).commit_log / f"{base:020d}").unlink()
    with capture_logs() as after_the_loss:
        opened(root).close()
    with capture_logs() as later:
        opened(root).close()
    (line,) = [line for line in after_the_loss if "missing" in line]
    assert line["log_level"] == "warning"
    assert line["missing"] == [f"{0:020d}", f"{1_048_576:020d}"]
    assert (line["missing_count"], line["log_begins_at"]) == (2, 2_097_152)
    assert not [line for line in first + later if "missing" in line]


def test_a_segment_missing_between_others_or_at_the_end_is_refused_by_name(golden_copy: Callable[[str], Path]) -> None:
    root = golden_copy("file-clean") / "store"
    opened(root).close()
    log = StorePaths(root).commit_log
    for name in (f"{1_048_576:020d}", f"{2_097_152:020d}"):
        (log / name).rename(root / "kept")
        with pytest.raises(StoreDamaged, match=name.lstrip("0")):
            opened(root)
        (root / "kept").rename(log / name)
    opened(root).close()


@pytest.mark.parametrize("kept", [0, 1])
def test_segments_missing_at_the_end_of_a_store_by_rocketmq_are_no_reason_to_forget_their_entries(
    golden_copy: Callable[[str], Path], kept: int
) -> None:
    """It was stopped in good order, so the log was whole: the queues know of messages that somebody took away."""
    root = golden_copy("rocks-clean") / "store"
    log = StorePaths(root).commit_log
    taken = sorted(log.iterdir())[kept:]
    for path in taken:
        path.rename(root / f"taken-{path.name}")
    with pytest.raises(StoreDamaged, match=r"commitlog.*the files end there"):
        opened(root)
    for path in taken:
        (root / f"taken-{path.name}").rename(path)
    store = opened(root)
    assert store.recovery.end == store.messages.dispatched_up_to
    assert not store.recovery.findings.queues_were_ahead
    store.close()


def test_a_foreign_file_in_the_log_is_left_alone(tmp_path: Path) -> None:
    """LevelDB's and ZODB's lesson: a stray .DS_Store must not keep a store from opening."""
    fill(tmp_path)
    stray = StorePaths(tmp_path).commit_log / ".DS_Store"
    stray.write_bytes(b"x")
    assert bodies(tmp_path) == [b"0", b"1", b"2"]
    assert stray.exists()


@pytest.mark.parametrize("since", ["the first start", "a clean stop"])
def test_what_comes_below_a_minimum_that_rocketmq_left_is_read(golden_copy: Callable[[str], Path], since: str) -> None:
    """rmq#10417: a minimum above the maximum, in a store that is taken over, or that RocketMQ had for a while."""
    root = golden_copy("rocks-clean") / "store"
    queue = QueueId("acme-orders", 0)
    if since == "a clean stop":
        opened(root).close()
        with state_rows(root) as engine:
            identity = StoreIdentity(engine, root)
            identity.flushed_up_to = PhysicalOffset((identity.flushed_up_to or 0) - 1)
    with queue_rows(root) as engine:
        maximum = BOUND.unpack(get(engine, OFFSET_FAMILY, maximum_key(queue)))[1] + 1
        put(engine, OFFSET_FAMILY, minimum_key(queue), BOUND.pack(0, maximum + 2))
    with capture_logs() as lines:
        store = opened(root)
    assert [line["queues"] for line in lines if "above their maximum" in line["event"]] == [1]
    for count in range(1, 4):
        store.messages.append([message(queue.topic, queue.number)])
        store.messages.dispatch(store.messages.flush())
        assert store.messages.bounds(queue) == (0, maximum + count)
        assert len(entries_of(store.messages, queue)) == maximum + count
    store.close()
    with capture_logs() as lines:
        opened(root).close()
    assert not [line for line in lines if "above their maximum" in line["event"]]


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    store = opened(tmp_path)
    batch = store.state_engine.batch()
    batch.put(store.state_engine.family("meta"), b"format", b"9")
    store.state_engine.write(batch, sync=True)
    store.close()
    with pytest.raises(NotAStore, match="newer Quarry"):
        opened(tmp_path)


def test_long_recovery_reports_how_far_it_is(golden_copy: Callable[[str], Path]) -> None:
    """rmq#9587: a probe must be able to tell a slow recovery from a dead broker."""
    reports: list[Progress] = []
    opened(golden_copy("file-clean") / "store", reports).close()
    assert reports
    whats = [report.phase for report in reports]
    assert whats == sorted(whats, key=whats.index), "one after the other"
    for what in dict.fromkeys(whats):
        of_one = [report.percent for report in reports if report.phase == what]
        assert of_one == sorted(of_one)
    percents = [report.percent for report in reports if report.phase == whats[0]]
    assert percents[0] == 0
    assert len({percent for percent in percents if 0 < percent < 100}) > 1
    assert percents[-1] >= 95, "what lies behind the log's end in its last segment is no work"


@pytest.mark.parametrize(("ahead", "warnings"), [(7, 1), (3, 0)])
def test_groups_that_stood_beyond_what_a_power_cut_left_are_set_back_to_the_end(
    tmp_path: Path, ahead: int, warnings: int
) -> None:
    """Else they would pass over the next messages, which get the offsets of the lost ones. Nothing is said if there are
    no such groups.
    """
    fill(tmp_path, count=3)
    store = opened(tmp_path)
    batch = store.state_engine.batch()
    store.offsets.stage(batch, "ahead", QUEUE, QueueOffset(ahead))
    store.offsets.stage(batch, "behind", QUEUE, QueueOffset(2))
    store.identity.stage_seen_up_to(batch, PhysicalOffset(1 << 30))
    store.state_engine.write(batch)
    store.close()
    with capture_logs() as logged:
        for _ in range(2):
            store = opened(tmp_path)
            assert store.offsets.get("ahead", QUEUE) == 3
            assert store.offsets.get("behind", QUEUE) == 2
            assert (store.identity.seen_up_to or 0) <= store.messages.appended_up_to
            store.close()
    assert [each["event"] for each in logged].count("groups were ahead of the log") == warnings


def test_the_key_of_handles_is_made_once_and_is_the_stores_own(tmp_path: Path) -> None:
    with closing(opened(tmp_path / "one")) as store:
        made = store.identity.handle_key(PhysicalOffset(77))
        assert store.identity.handle_key(PhysicalOffset(99)) == made
    with closing(opened(tmp_path / "one")) as store:
        assert store.identity.handle_key(PhysicalOffset(99)) == made, "it is there after a restart"
    key, since = made
    assert (len(key), since) == (32, 77)
    with closing(opened(tmp_path / "other")) as store:
        assert store.identity.handle_key(PhysicalOffset(77))[0] != key
