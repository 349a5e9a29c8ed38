"""Whatever happens meanwhile, each message of a range is sent at least once, in its order, and no other is."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.server import jobs as jobs_module
from quarry_mq.server.admin.jobs import SENT_AT_ONCE, MessageResendWork, Outcomes
from quarry_mq.server.delivery import StateWriter
from quarry_mq.server.jobs import JobKind, Jobs, MessageResend
from quarry_mq.store.consumequeue.search import TimeBoundary
from quarry_mq.store.errors import Invalid, Unavailable
from quarry_mq.store.message import PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.metadata import Topic, TopicTable, TopicType
from quarry_mq.store.record import StoredMessage
from quarry_mq.store.state.identity import FAMILIES
from quarry_mq.store.state.jobs import Job, JobState, JobTable
from tests.delivery.broker import ListedMessages
from tests.jobs.bench import Stats
from tests.server.committing import FillingEngine

QUEUES = 3
TOPIC = "orders"
FATES = st.sampled_from(["sent"] * 4 + ["unavailable", "killed"])


class Killed(BaseException):
    """The process is gone: what was sent is stored, and nobody has noted it."""


class TimedMessages(ListedMessages):
    """Message n of a queue was stored at n ms."""

    def offset_at_time(self, queue: QueueId, time_ms: int, boundary: TimeBoundary) -> QueueOffset:
        assert boundary is TimeBoundary.LOWER
        bounds = self.bounds(queue)
        return QueueOffset(min(max(time_ms, bounds.minimum), bounds.maximum))

    def record_at(self, at: PhysicalOffset) -> StoredMessage:
        raise AssertionError(f"nobody asks for {at}")


class FatefulResender:
    """Sends to a list. Each message whose offset is divisible by `refused` is refused for good."""

    def __init__(self, fates: Sequence[str], refused: int) -> None:
        self.fates = list(fates)
        self.refused = refused
        self.sent: list[tuple[int, int]] = []

    def send(self, records: Sequence[StoredMessage], topic: Topic, job_id: int) -> Outcomes:
        assert len(records) <= SENT_AT_ONCE
        fate = self.fates.pop() if self.fates else "sent"
        found: list[Exception | None] = []
        for number, record in enumerate(records):
            if fate == "unavailable" and number == len(records) // 2:
                found.append(Unavailable("not now"))
            elif record.queue_offset % self.refused == 0:
                found.append(Invalid("no"))
            else:
                self.sent.append((record.queue_number, record.queue_offset))
                found.append(None)

        async def outcomes() -> Sequence[Exception | None]:
            if fate == "killed":
                raise Killed
            return found

        return outcomes


class Bench:
    def __init__(self, sizes: Sequence[int], resender: FatefulResender) -> None:
        self.engine = FillingEngine(FAMILIES, write_ahead_log=True)
        self.topics = TopicTable(self.engine)
        self.topics.create(Topic(TOPIC, TopicType.NORMAL, QUEUES, QUEUES))
        self.store = TimedMessages()
        for number, size in enumerate(sizes):
            for offset in range(size):
                self.store.add(QueueId(TOPIC, number), b"%d" % offset, None)
        self.resender = resender

    def jobs(self) -> Jobs:
        """Those of a process that begins."""
        return Jobs(
            JobTable(self.engine),
            {JobKind.RESEND_MESSAGES: MessageResendWork(self.store, self.topics, cast("Any", None), self.resender)},
            writer=StateWriter(self.engine, lambda callback: None),
            clock=ManualClock(),
            metrics=Stats(),
        )

    def done(self, asked: MessageResend) -> Job:
        """The job when it has ended, by however many processes."""
        job = self.jobs().begin(asked, "tests")
        while not (found := self.jobs().get(job.id)).state.is_end:
            asyncio.run(self._run(job))
        return found

    async def _run(self, job: Job) -> None:
        jobs = self.jobs()
        task = asyncio.ensure_future(jobs.run())
        try:
            while not task.done() and not jobs.get(job.id).state.is_end:
                await asyncio.sleep(0)
            task.cancel()
            await task
        except (Killed, asyncio.CancelledError):
            pass


@given(
    sizes=st.lists(st.integers(0, 60), min_size=QUEUES, max_size=QUEUES),
    begin=st.integers(0, 30),
    length=st.integers(0, 50),
    log_end=st.none() | st.integers(0, 180),
    queue=st.none() | st.integers(0, QUEUES - 1),
    given_up=st.sets(st.integers(0, 179), max_size=5),
    fates=st.lists(FATES, max_size=12),
)
def test_each_message_is_sent_at_least_once_in_its_order(
    sizes: list[int],
    begin: int,
    length: int,
    log_end: int | None,
    queue: int | None,
    given_up: set[int],
    fates: list[str],
) -> None:
    resender = FatefulResender(fates, refused=7)
    bench = Bench(sizes, resender)
    bench.store.given_up = {number * 100 for number in given_up}
    end = bench.store.appended_up_to if log_end is None else log_end * 100
    asked = MessageResend(topic=TOPIC, to_topic=TOPIC, log_end=end, queue=queue, from_ms=begin, to_ms=begin + length)
    wanted = [
        (number, entry.queue_offset, entry.physical_offset)
        for number in range(QUEUES)
        if queue in (None, number)
        for entry, _ in bench.store.queues[QueueId(TOPIC, number)]
        if begin <= entry.queue_offset <= begin + length and entry.physical_offset < end
    ]
    sendable = [(number, offset) for number, offset, at in wanted if at not in bench.store.given_up and offset % 7]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs_module, "RETRY_S", 0)
        job = bench.done(asked)
    assert job.state is JobState.DONE
    assert job.done == job.total
    # queue by queue, each in its order: behind what was not taken at first all is sent again
    assert list(dict.fromkeys(reversed(resender.sent))) == sendable[::-1]
    repeated = fates.count("killed") + fates.count("unavailable")
    assert Counter(resender.sent).total() <= len(sendable) + repeated * SENT_AT_ONCE
    assert job.counts.get("sent", 0) == len(sendable)
    assert job.counts.get("refused", 0) == len(wanted) - len(sendable)
