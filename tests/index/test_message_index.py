"""The key index of an open store: kept up from memory or from the log, whatever happens to either."""

from __future__ import annotations

import errno
import shutil
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.store.errors import Unavailable
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.fs.posix import PosixSegment
from quarry_mq.store.index import NO_INDEXES, MessageIndex
from quarry_mq.store.message import Host, Message, PhysicalOffset
from quarry_mq.store.metadata import Topic, TopicType
from quarry_mq.store.opening.open_store import OpenStore, open_store
from quarry_mq.store.settings import IndexSettings, StoreSettings
from tests.cli.offline_runner import flip

HOST: Final = Host(bytes([127, 0, 0, 1]), 8081)
SEGMENT_SIZE: Final = 64 * 1024


class FullDisk(PosixDisk):
    """A disk on which no index file can be made, while it is full."""

    def __init__(self) -> None:
        super().__init__()
        self.is_full = False

    def create_segment(self, path: Path, size: int) -> PosixSegment:
        if self.is_full and path.parent.name in {"index", "filling"}:
            raise OSError(errno.ENOSPC, "no space", str(path))
        return super().create_segment(path, size)


KINDS: Final = {"hash": "hash_files", "tiered": "tiered"}


@dataclass(frozen=True)
class Opener:
    """Opens stores with an index of one kind."""

    kind: str
    root: Path
    clock: ManualClock = field(default_factory=ManualClock)

    @property
    def folder(self) -> Path:
        return self.root / ("index" if self.kind == "hash" else "key_index")

    def __call__(self, *, on: bool = True, items: int = 50, disk: PosixDisk | None = None) -> OpenStore:
        index = IndexSettings(
            **{KINDS[self.kind]: on},  # type: ignore[arg-type]
            hash_slots=11,
            hash_items=items,
            tiered_slots=11,
            tiered_items=items,
        )
        settings = StoreSettings(root=self.root, segment_size=SEGMENT_SIZE, index=index)
        return open_store(settings, disk=disk or PosixDisk(), clock=self.clock, report=lambda _: None)


@pytest.fixture(params=KINDS)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    return Opener(request.param, tmp_path)


def send(store: OpenStore, numbers: range, *, size: int = 100) -> None:
    if store.topics.get("orders") is None:
        store.topics.create(Topic("orders", TopicType.NORMAL, 1, 1))
    messages = store.messages
    for number in numbers:
        properties = {"UNIQ_KEY": f"id{number}", "KEYS": f"all k{number}"}
        messages.append([Message("orders", 0, b"x" * size, properties, 1_700_000_000_000, HOST, HOST)])
        messages.flush()
        messages.dispatch(messages.flushed_up_to)


def index_of(store: OpenStore) -> MessageIndex:
    [index] = store.messages.indexes.followers
    return index


def found(store: OpenStore, key: str, *, limit: int = 1_000) -> list[str]:
    answer = index_of(store).find("orders", key, begin_ms=0, end_ms=2**62, limit=limit, read=store.messages.record_at)
    return [each.properties["UNIQ_KEY"] for each in answer.messages]


def ids(numbers: range) -> list[str]:
    return [f"id{number}" for number in reversed(numbers)]


def test_what_was_just_dispatched_is_found(opened: Opener) -> None:
    store = opened()
    send(store, range(60))
    assert found(store, "all") == ids(range(60))
    assert found(store, "k7") == ["id7"]
    assert found(store, "id59") == ["id59"]
    assert found(store, "all", limit=3) == ids(range(57, 60))
    assert found(store, "nothing") == []
    send(store, range(60, 61))
    assert found(store, "all", limit=1) == ["id60"]
    store.close()


def test_only_the_topic_that_is_asked_for(opened: Opener) -> None:
    store = opened()
    send(store, range(3))
    answer = index_of(store).find("bills", "all", begin_ms=0, end_ms=2**62, limit=5, read=store.messages.record_at)
    assert answer.messages == []
    store.close()


