"""Calls of the job service, as commands make them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio

from quarry_mq.protocol.proto.quarry.admin.v1 import jobs_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.jobs_pb2_grpc import JobServiceStub
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.metadata.lite import light_queue_name
from tests.conformance.broker import PATIENCE_S, RunningBroker

OPEN = {"waiting", "running"}


@asynccontextmanager
async def job_service(broker: RunningBroker) -> AsyncIterator[Any]:
    """The service's stub."""
    async with grpc.aio.insecure_channel(broker.admin) as channel:
        yield JobServiceStub(channel)


def reset_to_latest(group: str, topic: str, **terms: Any) -> pb.BeginJobRequest:
    request = pb.BeginJobRequest(reset_offset=pb.OffsetsReset(group=group, topic=topic, **terms), asked_by="tests")
    request.reset_offset.latest.SetInParent()
    return request


def resend(topic: str, **terms: Any) -> pb.BeginJobRequest:
    return pb.BeginJobRequest(resend_messages=pb.MessagesResend(topic=topic, **terms), asked_by="tests")


async def until(stub: Any, job: pb.Job, condition: Callable[[pb.Job], bool]) -> pb.Job:
    async with asyncio.timeout(PATIENCE_S):
        while not condition(job := await stub.GetJob(pb.GetJobRequest(id=job.id))):
            await asyncio.sleep(0.005)
    return job


async def done(stub: Any, request: pb.BeginJobRequest) -> pb.Job:
    """What the job has come to."""
    return await until(stub, await stub.BeginJob(request), lambda job: job.state not in OPEN)


def stand_in_lite_topics(broker: RunningBroker, group: str, parent: str, count: int) -> list[QueueId]:
    """As if the group had read three messages of each, which have expired since."""
    queues = [QueueId(light_queue_name(parent, f"chat-{number}"), 0) for number in range(count)]
    batch = broker.store.state_engine.batch()
    for queue in queues:
        broker.store.offsets.stage(batch, group, queue, QueueOffset(3))
    broker.store.state_engine.write(batch)
    return queues
