"""The log begins later: what readers, queues and the next start see of it, whatever happens in between."""

from __future__ import annotations

import errno
from contextlib import suppress
from threading import Event, Thread
from time import sleep
from typing import Literal

import pytest
from structlog.testing import capture_logs

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.store.errors import OffsetOutOfRange
from quarry_mq.store.layout.paths import expired_directory
from quarry_mq.store.message import PhysicalOffset, QueueBounds, QueueId, QueueOffset
from quarry_mq.store.opening.open_store import warn_of_missing_begin
from quarry_mq.store.retention import Candidate, Cause, ExpirySettings, Situation
from tests.expiry.log import QUEUE, Life, fill, machine, view_of
from tests.faults.disk import PowerCut
from tests.store.assembly import LOG, SEGMENT_SIZE, message

DAY_S = 86_400
START_MS = ManualClock().wall_ms()
RETENTION = ExpirySettings(retention_ms=3 * DAY_S * 1000, delete_when=frozenset())


def situation(life: Life) -> Situation:
    return life.expiry.situation(hour=12)


def planned(life: Life, settings: ExpirySettings = RETENTION) -> list[int]:
    return [int(candidate.base) for candidate, _ in life.expiry.plan(settings, situation(life)).segments]


def oldest_file(life: Life) -> str:
    return next(entry.name for entry in life.opened.disk.list_directory(LOG) if not entry.is_directory)


def test_what_expired_is_gone_from_queues_log_and_disk() -> None:
    life = machine().start()
    fill(life, 5)
    life.expire_to(3 * SEGMENT_SIZE)
    assert life.opened.store.bounds(QUEUE) == QueueBounds(QueueOffset(3), QueueOffset(5))
    assert life.bodies() == [b"03", b"04"]
    assert life.bases == [3 * SEGMENT_SIZE, 4 * SEGMENT_SIZE]
    assert oldest_file(life) == f"{3 * SEGMENT_SIZE:020d}"
    assert not life.opened.disk.list_directory(expired_directory(LOG))
    assert life.expiry.remover.pending_bytes(SEGMENT_SIZE) == 0


def test_a_consumer_that_stands_below_goes_on_at_the_new_beginning() -> None:
    life = machine().start()
    fill(life, 5)
    life.expire_to(3 * SEGMENT_SIZE)
    entries = life.opened.store.entries(QUEUE, QueueOffset(0), 10)
    assert [entry.queue_offset for entry in entries] == [3, 4]


def test_a_queue_whose_messages_are_all_gone_keeps_its_next_offset_also_over_a_restart() -> None:
    host = machine()
    life = host.start()
    fill(life, 2, topic="early")
    fill(life, 3)
    life.expire_to(2 * SEGMENT_SIZE)
    early = QueueId("early", 0)
    for power_loss in (False, True):
        host.crash(1, power_loss=power_loss)
        life = host.start()
        assert life.opened.store.bounds(early) == QueueBounds(QueueOffset(2), QueueOffset(2))
    assert life.opened.store.append([message("early")])[0].queue_offset == 2


def test_the_segment_that_is_being_filled_stays_whatever_its_age() -> None:
    life = machine().start()
    fill(life, 1)
    everything = ExpirySettings(retention_ms=0, delete_when=frozenset())
    assert planned(life, everything) == []
    assert life.expiry.retire(PhysicalOffset(SEGMENT_SIZE)) == 0
    assert life.bodies() == [b"00"]


