"""A broker that is killed in the middle of a job goes on with it: nothing is left out, and little is done twice."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from quarry_mq.protocol.messages.property_names import DEAD_LETTER_TOPIC, RESENT_ID, UNIQUE_KEY
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2
from quarry_mq.protocol.proto.quarry.admin.v1 import jobs_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.jobs_pb2_grpc import JobServiceStub
from quarry_mq.server.admin.dead_letter_box import SENT_AT_ONCE as LETTERS_AT_ONCE
from quarry_mq.server.admin.jobs import SENT_AT_ONCE
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.message import Host, Message, QueueId
from quarry_mq.store.metadata import Topic, TopicType
from quarry_mq.store.offline import OfflineStore
from quarry_mq.store.record import StoredMessage
from tests.conformance.broker import RunningBroker, run, running_broker
from tests.conformance.jobs import stand_in_lite_topics
from tests.e2e.broker import Broker, until

COUNT = 2_000
HOST = Host(b"\x7f\0\0\1", 1)
OPEN = {"waiting", "running"}


def stored(topic: str, number: int, **properties: str) -> Message:
    return Message(topic, 0, b"%d" % number, {UNIQUE_KEY: f"M{number}", **properties}, 0, HOST, HOST)


async def fill(broker: RunningBroker) -> None:
    """Messages, dead letters, and a group that stands in very many lite topics."""
    for name in ("orders", "copies", "%DLQ%billing"):
        broker.store.topics.create(Topic(name, TopicType.NORMAL, 1, 1), internal=True)
    broker.topic("events", TopicType.LITE, queues=1)
    broker.group("billing")
    stand_in_lite_topics(broker, "billing", "events", COUNT)
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    messages = [stored("orders", number) for number in range(COUNT)]
    letters = [stored("%DLQ%billing", number, **{DEAD_LETTER_TOPIC: "orders"}) for number in range(COUNT)]
    broker.broker._commit.send([*messages, *letters], lambda _, error: done.set_result(None))
    await done


@pytest.mark.slow
def test_a_kill_in_the_middle_of_jobs_leaves_nothing_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def make() -> None:
        async with running_broker(tmp_path, monkeypatch) as broker:
            await fill(broker)

    run(make())
    broker = Broker(tmp_path / "store", logs=tmp_path / "logs")
    try:
        latest = admin_pb2.Latest()
        ids = []
        for work in (
            {"reset_offset": pb.OffsetsReset(group="billing", topic="events", latest=latest)},
            {"resend_dead_letters": pb.DeadLettersResend(group="billing")},
            {"resend_messages": pb.MessagesResend(topic="orders", queue=0, to_topic="copies")},
        ):
            broker.start()
            with grpc.insecure_channel(broker.admin) as channel:
                jobs: Any = JobServiceStub(channel)
                job = jobs.BeginJob(pb.BeginJobRequest(**work))
                ids.append(job.id)
                while (job := jobs.GetJob(pb.GetJobRequest(id=job.id))).done < 200:
                    time.sleep(0.001)
                assert job.state == "running", job
            broker.kill()
        broker.start()
        with grpc.insecure_channel(broker.admin) as channel:
            jobs = JobServiceStub(channel)
            until(lambda: all(jobs.GetJob(pb.GetJobRequest(id=each)).state not in OPEN for each in ids), "jobs end")
            reset, letters, messages = (jobs.GetJob(pb.GetJobRequest(id=each)) for each in ids)
        broker.stop()
    finally:
        broker.close()
    assert (reset.state, reset.done, dict(reset.counts)) == (
        "done",
        COUNT + 1,
        {"reset": COUNT + 1, "moved": COUNT + 1},
    )
    assert (letters.state, letters.done, letters.counts["sent"]) == ("done", COUNT, COUNT)
    assert (messages.state, messages.done, messages.counts["sent"]) == ("done", COUNT, COUNT)
    check_copies(tmp_path / "store")


def check_copies(root: Path) -> None:
    with OfflineStore.open(PosixDisk(), root) as store:
        retried = Counter(record.properties[UNIQUE_KEY] for record in records(store, "%RETRY%billing_orders"))
        assert set(retried) == {f"M{number}" for number in range(COUNT)}
        assert retried.total() <= COUNT + LETTERS_AT_ONCE
        copies = list(records(store, "copies"))
        sent = [(record.properties[RESENT_ID], record.properties[UNIQUE_KEY]) for record in copies]
        assert len(sent) <= COUNT + SENT_AT_ONCE
        assert list(dict.fromkeys(origin for origin, _ in sent)) == [f"M{number}" for number in range(COUNT)]
        # what was sent twice says so by its id
        assert len({identity for _, identity in sent}) == COUNT


def records(store: OfflineStore, topic: str) -> Iterator[StoredMessage]:
    """Of the topic's one queue."""
    queue = QueueId(topic, 0)
    for entry in store.entries(queue):
        record = store.record_of(entry, queue)
        assert isinstance(record, StoredMessage)
        yield record
