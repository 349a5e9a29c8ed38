"""Compressed bodies made plain: every method, whatever the bytes are, and never more than is allowed."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from typing import Final

import lz4.frame
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarry_mq.protocol.messages import bodies as compressed_bodies
from quarry_mq.protocol.messages.bodies import (
    compression_name,
    inflated,
    plain_body,
    uncompressed,
    uncompressed_parts,
)
from quarry_mq.protocol.messages.system_flag import COMPRESSED, Compression
from tests.record import zstd

METHODS: Final[list[tuple[str, Compression, Callable[[bytes], bytes]]]] = [
    ("zlib", Compression.ZLIB, zlib.compress),
    ("gzip", Compression.ZLIB, gzip.compress),
    ("lz4", Compression.LZ4, lz4.frame.compress),
    ("zstd", Compression.ZSTD, zstd.compress),
]
every_method = pytest.mark.parametrize(
    ("name", "method", "compress"), METHODS, ids=[name for name, _, _ in METHODS]
)  # fmt: skip


@every_method
def test_bodies_are_as_they_were(name: str, method: Compression, compress: Callable[[bytes], bytes]) -> None:
    for body in (b"", b"a", b"hello " * 20_000, bytes(range(256)) * 9):
        packed = compress(body)
        assert plain_body(COMPRESSED | method, packed) == body
        assert compression_name(COMPRESSED | method, packed) == name
        assert b"".join(uncompressed_parts(packed, method, 77)) == body
        assert uncompressed(packed, method, len(body)) == body, "as many as are allowed"
        if body:
            assert uncompressed(packed, method, len(body) - 1) is None, "one more than is allowed"


@every_method
def test_what_is_not_whole_is_none(name: str, method: Compression, compress: Callable[[bytes], bytes]) -> None:
    packed = compress(b"body " * 30)
    for broken in (packed[:-1], packed[:5], packed + b"x", b"\0" + packed, f"no {name}".encode()):
        assert plain_body(COMPRESSED | method, broken) is None


@every_method
@settings(max_examples=200)
@given(data=st.data())
def test_whatever_the_bytes_are_they_are_a_body_or_none(
    name: str, method: Compression, compress: Callable[[bytes], bytes], data: st.DataObject
) -> None:
    packed = bytearray(compress(b"hello " * 50))
    for at in data.draw(st.lists(st.integers(0, len(packed) - 1), max_size=4)):
        packed[at] = data.draw(st.integers(0, 255))
    found = plain_body(COMPRESSED | method, bytes(packed), 1_000)
    assert found is None or len(found) <= 1_000, name
    assert sum(map(len, uncompressed_parts(bytes(packed), method, 64))) <= compressed_bodies.PLAIN_SIZE_MAX


@every_method
def test_a_bomb_is_unpacked_as_far_as_allowed(
    name: str, method: Compression, compress: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = compress(bytes(50_000_000))
    assert len(packed) < 300_000, name
    made = 0

    def counted(body: bytes, size: int) -> bytes:
        nonlocal made
        part = original.decompress(body, size)
        made += len(part)
        return part

    original = compressed_bodies._UNPACKERS[method]()
    watched = type("Watched", (), {"decompress": staticmethod(counted), "eof": False, "unused_data": b""})
    monkeypatch.setitem(compressed_bodies._UNPACKERS, method, watched)
    assert uncompressed(packed, method, 1_000_000) is None
    assert made <= 2_000_000
    found = inflated(packed, 10, method)
    assert found is None or len(found.plain) == 10


def test_a_frame_that_asks_for_too_large_a_window_is_none() -> None:
    compressor = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 27})
    packed = compressor.compress(b"small") + compressor.flush()
    assert plain_body(COMPRESSED | Compression.ZSTD, packed) is None


def test_what_is_not_compressed_or_in_no_known_way() -> None:
    assert plain_body(0, b"body") == b"body"
    assert plain_body(Compression.LZ4, b"body") == b"body", "the method says nothing without the bit"
    assert plain_body(COMPRESSED, b"") == b""
    assert plain_body(COMPRESSED, zlib.compress(b"body")) == b"body", "no method is ZLIB, too"
    assert compression_name(COMPRESSED, zlib.compress(b"body")) == "zlib"
    assert compression_name(0, b"body") is None
    for unknown in (0x400, 0x500, 0x600, 0x700):
        assert plain_body(COMPRESSED | unknown, zlib.compress(b"body")) is None
        assert compression_name(COMPRESSED | unknown, b"") == "unknown"
