"""Records made many at once, natively and in Python."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.message import EncodedMessage, Host
from store.native import NATIVE, Native
from store.offsets import PhysicalOffset, QueueOffset
from store.record.bulk import encode_records

ADDRESSES = st.one_of(st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16))
HOSTS = st.builds(Host, ADDRESSES, st.integers(0, 65_535))
TIMES_MS = st.integers(0, 2**47)
MESSAGES = st.builds(
    EncodedMessage,
    topic=st.sampled_from(["orders", "t", "ö" * 60, "t" * 127, "t" * 128, "t" * 255]),
    queue_number=st.integers(0, 2**31 - 1),
    body=st.binary(max_size=100),
    raw_properties=st.sampled_from([b"", b"a\x01b\x02", b"KEYS\x01\xc3\xa4\x02", b"a\x01" + b"b" * 32_000 + b"\x02"]),
    born_timestamp_ms=TIMES_MS,
    born_host=HOSTS,
    store_host=HOSTS,
    system_flag=st.sampled_from([0, 1]),
    tags_code=st.just(0),
)


@pytest.mark.skipif(NATIVE is None, reason="no native part")
@given(
    st.lists(st.tuples(MESSAGES, st.integers(0, 2**50)), min_size=1, max_size=5),
    st.integers(0, 2**60),
    TIMES_MS,
    st.booleans(),
)
def test_they_are_the_same_bytes(
    messages: list[tuple[EncodedMessage, int]], at: int, stored_ms: int, crc_property: bool
) -> None:
    assert NATIVE is not None
    encoded = [message for message, _ in messages]
    offsets = [QueueOffset(offset) for _, offset in messages]
    place = PhysicalOffset(at)
    expected = encode_records(encoded, offsets, place, stored_ms, crc_property)
    assert NATIVE.encode_records(encoded, offsets, place, stored_ms, crc_property) == expected


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
    host = Host(bytes(4), 1)
    message = EncodedMessage("orders", 0, b"body", b"", 1, host, host, 0, 0)._replace(**changed)
    with pytest.raises((ValueError, TypeError)):
        native.encode_records([message], [QueueOffset(0)], PhysicalOffset(0), 1, True)
    with pytest.raises(ValueError, match="queue offset"):
        native.encode_records([message], [], PhysicalOffset(0), 1, True)
