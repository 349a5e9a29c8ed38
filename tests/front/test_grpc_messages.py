"""gRPC messages: compression and its bounds, timeouts, status messages, and messages cut anywhere."""

from __future__ import annotations

import gzip
import math
import tracemalloc
import zlib
from contextlib import suppress
from itertools import pairwise
from typing import Final
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarry_mq.protocol.codes import GrpcStatus
from quarry_mq.protocol.h2.frames import FRAME_SIZE_MAX
from quarry_mq.protocol.h2.grpc_messages import (
    MESSAGE_PREFIX,
    BadMessage,
    MessageReader,
    pack_messages,
    plain_body,
    timeout_s,
    trailers,
    with_prefix,
)
from quarry_mq.protocol.h2.header_blocks import split_block

SIZE_MAX: Final = 10_000


@given(st.binary(max_size=SIZE_MAX))
def test_gzip_round_trip(body: bytes) -> None:
    assert plain_body(gzip.compress(body), 1, b"gzip", SIZE_MAX) == body
    assert plain_body(body, 0, b"gzip", SIZE_MAX) == body


def status_of(body: bytes, flag: int = 1, encoding: bytes = b"gzip") -> GrpcStatus:
    with pytest.raises(BadMessage) as caught:
        plain_body(body, flag, encoding, SIZE_MAX)
    return caught.value.status


def test_a_gzip_bomb_is_not_blown_up() -> None:
    bomb = gzip.compress(bytes(64 * 1024 * 1024))
    tracemalloc.start()
    assert status_of(bomb) == GrpcStatus.RESOURCE_EXHAUSTED
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < len(bomb) + 100 * SIZE_MAX


def test_exactly_the_largest_message() -> None:
    assert len(plain_body(gzip.compress(bytes(SIZE_MAX)), 1, b"gzip", SIZE_MAX)) == SIZE_MAX
    assert status_of(gzip.compress(bytes(SIZE_MAX + 1))) == GrpcStatus.RESOURCE_EXHAUSTED


def test_what_is_no_gzip() -> None:
    whole = gzip.compress(b"hello" * 100)
    for cut in range(len(whole)):
        assert status_of(whole[:cut]) == GrpcStatus.INTERNAL
    assert status_of(whole + b"x") == GrpcStatus.INTERNAL
    assert status_of(whole + whole) == GrpcStatus.INTERNAL
    assert status_of(zlib.compress(b"hello")) == GrpcStatus.INTERNAL


@pytest.mark.parametrize("encoding", [b"", b"identity"])
@pytest.mark.parametrize("flag", [1, 2, 255])
def test_a_flag_without_an_encoding(encoding: bytes, flag: int) -> None:
    assert status_of(b"x", flag, encoding) == GrpcStatus.INTERNAL


def test_other_encodings_and_flags() -> None:
    assert status_of(b"x", 1, b"snappy") == GrpcStatus.UNIMPLEMENTED
    assert status_of(b"x", 1, b"\xff\xfe") == GrpcStatus.UNIMPLEMENTED
    assert status_of(gzip.compress(b"x"), 2) == GrpcStatus.INTERNAL


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"1H", 3600),
        (b"2M", 120),
        (b"3S", 3),
        (b"4m", 0.004),
        (b"5u", 5e-6),
        (b"6n", 6e-9),
        (b"99999999H", 359999996400),
    ],
)
def test_timeouts(value: bytes, seconds: float) -> None:
    assert math.isclose(timeout_s(value), seconds)


@pytest.mark.parametrize(
    "value",
    [b"", b"S", b"1", b"1s", b"-1S", b"1.5S", b" 1S", b"1S ", b"123456789S", "\u0661S".encode(), b"1_0S", b"0x1S"],
)
def test_what_is_no_timeout(value: bytes) -> None:
    with pytest.raises(BadMessage) as caught:
        timeout_s(value)
    assert caught.value.status == GrpcStatus.INTERNAL


@given(st.binary(max_size=12))
def test_any_timeout_is_a_number_or_refused(value: bytes) -> None:
    with suppress(BadMessage):
        assert timeout_s(value) >= 0