def test_segments_whose_queues_are_not_durable_stay_until_they_are() -> None:
    """A crash would take the entries back, the numbering with them, and no log would have the records any more."""
    life = machine().start()
    fill(life, 2)
    for _ in range(2):
        life.opened.store.append([message(body=bytes(SEGMENT_SIZE // 2))])
    life.opened.store.dispatch(life.opened.store.flush())
    assert life.expiry.retire(PhysicalOffset(3 * SEGMENT_SIZE)) == SEGMENT_SIZE
    life.make_durable()
    assert life.expiry.retire(PhysicalOffset(3 * SEGMENT_SIZE)) == 3 * SEGMENT_SIZE


def test_pinned_segments_stay() -> None:
    life = machine().start()
    fill(life, 5)
    host_clock_far_ahead = ExpirySettings(retention_ms=0, delete_when=frozenset())
    assert planned(life, host_clock_far_ahead) == [0, SEGMENT_SIZE, 2 * SEGMENT_SIZE, 3 * SEGMENT_SIZE]
    life.pins.pin("backup", PhysicalOffset(2 * SEGMENT_SIZE + 10), lease_s=60)
    assert planned(life, host_clock_far_ahead) == [0, SEGMENT_SIZE]
    assert life.expiry.retire(PhysicalOffset(4 * SEGMENT_SIZE)) == 2 * SEGMENT_SIZE


def test_the_age_of_a_segment_is_that_of_its_newest_record() -> None:
    host = machine()
    life = host.start()
    for _ in range(4):  # one segment a day
        fill(life, 1)
        host.clock.advance(DAY_S)
    host.clock.advance(1.5 * DAY_S)
    # Written on days 0, 1, 2 and 3, and it is day 5.5. The second is known to be older than 3 days, since the third was
    # begun on day 2.
    assert planned(life) == [0, SEGMENT_SIZE]
    host.clock.advance(DAY_S / 2)
    assert planned(life) == [0, SEGMENT_SIZE, 2 * SEGMENT_SIZE]


def test_the_age_does_not_change_when_files_are_copied_or_the_broker_starts_again() -> None:
    """RocketMQ takes the files' modification time, which a restore sets anew."""
    host = machine()
    fill(host.start(), 3)
    host.clock.advance(4 * DAY_S)
    host.crash(1, power_loss=False)
    assert planned(host.start()) == [0, SEGMENT_SIZE]


@pytest.mark.parametrize("jump_s", [DAY_S, 400 * DAY_S])
def test_a_clock_that_jumps_ahead_makes_nothing_older(jump_s: float) -> None:
    """A clock set wrong for a moment must not cost a day of messages."""
    host = machine()
    life = host.start()
    fill(life, 3)
    host.clock.advance(2.5 * DAY_S)
    host.clock.jump(jump_s)
    assert planned(life) == []
    host.clock.advance(DAY_S)
    assert planned(life) == [0, SEGMENT_SIZE]


def test_a_clock_that_jumps_back_lets_nothing_expire_early_and_is_believed() -> None:
    host = machine()
    life = host.start()
    fill(life, 3)
    host.clock.advance(3.5 * DAY_S)
    host.clock.jump(-DAY_S)
    assert planned(life) == []
    host.clock.jump(DAY_S)
    assert planned(life) == [0, SEGMENT_SIZE]


def test_store_times_ascend_whatever_the_clock_does() -> None:
    host = machine()
    life = host.start()
    times = []
    for jump_s in (0, DAY_S, -DAY_S, 60, -3 * DAY_S, 2 * DAY_S):
        host.clock.jump(jump_s)
        times.append(life.opened.store.append([message()])[0].store_timestamp_ms)
    assert times == sorted(times)


def test_views_that_slow_readers_hold_stay_good_and_their_files_stay_until_patience_ends() -> None:
    host = machine()
    life = host.start()
    fill(life, 3)
    view = view_of(life, 0)
    before = bytes(view)
    life.expiry.announce(PhysicalOffset(2 * SEGMENT_SIZE))
    life.expiry.retire(PhysicalOffset(2 * SEGMENT_SIZE))
    removed = life.expiry.remover.run()
    assert [each.path.name for each in removed] == [f"{SEGMENT_SIZE:020d}"], "the other one is read"
    assert life.expiry.remover.pending_bytes(SEGMENT_SIZE) == SEGMENT_SIZE
    assert bytes(view) == before
    host.clock.advance(59)
    assert not life.expiry.remover.run()
    host.clock.advance(1)
    with capture_logs() as lines:
        assert [each.path.name for each in life.expiry.remover.run()] == [f"{0:020d}"]
    assert [line["file"] for line in lines] == [f"{0:020d}"]
    assert bytes(view) == before, "a removed file keeps its bytes as long as it is mapped"


def test_a_reader_that_is_done_lets_its_file_go() -> None:
    life = machine().start()
    fill(life, 3)
    view = view_of(life, 0)
    life.expiry.retire(PhysicalOffset(SEGMENT_SIZE))
    assert not life.expiry.remover.run()
    view.release()
    assert len(life.expiry.remover.run()) == 1


def test_a_scan_that_the_beginning_overtakes_is_told_so() -> None:
    life = machine().start()
    fill(life, 4)
    scan = life.opened.reader.scan(PhysicalOffset(0))
    assert next(scan).physical_offset == 0
    assert life.expiry.retire(PhysicalOffset(2 * SEGMENT_SIZE)) == 2 * SEGMENT_SIZE
    with pytest.raises(OffsetOutOfRange, match="outside the commit log"):
        list(scan)


@pytest.mark.parametrize("operation", ["move", "remove"])
def test_a_failed_delete_is_tried_again_and_none_is_passed_over(operation: Literal["move", "remove"]) -> None:
    host = machine()
    life = host.start()
    fill(life, 4)
    disk = host.disk
    disk.fail(operation, nth=2, error=errno.EIO)
    life.expiry.announce(PhysicalOffset(3 * SEGMENT_SIZE))
    life.expiry.retire(PhysicalOffset(3 * SEGMENT_SIZE))
    with pytest.raises(OSError, match=f"{SEGMENT_SIZE:020d}"):
        life.expiry.remover.run()
    assert life.expiry.remover.is_stuck == (operation == "move")
    assert life.expiry.remover.pending_bytes(SEGMENT_SIZE) == (3 if operation == "move" else 2) * SEGMENT_SIZE
    life.expiry.remover.run()
    assert life.expiry.remover.pending == 0
    assert oldest_file(life) == f"{3 * SEGMENT_SIZE:020d}"


@pytest.mark.parametrize("power_loss", [False, True], ids=["process death", "power loss"])
def test_a_crash_between_any_two_steps_leaves_a_log_that_opens_whole(*, power_loss: bool) -> None:
    """No warning of missing segments, no gap, no message lost that had not expired; the next round ends the work."""
    interrupted = set()
    for step in range(1, 40):
        host = machine()
        life = host.start()
        fill(life, 6)
        host.disk.crash_at = host.disk.operations + step
        finished = False
        with suppress(PowerCut):
            life.expire_to(4 * SEGMENT_SIZE)
            finished = True
        if not finished:
            interrupted.add(host.disk.log[-1][0])
        host.crash(step, power_loss=power_loss)
        log_begin = life.identity.log_begin
        life = host.start()
        with capture_logs() as lines:
            warn_of_missing_begin(life.opened.segments, log_begin)
        assert not lines, f"{step=}"
        bodies = life.bodies()
        assert bodies[-2:] == [b"04", b"05"], f"{step=}"
        assert bodies == [b"%02d" % number for number in range(6 - len(bodies), 6)], f"{step=}"
        life.remove_all()
        life.expire_to(4 * SEGMENT_SIZE)
        assert life.bodies() == [b"04", b"05"]
        assert not host.disk.list_directory(expired_directory(LOG)), f"{step=}"
        if finished:
            break
    assert interrupted == {"move", "remove"}, "the test has crashed in each kind of step"


def test_readers_go_on_while_segments_expire() -> None:
    """Views taken before stay good, reads of what is left never fail, reads of what is gone are refused in order."""
    life = machine().start()
    fill(life, 40)
    done = Event()
    problems: list[object] = []
    reads = [0, 0]

    def read() -> None:
        reader = life.opened.reader
        while not done.is_set():
            for number in range(40):
                at = PhysicalOffset(number * SEGMENT_SIZE)
                try:
                    found = reader.decode(at)
                except OffsetOutOfRange:
                    if at >= life.expiry.minimum:
                        problems.append(("refused", number))
                    reads[1] += 1
                    continue
                if bytes(getattr(found, "body", b""))[:2] != b"%02d" % number:
                    problems.append((number, found))
                reads[0] += 1

    threads = [Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(1, 39):
        while reads[0] < 40 * number:
            sleep(0.001)
        life.expire_to(number * SEGMENT_SIZE)
    done.set()
    for thread in threads:
        thread.join()
    assert not problems
    assert reads[1] > 0


def test_what_groups_have_not_read_is_counted_before_it_goes() -> None:
    """rmq#4549: messages that nobody had read were deleted, and nobody was told."""
    life = machine().start()
    fill(life, 5)
    stage(life, "done", 5)
    stage(life, "behind", 1)
    stage(life, "a little", 3)
    unread = life.expiry.unread_before(PhysicalOffset(4 * SEGMENT_SIZE))
    assert unread.messages_by_group == {"behind": 3, "a little": 1}
    assert (unread.messages, unread.complete) == (4, True)
    life.expire_to(2 * SEGMENT_SIZE)
    again = life.expiry.unread_before(PhysicalOffset(4 * SEGMENT_SIZE))
    assert again.messages_by_group == {"behind": 2, "a little": 1}, "what is gone already is not counted again"


def test_a_plan_tells_segment_and_cause() -> None:
    host = machine()
    life = host.start()
    fill(life, 3)
    host.clock.advance(4 * DAY_S)
    plan = life.expiry.plan(RETENTION, situation(life))
    assert plan.segments == (
        (Candidate(PhysicalOffset(0), START_MS), Cause.AGE),
        (Candidate(PhysicalOffset(SEGMENT_SIZE), START_MS), Cause.AGE),
    )


def stage(life: Life, group: str, offset: int) -> None:
    engine = life.state
    batch = engine.batch()
    life.positions.stage(batch, group, QUEUE, QueueOffset(offset))
    engine.write(batch)
