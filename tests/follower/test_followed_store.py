"""A store whose log is written by another broker has the same log and the same queues."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.store.errors import OffsetOutOfRange, StoreDamaged
from quarry_mq.store.follower import FollowedStore, follow
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.opening.open_store import OpenStore, RecoveredStore, recover_store
from quarry_mq.store.pending import PendingBefore
from quarry_mq.store.pending.rows import TIMER_TOPIC
from quarry_mq.store.settings import StoreSettings
from tests.store.assembly import message
from tests.store.test_deletions import light_message, opened, rows_of

SEGMENT_SIZE = 64 * 1024


def recovered(root: Path) -> RecoveredStore:
    settings = StoreSettings(root=root, segment_size=SEGMENT_SIZE, units_per_file=16)
    return recover_store(settings, disk=PosixDisk(), clock=ManualClock(), report=lambda _: None)


def log_bytes(store: OpenStore, start: int, end: int) -> bytes:
    """Return the bytes of the log from one offset to another, blanks included."""
    found = b""
    while start < end:
        base = start - start % SEGMENT_SIZE
        stop = min(end, base + SEGMENT_SIZE)
        segment = store.segments.segment_at(PhysicalOffset(base))
        found += bytes(segment.view()[start - base : stop - base])
        start = stop
    return found


def send_some(store: OpenStore, chance: Random) -> None:
    messages = [message("orders", chance.randrange(3), body=bytes(chance.randrange(9_000))) for _ in range(5)]
    store.messages.append([*messages, light_message(chance.randrange(9), "%LMQ%a", f"%LMQ%{chance.randrange(3)}")])
    store.messages.dispatch(store.messages.flush())


def push(store: OpenStore, follower: FollowedStore, end: int, chance: Random) -> None:
    """Push the log in pieces of any size up to an offset."""
    while (at := follower.received_up_to) < end:
        size = min(chance.choice([1, 3, 90, 4_000, 32_768]), end - at)
        follower.receive(at, log_bytes(store, at, at + size))


@pytest.mark.parametrize("seed", range(8))
def test_log_and_queues_are_those_of_the_other_broker(tmp_path: Path, seed: int) -> None:
    chance = Random(seed)
    primary = opened(tmp_path / "primary")
    follower = follow(recovered(tmp_path / "follower"))
    for _ in range(20):
        send_some(primary, chance)
        end = primary.messages.appended_up_to
        behind = chance.randrange(2) * chance.randrange(3_000)
        push(primary, follower, max(follower.received_up_to, end - behind), chance)
        if chance.random() < 0.6:
            follower.commit()
            assert follower.flushed_up_to == follower.received_up_to
            assert follower.dispatched_up_to <= follower.flushed_up_to
        if chance.random() < 0.3:
            follower.close()  # an incomplete record is cut, and received again
            follower = follow(recovered(tmp_path / "follower"))
    push(primary, follower, primary.messages.appended_up_to, chance)
    follower.commit()
    end = primary.messages.appended_up_to
    assert follower.dispatched_up_to == end
    promoted = follower.begin_writing()
    assert log_bytes(promoted, 0, end) == log_bytes(primary, 0, end)
    assert rows_of(promoted) == rows_of(primary)
    for store in (primary, promoted):
        send_some(store, Random(seed))
    assert rows_of(promoted) == rows_of(primary)
    primary.close()
    promoted.close()


def test_bytes_that_do_not_continue_the_log_are_refused(tmp_path: Path) -> None:
    primary = opened(tmp_path / "primary")
    primary.messages.append([message("orders")])
    follower = follow(recovered(tmp_path / "follower"))
    for offset in (1, 500):
        with pytest.raises(OffsetOutOfRange, match=f"offset {offset} do not continue a log that ends at 0"):
            follower.receive(PhysicalOffset(offset), b"x")
    assert follower.received_up_to == 0
    primary.close()
    follower.close()


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda data: data[:100] + b"\xff" + data[101:], id="a wrong byte"),
        pytest.param(lambda data: data[:91] + data[92:] + b"\0", id="a missing byte"),
        pytest.param(lambda data: b"\xff" * len(data), id="no log at all"),
    ],
)
def test_what_is_no_record_is_refused_by_name_and_never_dispatched(
    tmp_path: Path, spoil: Callable[[bytes], bytes]
) -> None:
    primary = opened(tmp_path / "primary")
    primary.messages.append([message("orders", body=b"x" * 300) for _ in range(3)])
    data = log_bytes(primary, 0, primary.messages.appended_up_to)
    follower = follow(recovered(tmp_path / "follower"))
    follower.receive(PhysicalOffset(0), spoil(data))
    with pytest.raises(StoreDamaged, match="received at offset 0 is no record"):
        follower.commit()
    assert follower.dispatched_up_to == 0
    primary.close()


def test_what_the_other_broker_has_forgotten_is_pending_again(tmp_path: Path) -> None:
    """A broker that is killed may go back in its progress, and delivers again what it had delivered."""
    primary = opened(tmp_path / "primary")
    primary.messages.append([message(TIMER_TOPIC, TIMER_OUT_MS="5000", UNIQ_KEY=f"{each}") for each in range(6)])
    primary.messages.dispatch(primary.messages.flush())
    follower = follow(recovered(tmp_path / "follower"))
    push(primary, follower, primary.messages.appended_up_to, Random(3))
    follower.commit()
    waiting = []
    for read in (1, 5, 2, 6, 0):
        follower.settle(PendingBefore(timers_read=read, timers_read_ms=6_000), 10_000)
        waiting.append(len(list(follower._pending.waiting_messages())))
    assert waiting == [5, 1, 4, 0, 6]
    follower.close()
    primary.close()