@given(st.sampled_from(GrpcStatus), st.text(max_size=2_000))
def test_status_messages_come_back_or_are_cut(status: GrpcStatus, message: str) -> None:
    message = message.encode("utf-8", "replace").decode()
    fields = {each.name: bytes(each.value) for each in split_block(trailers(status, message), 8 * 1024)}
    assert int(fields[b"grpc-status"]) == status
    encoded = fields.get(b"grpc-message", b"")
    assert all(0x20 <= byte < 0x7F for byte in encoded)
    assert len(encoded) <= 1_024
    seen = unquote(encoded.decode(), errors="strict" if len(encoded) < 1_000 else "replace").rstrip("\ufffd")
    assert message.startswith(seen)
    if len(message.encode()) * 3 <= 1_024:
        assert seen == message.rstrip("\ufffd")


@pytest.mark.parametrize("shift", range(4))
def test_a_long_status_message_is_cut_after_a_whole_code(shift: int) -> None:
    (_, message) = split_block(trailers(GrpcStatus.UNKNOWN, "a" * shift + "\u00e9" * 900), 8 * 1024)
    assert 1_020 <= len(message.value) <= 1_024
    assert unquote(message.value.decode()).rstrip("\ufffd").strip("a") == "\u00e9" * ((len(message.value) - shift) // 6)


@given(st.lists(st.integers(0, 20_000), max_size=12))
def test_messages_are_packed_into_few_pieces_of_at_most_a_frame_unless_one_is_larger(sizes: list[int]) -> None:
    messages = [bytes([number]) * size for number, size in enumerate(sizes)]
    packed = list(pack_messages(messages))
    assert b"".join(packed) == b"".join(map(with_prefix, messages))
    whole = [with_prefix(each) for each in messages]
    assert all(len(piece) <= FRAME_SIZE_MAX or piece in whole for piece in packed)
    assert all(len(one) + len(other) > FRAME_SIZE_MAX for one, other in zip(packed[::2], packed[1::2], strict=False))


bodies = st.lists(st.binary(max_size=300), max_size=6)


@given(bodies, st.lists(st.integers(0, 2_000), max_size=12), st.booleans())
def test_messages_cut_anywhere(messages: list[bytes], cuts: list[int], compressed: bool) -> None:
    if compressed:
        packed = [gzip.compress(each) for each in messages]
        stream = b"".join(MESSAGE_PREFIX.pack(1, len(each)) + each for each in packed)
    else:
        stream = b"".join(map(with_prefix, messages))
    reader = MessageReader(b"gzip" if compressed else b"", SIZE_MAX)
    found = []
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    for start, end in pairwise(places):
        reader.feed(memoryview(stream)[start:end])
        while (message := reader.take()) is not None:
            found.append(message)
    assert found == messages
    assert reader.size == 0
    assert reader.total_size == len(stream)


def test_a_message_byte_by_byte() -> None:
    reader = MessageReader(b"", SIZE_MAX)
    stream = with_prefix(b"one") + with_prefix(b"") + with_prefix(b"three")
    found = []
    for byte in stream:
        reader.feed(bytes([byte]))
        if (message := reader.take()) is not None:
            found.append(message)
    assert found == [b"one", b"", b"three"]


def test_a_message_too_large_is_refused_by_its_prefix() -> None:
    reader = MessageReader(b"", SIZE_MAX)
    reader.feed(MESSAGE_PREFIX.pack(0, SIZE_MAX))
    with pytest.raises(BadMessage) as caught:
        MessageReader(b"", SIZE_MAX).feed(MESSAGE_PREFIX.pack(0, SIZE_MAX + 1))
    assert caught.value.status == GrpcStatus.RESOURCE_EXHAUSTED


def test_the_second_prefix_is_looked_at_when_its_turn_comes() -> None:
    reader = MessageReader(b"", SIZE_MAX)
    reader.feed(with_prefix(b"one") + MESSAGE_PREFIX.pack(0, SIZE_MAX + 1))
    assert reader.take() == b"one"
    with pytest.raises(BadMessage):
        reader.take()


def test_what_nobody_wants_is_counted_and_not_kept() -> None:
    reader = MessageReader(b"", SIZE_MAX)
    reader.skip(b"x" * 1_000_000)
    assert (reader.size, reader.total_size) == (0, 1_000_000)
