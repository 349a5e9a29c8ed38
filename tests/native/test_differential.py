"""Whole requests, to a broker with the native part and to one without: the same answers, stores and health.

What comes in is built from good requests by wrong lengths, repeated and unknown fields, wrong wire types, long
varints, texts that are none, and counts and sizes about the limits.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from quarry_mq.protocol.limits import ENTRIES_MAX
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.store.native import NATIVE
from tests.native.mutations import Field, Mutator, parsed
from tests.native.twins import Twins, running_twins
from tests.wire.builders import NOW_MS, message, send

pytestmark = pytest.mark.skipif(NATIVE is None, reason="no native part")

INPUTS: Final = int(os.environ.get("QUARRY_TEST_FUZZ_INPUTS", "2000000"))
"""Mutated requests of the long run."""
QUICK_INPUTS: Final = 2_500
PARTS: Final = 8
"""Tests into which the long run is divided."""
PER_STORE: Final = 50_000
"""Requests until both begin anew with empty stores."""
RECEIVED_EACH: Final = 500
"""Requests after which the messages so far are received and acknowledged."""

NOW: Final = Timestamp(seconds=NOW_MS // 1000, nanos=1_000_000)
SOON: Final = Timestamp(seconds=NOW_MS // 1000 + 60)
USUAL: Final[Mapping[str, Any]] = {
    "tag": "red", "keys": ["order-1", "customer-7"], "born_timestamp": NOW, "born_host": "host-1", "queue_id": 1,
    "body_encoding": definition.IDENTITY, "message_type": definition.NORMAL,
}  # fmt: skip
SENDS: Final = [
    send(message()),
    send(message(**USUAL, user_properties={"colour": "red"})),
    send(message(**USUAL, user_properties={"colour": "red"}), message(body=b"second"), message(body=b"third")),
    send(message(topic="mixed", **USUAL)),
    send(message(topic="another-new-topic")),
    send(message(topic="fifo", message_group="group-1", message_type=definition.FIFO)),
    send(message(topic="later", delivery_timestamp=SOON, message_type=definition.DELAY)),
    send(
        message(
            topic="halves",
            message_type=definition.TRANSACTION,
            orphaned_transaction_recovery_duration=Duration(seconds=9),
        )
    ),
    send(message(topic="lite", lite_topic="one", message_type=definition.LITE)),
    send(message(topic="urgent", priority=3, message_type=definition.PRIORITY)),
    send(message(topic="orders", user_properties={"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b"})),
    send(message(trace_context="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", delivery_attempt=2)),
    send(
        message(
            body_digest=definition.Digest(type=definition.CRC32, checksum="1A2B"),
            store_host="h",
            receipt_handle="r",
            dead_letter_queue=definition.DeadLetterQueue(topic="t", message_id="m"),
        )
    ),
]  # fmt: skip
READ_TOPICS: Final = ("orders", "mixed")


def receive(topic: str) -> service.ReceiveMessageRequest:
    return service.ReceiveMessageRequest(
        group=definition.Resource(name="readers"),
        message_queue=definition.MessageQueue(topic=definition.Resource(name=topic)),
        filter_expression=definition.FilterExpression(type=definition.TAG, expression="*"),
        batch_size=32,
        invisible_duration=Duration(seconds=60),
        long_polling_timeout=Duration(),
    )


def acknowledgement(topic: str, *entries: definition.Message) -> service.AckMessageRequest:
    return service.AckMessageRequest(
        group=definition.Resource(name="readers"),
        topic=definition.Resource(name=topic),
        entries=[
            service.AckMessageEntry(
                message_id=each.system_properties.message_id, receipt_handle=each.system_properties.receipt_handle
            )
            for each in entries
        ],
    )


async def received(twins: Twins, request: bytes) -> list[definition.Message]:
    items = [service.ReceiveMessageResponse.FromString(each) for each in await twins.ask("ReceiveMessage", request)]
    return [each.message for each in items if each.HasField("message")]


async def read_and_acknowledge(twins: Twins, mutator: Mutator) -> int:
    """Some of what is there, with good requests and others; returns how many requests that were."""
    count = 0
    for topic in READ_TOPICS:
        wanted = receive(topic)
        await received(twins, mutator.mutated(parsed(wanted)))
        while found := await received(twins, wanted.SerializeToString()):
            count += 1
            for entries in (found[:1], found[1:2], found[2:5]):
                good = parsed(acknowledgement(topic, *entries))
                for _ in range(3):
                    await twins.ask("AckMessage", mutator.mutated(good))
                    count += 1
            await twins.ask("AckMessage", acknowledgement(topic, *found).SerializeToString())
    return count


async def compare(directory: Path, seed: int, inputs: int) -> None:
    """Send so many requests to twins that begin with empty stores, and read what they have stored."""
    mutator = Mutator(seed)
    good: Sequence[Sequence[Field]] = [parsed(each) for each in SENDS]
    async with running_twins(directory) as twins:
        for number in range(inputs):
            await twins.ask("SendMessage", mutator.mutated(good[number % len(good)]))
            if number % RECEIVED_EACH == RECEIVED_EACH - 1:
                await read_and_acknowledge(twins, mutator)
        for request in SENDS:
            answer = service.SendMessageResponse.FromString((await twins.ask("SendMessage", as_bytes(request)))[0])
            assert answer.status.code == definition.OK, "what is good is taken after all that was not"
        await read_and_acknowledge(twins, mutator)
        twins.compare_stores()


def as_bytes(request: Message) -> bytes:
    return request.SerializeToString()


def test_some_thousand_requests_are_answered_and_stored_the_same(tmp_path: Path) -> None:
    asyncio.run(compare(tmp_path, seed=1, inputs=QUICK_INPUTS))


@pytest.mark.parametrize(
    ("properties", "code"), [(0, definition.OK), (3, definition.OK), (12, definition.PAYLOAD_TOO_LARGE)]
)
def test_batches_of_small_messages_have_the_same_bound(tmp_path: Path, properties: int, code: int) -> None:
    """The native part stored batches that Python refused for the count of their fields."""
    small = message(body=b"b", user_properties={f"p{number}": "v" for number in range(properties)}, **USUAL)

    async def ask() -> None:
        async with running_twins(tmp_path) as twins:
            (answer,) = await twins.ask("SendMessage", as_bytes(send(*[small] * ENTRIES_MAX)))
            assert service.SendMessageResponse.FromString(answer).status.code == code
            twins.compare_stores()

    asyncio.run(ask())


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_millions_of_requests_are_answered_and_stored_the_same(tmp_path: Path, part: int) -> None:
    """`QUARRY_TEST_FUZZ_INPUTS` says how many; a failure shows the request."""
    inputs = INPUTS // PARTS
    for number, first in enumerate(range(0, inputs, PER_STORE)):
        seed = 1_000 * (part + 1) + number
        asyncio.run(compare(tmp_path / str(seed), seed, min(PER_STORE, inputs - first)))
