"""Rounds of encoded messages bring the same into the store, made natively and in Python."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarry_mq.store.commitlog.writer import encode_batch, native_batch_encoder
from quarry_mq.store.message import (
    Appended,
    DispatchRequest,
    EncodedBatch,
    EncodedMessage,
    Host,
    PhysicalOffset,
    QueueOffset,
    UnknownQueues,
)
from quarry_mq.store.native import NATIVE, Native
from quarry_mq.store.record.properties import EncodedProperties

ADDRESSES = st.one_of(st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16))
HOSTS = st.builds(Host, ADDRESSES, st.integers(0, 65_535))
TIMES_MS = st.integers(0, 2**47)
TOPICS = ["orders", "t", "ö" * 60, "t" * 127, "t" * 128, "t" * 255]
MESSAGES = st.builds(
    EncodedMessage,
    topic=st.sampled_from(TOPICS),
    queue_number=st.integers(0, 1) | st.integers(0, 2**31 - 1),
    body=st.binary(max_size=100),
    raw_properties=st.sampled_from([b"", b"a\x01b\x02", b"KEYS\x01\xc3\xa4\x02", b"a\x01" + b"b" * 32_000 + b"\x02"]),
    born_timestamp_ms=TIMES_MS,
    born_host=HOSTS,
    store_host=HOSTS,
    system_flag=st.sampled_from([0, 1]),
    tags_code=st.integers(-(2**63), 2**63 - 1),
    flag=st.integers(-(2**31), 2**31 - 1),
)
HOST = Host(bytes(4), 1)
MESSAGE = EncodedMessage("orders", 0, b"body", b"", 1, HOST, HOST, 0, 0)


def shown(made: EncodedBatch | UnknownQueues) -> object:
    """Return the round in a form that can be compared."""
    if isinstance(made, list):
        assert {type(each) for each in made} == {tuple}
        return made
    records, requests, appended, next_offsets = made
    assert {type(each) for each in requests} <= {DispatchRequest}
    assert {type(each) for each in appended} <= {Appended}
    assert {type(each.properties) for each in requests} <= {EncodedProperties}
    raw = [each.properties.raw for each in requests if isinstance(each.properties, EncodedProperties)]
    return records, [each._replace(properties={}) for each in requests], raw, appended, list(next_offsets.items())


@pytest.mark.skipif(NATIVE is None, reason="no native part")
@given(st.lists(MESSAGES, max_size=8), st.data(), st.integers(0, 2**60), TIMES_MS, st.booleans())
def test_they_are_the_same(
    messages: list[EncodedMessage], data: st.DataObject, at: int, stored_ms: int, crc_property: bool
) -> None:
    """Also where not all next offsets are known: then it is told whose they are."""
    assert NATIVE is not None
    queues = {(each.topic, each.queue_number): None for each in messages}
    known = {queue: QueueOffset(data.draw(st.integers(0, 2**50))) for queue in queues}
    if queues and data.draw(st.integers(0, 4)) == 0:
        for queue in data.draw(st.lists(st.sampled_from(list(queues)), unique=True)):
            del known[queue]
    before = dict(known)
    expected = encode_batch(messages, known, PhysicalOffset(at), stored_ms, crc_property)
    made = native_batch_encoder(NATIVE)(messages, known, PhysicalOffset(at), stored_ms, crc_property)
    assert shown(made) == shown(expected)
    assert known == before, "they are taken over when the append has succeeded"
    unknown = made if isinstance(made, list) else []
    assert set(unknown) == queues.keys() - known.keys()


@pytest.mark.parametrize(
    "changed",
    [
        {"topic": ""},
        {"topic": "t" * 256},
        {"raw_properties": bytes(32_748)},
        {"born_host": Host(b"12345", 1)},
        {"body": "text"},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_what_no_record_can_hold_is_refused(native: Native, changed: dict[str, Any]) -> None:
    message = MESSAGE._replace(**changed)
    known = {(message.topic, 0): QueueOffset(0)}
    with pytest.raises((ValueError, TypeError)):
        native_batch_encoder(native)(
            [MESSAGE._replace(topic=message.topic), message], known, PhysicalOffset(0), 1, True
        )


def test_only_tuples_are_made(native: Native) -> None:
    """Of another type the memory would be misread."""
    with pytest.raises(TypeError, match="no tuple"):
        # what no checked code can pass
        native.BatchEncoder(DispatchRequest, EncodedProperties, EncodedProperties)  # type: ignore[arg-type]