def test_a_clean_stop_leaves_nothing_to_read(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened()
    send(store, range(100))
    store.close()
    monkeypatch.setattr("quarry_mq.store.index.opening.whole_runs", lambda *_: pytest.fail("it reads the log"))
    again = opened()
    assert not index_of(again).step()
    assert found(again, "all") == ids(range(100))
    again.close()


def test_turned_on_later_it_reads_the_log(opened: Opener) -> None:
    store = opened(on=False)
    assert store.messages.indexes == NO_INDEXES
    send(store, range(200))
    store.close()
    again = opened()
    index = index_of(again)
    assert (index.written_up_to, index.handed_over) == (0, again.messages.dispatched_up_to)
    send(again, range(200, 210))
    steps = 1
    while index.step():
        steps += 1
    assert steps > 1
    assert found(again, "all") == ids(range(210))
    again.close()


def test_turned_off_and_on_again_it_goes_on_where_it_was(opened: Opener) -> None:
    for life, is_on in enumerate((True, False, True)):
        store = opened(on=is_on)
        send(store, range(50 * life, 50 * (life + 1)))
        store.close()
    store = opened()
    assert found(store, "all") == ids(range(150))
    store.close()


def test_an_index_that_is_gone_is_made_again(opened: Opener) -> None:
    """As after the restore of a backup that was made of a live broker."""
    store = opened()
    send(store, range(100))
    store.close()
    shutil.rmtree(opened.folder)
    again = opened()
    index = index_of(again)
    assert index.written_up_to == 0
    while index.step():
        pass
    assert found(again, "all") == ids(range(100))
    again.close()


@pytest.mark.parametrize("name", ["sealed", "filling"])
def test_files_that_are_gone_or_damaged_are_made_again_from_the_log(tmp_path: Path, name: str) -> None:
    opened = Opener("tiered", tmp_path)
    store = opened()
    send(store, range(100))
    store.close()
    files = sorted((opened.folder / name).iterdir())
    files[-1 if name == "filling" else 1].unlink()
    for path in files[3:4]:
        flip(path, 20)
    again = opened()
    index = index_of(again)
    while index.step() or index.repair_one():
        pass
    tiered = again.messages.indexes.tiered
    assert tiered is not None
    assert tiered.damaged == []
    assert found(again, "all") == ids(range(100))
    for file in tiered.files:
        tiered.check(file.name)
    again.close()


def test_what_waits_too_long_is_read_from_the_log(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quarry_mq.store.index.message_index.WAITING_MAX", 20)
    store = opened()
    send(store, range(150))
    while index_of(store).step():
        pass
    assert found(store, "all") == ids(range(150))
    store.close()


def test_a_full_disk_delays_it(opened: Opener) -> None:
    disk = FullDisk()
    store = opened(disk=disk)
    send(store, range(10))
    assert found(store, "all") == ids(range(10))
    disk.is_full = True
    send(store, range(10, 100))
    with pytest.raises(OSError, match="no space"):
        index_of(store).step()
    with pytest.raises(OSError, match="no space"):
        index_of(store).step()
    assert set(ids(range(10))) <= set(found(store, "all")), "what is written is found"
    disk.is_full = False
    while index_of(store).step():
        pass
    assert found(store, "all") == ids(range(100))
    assert found(store, "k12") == ["id12"]
    store.close()


def test_a_full_disk_at_the_end_costs_the_next_start_some_reading(opened: Opener) -> None:
    disk = FullDisk()
    store = opened(disk=disk)
    send(store, range(10))
    disk.is_full = True
    send(store, range(10, 100))
    store.close()
    assert not (opened.root / "abort").exists(), "a clean stop all the same"
    again = opened()
    while index_of(again).step():
        pass
    assert found(again, "all") == ids(range(100))
    again.close()


def test_going_back_to_a_durable_state_ends_a_failure(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(items=1_000)
    send(store, range(20))
    index = index_of(store)
    index.step()
    index.save()
    files = index._files
    durable = files.state
    send(store, range(20, 40))
    index.step()

    def fail(_: object) -> None:
        raise OSError(errno.EIO, "input/output error")

    with monkeypatch.context() as broken:
        for name in ("hash.file.HashIndexFile", "tiered.chain_file.ChainedFile"):
            broken.setattr(f"quarry_mq.store.index.{name}.flush", fail)
            broken.setattr(f"quarry_mq.store.index.{name}.restore", lambda file, _: fail(file))
        for step in (files.flush, partial(files.go_back, durable)):
            with pytest.raises(OSError, match="input/output"):
                step()
            assert files.failure is not None
    files.go_back(durable)
    assert (files.failure, files.state) == (None, durable)
    store.close()


def test_after_a_failed_flush_it_is_not_asked_any_more(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(items=1_000)
    send(store, range(20))
    index = index_of(store)
    index.step()
    index.save()
    send(store, range(20, 40))
    index.step()

    def fail(_: object) -> None:
        raise OSError(errno.EIO, "input/output error")

    with monkeypatch.context() as broken:
        for name in ("hash.file.HashIndexFile.flush", "tiered.chain_file.ChainedFile.flush"):
            broken.setattr(f"quarry_mq.store.index.{name}", fail)
        with pytest.raises(OSError, match="input/output"):
            index.save()
    index.save()
    with pytest.raises(Unavailable, match="until the next start"):
        found(store, "all")
    store.close()
    again = opened()
    assert index_of(again).written_up_to < again.messages.dispatched_up_to, "it goes back to what was saved before"
    while index_of(again).step():
        pass
    assert found(again, "all") == ids(range(40))
    again.close()


def test_files_made_with_other_settings_are_read_as_they_are(opened: Opener) -> None:
    store = opened(items=50)
    send(store, range(30))
    store.close()
    again = opened(items=5_000)
    send(again, range(30, 60))
    assert found(again, "all") == ids(range(60))
    again.close()
    if opened.kind == "hash":
        assert len({path.stat().st_size for path in opened.folder.iterdir()}) == 1


def test_messages_that_expired_are_not_found_and_their_files_go(opened: Opener) -> None:
    store = opened()
    for number in range(300):
        opened.clock.advance(1.0)
        send(store, range(number, number + 1), size=1_000)
    while index_of(store).step():
        pass
    store.messages.flush_queues()
    files = index_of(store).file_count
    expiry = store.expiry
    expiry.remover.configure(patience_s=0, pause_s=0)
    minimum = PhysicalOffset(3 * SEGMENT_SIZE)
    expiry.announce(minimum)
    assert expiry.retire(minimum) == minimum
    expiry.remover.run()
    left = found(store, "all")
    assert left == ids(range(300 - len(left), 300))
    assert 0 < len(left) < 200
    assert index_of(store).expire() > 0
    assert index_of(store).file_count < files
    assert found(store, "all") == left
    store.close()
    again = opened()
    assert found(again, "all") == left
    again.close()


def test_after_the_store_is_closed_nothing_is_written(opened: Opener) -> None:
    store = opened()
    send(store, range(10))
    store.close()
    index = index_of(store)
    before = sorted(opened.folder.rglob("*"))
    assert not index.step()
    index.save()
    assert index.expire() == 0
    assert sorted(opened.folder.rglob("*")) == before
