"""Filters by the text of a body, and the begins of pages."""

from __future__ import annotations

import asyncio
import gzip
import zlib

import lz4.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarry_mq.protocol.clock import SystemClock
from quarry_mq.protocol.messages import bodies as compressed_bodies
from quarry_mq.protocol.messages.system_flag import COMPRESSED, Compression
from quarry_mq.server.admin import browsing
from quarry_mq.server.admin.browsing import EVERYTHING, MessageWish, contains, pack_cursor, parse_cursor
from quarry_mq.server.tasks import TimeSlice
from quarry_mq.store.errors import Invalid
from quarry_mq.store.message import Host, Message, PhysicalOffset, QueueOffset
from quarry_mq.store.record import StoredMessage, decode_record, encode_record

HOST = Host(bytes(4), 0)


def stored(body: bytes, system_flag: int = 0) -> StoredMessage:
    message = Message("t", 0, body, {}, 0, HOST, HOST, system_flag=system_flag)
    record = encode_record(message, QueueOffset(0), PhysicalOffset(0), 0, b"")
    found = decode_record(memoryview(record), 0, PhysicalOffset(0))
    assert isinstance(found, StoredMessage)
    return found


def holds(message: StoredMessage, contained: bytes) -> bool:
    return asyncio.run(contains(message, contained, TimeSlice(SystemClock())))


@given(body=st.binary(max_size=60), contained=st.binary(min_size=1, max_size=5), data=st.data())
def test_bytes_are_found_wherever_parts_begin(body: bytes, contained: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(body)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(browsing, "PART_SIZE", data.draw(st.integers(1, 20)))
        for each in (body, body[:at] + contained + body[at:]):
            expected = contained in each
            assert holds(stored(each), contained) is expected
            for compress in (zlib.compress, gzip.compress):
                assert holds(stored(compress(each), COMPRESSED | Compression.ZLIB), contained) is expected
            assert holds(stored(lz4.frame.compress(each), COMPRESSED | Compression.LZ4), contained) is expected


def test_what_cannot_be_uncompressed_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for method in (Compression.LZ4, Compression.ZSTD, 0x700):
        assert not holds(stored(b"needle", COMPRESSED | method), b"needle")
    assert not holds(stored(b"needle", COMPRESSED), b"needle")
    assert holds(stored(zlib.compress(b"needle"), COMPRESSED), b"needle"), "what old clients say stands for zlib"
    monkeypatch.setattr(compressed_bodies, "PLAIN_SIZE_MAX", 1_000)
    assert holds(stored(zlib.compress(bytes(990) + b"needle"), COMPRESSED), b"needle")
    assert not holds(stored(zlib.compress(bytes(1_000) + b"needle"), COMPRESSED), b"needle")


def test_an_empty_filter_wants_everything() -> None:
    for is_sql in (False, True):
        assert MessageWish.of(" ", is_sql=is_sql, contained=b"") is EVERYTHING
    assert MessageWish.of("", is_sql=True, contained=b"x").contained == b"x"
    with pytest.raises(Invalid, match=r"filter\.body_contains: 257 bytes"):
        MessageWish.of("", is_sql=False, contained=bytes(257))


@given(place=st.integers(0, 2**63 - 1), is_ascending=st.booleans(), selected=st.text(max_size=20))
def test_a_cursor_is_read_as_it_was_written(place: int, is_ascending: bool, selected: str) -> None:
    cursor = pack_cursor(PhysicalOffset(place), is_ascending=is_ascending, selected=selected)
    assert parse_cursor(cursor, is_ascending=is_ascending, selected=selected) == place
    with pytest.raises(Invalid, match="cursor: it was made for the other order"):
        parse_cursor(cursor, is_ascending=not is_ascending, selected=selected)


@given(cursor=st.binary(max_size=20) | st.binary(min_size=13, max_size=13).map(lambda rest: b"\x01" + rest))
def test_other_bytes_are_no_cursor(cursor: bytes) -> None:
    """But for one in four billion."""
    with pytest.raises(Invalid, match=r"^cursor: "):
        parse_cursor(cursor, is_ascending=True, selected="t")
