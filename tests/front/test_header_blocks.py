"""Header blocks: our reader against the hpack library, broken blocks, and when a peer is taken to keep no table."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

import hpack
import pytest
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hypothesis import given
from hypothesis import strategies as st

from quarry_mq.protocol.h2.frames import ErrorCode, PeerError
from quarry_mq.protocol.h2.header_blocks import (
    FIELDS_MAX,
    STATIC_TABLE,
    BlockDecoder,
    decoded,
    encode_fields,
    size_of,
    split_block,
    text_of,
)
from tests.front.engine import SIZE_0

SIZE_MAX: Final = 64 * 1024
HUFFMAN: Final = hpack.huffman.HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)


def integer(value: int, prefix_bits: int, first: int) -> bytes:
    return bytes([first | (head := hpack.hpack.encode_integer(value, prefix_bits))[0]]) + bytes(head[1:])


def string(text: bytes, huffman: bool) -> bytes:
    coded = HUFFMAN.encode(text) if huffman else text
    return integer(len(coded), 7, 0x80 if huffman else 0) + coded


texts = st.binary(max_size=200) | st.text(max_size=40).map(str.encode)
literal_kinds = st.sampled_from([(0x40, 6), (0x00, 4), (0x10, 4)])
"""With indexing, without, never."""


@st.composite
def encoded_fields(draw: st.DrawFn) -> bytes:
    """One field in any form that needs no dynamic table."""
    if draw(st.booleans()):
        return integer(draw(st.integers(1, len(STATIC_TABLE))), 7, 0x80)
    first, bits = draw(literal_kinds)
    if draw(st.booleans()):
        name = integer(draw(st.integers(1, len(STATIC_TABLE))), bits, first)
    else:
        name = bytes([first]) + string(draw(texts), draw(st.booleans()))
    return name + string(draw(texts), draw(st.booleans()))


blocks = st.lists(encoded_fields(), max_size=12).map(b"".join)


def oracle(block: bytes) -> list[tuple[bytes, bytes]]:
    decoder = hpack.Decoder(SIZE_MAX)
    decoder.max_allowed_table_size = decoder.header_table_size = 0
    return [(bytes(name), bytes(value)) for name, value in decoder.decode(block, raw=True)]


def plain(block: bytes) -> list[tuple[bytes, bytes]]:
    return [(each.name, decoded(each.value)) for each in split_block(block, SIZE_MAX)]


@given(st.integers(0, 3), blocks)
def test_reads_what_the_library_reads(size_updates: int, block: bytes) -> None:
    block = SIZE_0 * size_updates + block
    assert plain(block) == oracle(block)


@given(blocks)
def test_knows_where_each_field_lies(block: bytes) -> None:
    start = 0
    for field in split_block(block, SIZE_MAX):
        raw = block[start : field.end]
        assert raw.startswith(field.raw_name)
        assert plain(raw) == [(field.name, decoded(field.value))]
        start = field.end
    assert start == len(block)


@pytest.mark.parametrize("index", range(1, len(STATIC_TABLE) + 1))
def test_every_entry_of_the_static_table(index: int) -> None:
    assert plain(integer(index, 7, 0x80)) == [STATIC_TABLE[index - 1]]
    for first, bits in ((0x40, 6), (0x00, 4), (0x10, 4)):
        assert plain(integer(index, bits, first) + string(b"v", False)) == [(STATIC_TABLE[index - 1][0], b"v")]


@given(blocks.filter(bool), st.data())
def test_a_block_cut_short_is_an_error_or_its_first_fields(block: bytes, data: st.DataObject) -> None:
    fields = split_block(block, SIZE_MAX)
    cut = data.draw(st.integers(0, len(block) - 1))
    if cut in {0, *(each.end for each in fields)}:
        assert split_block(block[:cut], SIZE_MAX) == [each for each in fields if each.end <= cut]
    else:
        with pytest.raises(PeerError) as caught:
            split_block(block[:cut], SIZE_MAX)
        assert caught.value.code == ErrorCode.COMPRESSION_ERROR


def test_every_cut_of_a_block_with_every_form() -> None:
    block = b"".join(
        first + name + string(b"a value", huffman)
        for first, name in [(b"\x40", string(b"n", False)), (b"\x00", string(b"name", True)), (b"\x1f\x20", b"")]
        for huffman in (False, True)
    )
    ends = {0, *(each.end for each in split_block(block, SIZE_MAX))}
    for cut in set(range(len(block))) - ends:
        with pytest.raises(PeerError):
            split_block(block[:cut], SIZE_MAX)


@given(st.binary(max_size=300))
def test_any_bytes_are_fields_or_a_peer_error(block: bytes) -> None:
    for read in (split_block, lambda each, size_max: BlockDecoder(size_max).decode(each)):
        with suppress(PeerError):
            for field in read(block, SIZE_MAX):
                text_of(field.value)


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",  # index 0
        integer(len(STATIC_TABLE) + 1, 7, 0x80),
        integer(len(STATIC_TABLE) + 1, 4, 0x00) + b"\0",
        b"\x82\x20",  # a size update behind a field
        b"\x3f\xe1\x1f",  # to 4096
        b"\xff" + b"\xff" * 20,
        b"\xff" + b"\x80" * 20 + b"\x00",
        b"\x00\x01a\x7f" + b"\xff" * 4 + b"\x7f",
    ],
)
def test_what_is_no_block(block: bytes) -> None:
    with pytest.raises(PeerError) as caught:
        split_block(block, SIZE_MAX)
    assert caught.value.code == ErrorCode.COMPRESSION_ERROR


@pytest.mark.parametrize("value", [b"\x00\x00\x00\x00", b"\xff\xff\xff\xff", b"\x1f\xff"])
def test_a_value_that_is_no_huffman_code_has_no_text(value: bytes) -> None:
    (field,) = split_block(b"\x00\x01a" + bytes([0x80 | len(value)]) + value, SIZE_MAX)
    try:
        oracle(b"\x00\x01a" + bytes([0x80 | len(value)]) + value)
    except hpack.HPACKError:
        assert text_of(field.value) is None
    else:
        assert text_of(field.value) is None or isinstance(text_of(field.value), str)


def test_equal_bytes_coded_and_plain_have_different_texts() -> None:
    coded = HUFFMAN.encode(b"a-value")
    as_plain, as_coded = split_block(
        b"\x00\x01a" + bytes([len(coded)]) + coded + b"\x00\x01b" + bytes([0x80 | len(coded)]) + coded, SIZE_MAX
    )
    for _ in range(2):
        assert text_of(as_coded.value) == "a-value"
        assert text_of(as_plain.value) == coded.decode("utf-8", "replace")


@given(st.lists(st.tuples(texts, texts), max_size=8))
def test_what_we_encode_is_read_back(fields: list[tuple[bytes, bytes]]) -> None:
    assert plain(encode_fields(fields)) == fields == oracle(encode_fields(fields))


@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 254, 255, 16_383, 16_510, 16_511, 40_000])
def test_lengths_of_what_we_encode(size: int) -> None:
    fields = [(b"n", b"v" * size)]
    assert oracle(encode_fields(fields)) == fields


# -- bounds

decoders: Final[list[Callable[[bytes], object]]] = [
    lambda block: split_block(block, SIZE_MAX),
    BlockDecoder(SIZE_MAX).decode,
]


@pytest.mark.parametrize("number", [0, 1])
def test_too_many_fields_and_too_many_bytes_are_refused(number: int) -> None:
    decode = decoders[number]
    decode(b"\x82" * FIELDS_MAX)
    for bomb in (
        b"\x82" * (FIELDS_MAX + 1),
        b"\x00\x01a\x00" * (FIELDS_MAX + 1),
        encode_fields([(b"n", b"v" * SIZE_MAX)]),
    ):
        with pytest.raises(PeerError) as caught:
            decode(bomb)
        assert caught.value.code == ErrorCode.ENHANCE_YOUR_CALM


def test_a_reference_to_a_large_entry_counts_each_time() -> None:
    decoder = BlockDecoder(SIZE_MAX)
    decoder.decode(b"\x40" + string(b"n", False) + string(b"v" * 3900, False))
    with pytest.raises(PeerError) as caught:
        decoder.decode(b"\xbe" * 500)
    assert caught.value.code == ErrorCode.ENHANCE_YOUR_CALM


@given(blocks)
def test_size_is_that_of_the_rfc(block: bytes) -> None:
    fields = BlockDecoder(SIZE_MAX).decode(block)
    assert size_of(fields) == sum(len(name) + len(value) + 32 for name, value in oracle(block))


# -- with and without a table


def test_stateless_only_after_acknowledgement_and_size_0() -> None:
    for acknowledged in (False, True):
        for size_0 in (False, True):
            decoder = BlockDecoder(SIZE_MAX)
            if acknowledged:
                decoder.settings_acknowledged()
            decoder.decode((SIZE_0 if size_0 else b"") + b"\x82")
            assert decoder.is_stateless is (acknowledged and size_0)


def test_a_table_of_size_0_may_grow_again_until_it_is_acknowledged() -> None:
    decoder = BlockDecoder(SIZE_MAX)
    decoder.decode(SIZE_0 + b"\x3f\xe1\x1f" + b"\x40\x01a\x01b")
    decoder.settings_acknowledged()
    assert [each[:2] for each in decoder.decode(b"\xbe")] == [(b"a", b"b")]
    assert decoder.is_stateless is False
    decoder.decode(SIZE_0 + b"\x82")
    with pytest.raises(PeerError):
        decoder.decode(b"\xbe")


@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=10), st.data())
def test_a_peer_may_switch_at_any_block(fields: list[tuple[bytes, bytes]], data: st.DataObject) -> None:
    encoder, decoder = hpack.Encoder(), BlockDecoder(SIZE_MAX)
    switch = data.draw(st.integers(0, 5))
    decoder.settings_acknowledged()
    for number in range(6):
        if number == switch:
            encoder.header_table_size = 0
        block = encoder.encode(fields, huffman=data.draw(st.booleans()))
        assert [(each.name, decoded(each.value)) for each in decoder.decode(block)] == fields
        assert decoder.is_stateless is (number >= switch)
