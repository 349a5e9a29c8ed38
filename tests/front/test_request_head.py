"""Request heads: a reader that has learned must say of any block what a fresh one says."""

from __future__ import annotations

import sys
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarry_mq.protocol.h2.frames import PeerError
from quarry_mq.protocol.h2.header_blocks import BlockDecoder, decoded, encode_fields
from quarry_mq.server.front.h2.request_head import (
    FAST_BLOCK_SIZE_MAX,
    FIELDS_KNOWN_MAX,
    RUNS_MAX,
    HeadReader,
    Malformed,
    NotGrpc,
    TooLarge,
    check_trailers,
)
from tests.front.engine import BIDI, ECHO, SIZE_0, request_fields
from tests.front.test_header_blocks import encoded_fields, string

SIZE_MAX: Final = 16 * 1024


def stateless() -> BlockDecoder:
    decoder = BlockDecoder(4 * SIZE_MAX)
    decoder.settings_acknowledged()
    decoder.decode(SIZE_0 + b"\x82")
    assert decoder.is_stateless
    return decoder


def reader() -> HeadReader:
    return HeadReader(stateless(), SIZE_MAX)


Answer = tuple[str, object]


def answer(heads: HeadReader, block: bytes) -> Answer:
    """Return the result of a reader for a block, in a form that can be compared."""
    try:
        path, fields = heads.read(block)
    except (Malformed, TooLarge) as refusal:
        return type(refusal).__name__, None
    except NotGrpc as refusal:
        return "NotGrpc", refusal.http_status
    except PeerError as error:
        return "PeerError", error.code
    plain = {}
    for name, value in fields.items():
        try:
            plain[name] = decoded(value)
        except PeerError:
            plain[name] = b"no Huffman code: " + value
    return "head", (path, plain)


NAMES: Final = [
    b":method", b":scheme", b":path", b":authority", b"content-type", b"te", b"content-length", b"grpc-timeout",
    b"x-request", b"X-Upper", b"connection", b"", b"a b", b"trace-bin", b":unknown", b"n" * 70, b"n" * 127,
]  # fmt: skip
VALUES: Final = [
    b"POST", b"GET", b"http", ECHO.encode(), BIDI.encode(), b"test", b"application/grpc", b"application/grpc+proto",
    b"text/html", b"trailers", b"gzip", b"5", b"five", b"", b"v" * 126, b"v" * 127, b"v" * 300, b"a\nb", b" a ",
]  # fmt: skip


@st.composite
def literal(draw: st.DrawFn, name: bytes | None = None, value: bytes | None = None) -> bytes:
    """A field as a literal of any kind, names and values plain or Huffman coded."""
    name = draw(st.sampled_from(NAMES)) if name is None else name
    value = draw(st.sampled_from(VALUES)) if value is None else value
    first = draw(st.sampled_from([0x00, 0x00, 0x10, 0x40]))
    return bytes([first]) + string(name, draw(st.booleans())) + string(value, draw(st.booleans()))


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A block that is a sound request, but for what is added, dropped or swapped."""
    path = draw(st.sampled_from([ECHO, BIDI]))
    fields = [draw(literal(name, value)) for name, value in request_fields(path)]
    fields += draw(st.lists(literal() | literal(b"content-type") | encoded_fields(), max_size=4))
    if draw(st.integers(0, 3)) == 0:
        fields = draw(st.permutations(fields))
    if draw(st.integers(0, 3)) == 0:
        del fields[draw(st.integers(0, len(fields) - 1))]
    return draw(st.sampled_from([b"", b"", SIZE_0, SIZE_0 * 2])) + b"".join(fields)


@settings(max_examples=300)
@given(st.lists(requests(), min_size=1, max_size=4), st.lists(st.integers(0, 3), min_size=4, max_size=14), st.data())
def test_what_was_learned_changes_no_answer(pool: list[bytes], order: list[int], data: st.DataObject) -> None:
    learned = reader()
    for number in order:
        block = pool[number % len(pool)]
        if data.draw(st.integers(0, 3)) == 0:  # the end of one behind the start of another, or nothing
            block = block[: data.draw(st.integers(0, len(block)))] + data.draw(st.sampled_from(pool))[-20:]
        said = answer(learned, block)
        assert said == answer(reader(), block), block
        if said[0] == "PeerError":
            break


def sound(extra: list[tuple[bytes, bytes]]) -> bytes:
    return encode_fields(request_fields(ECHO, extra))


def taught() -> HeadReader:
    """A reader that knows requests with these fields by heart."""
    heads = reader()
    for number in range(3):
        heads.read(sound([(b"x-number", b"%d" % number), (b"x-last", b"same")]))
    return heads


@pytest.mark.parametrize(
    "tail",
    [
        [(b"Upper", b"v")],
        [(b"connection", b"close")],
        [(b"te", b"gzip")],
        [(b"content-length", b"many")],
        [(b":path", b"/other")],
        [(b":status", b"200")],
        [(b"", b"v")],
        [(b"content-type", b"text/html")],
        [(b"x-number", b"1"), (b"bad name", b"v")],
    ],
)
def test_a_bad_field_after_a_known_run_is_seen(tail: list[tuple[bytes, bytes]]) -> None:
    assert answer(taught(), sound(tail)) == answer(reader(), sound(tail))
    assert answer(taught(), sound(tail))[0] in ("Malformed", "NotGrpc")


@pytest.mark.parametrize("values", [(b"text/html", b"application/grpc"), (b"application/grpc", b"text/html")])
def test_all_content_types_must_be_grpc(values: tuple[bytes, bytes]) -> None:
    """A damaged head is refused after a sound one: otherwise the cached one would let it pass."""
    fields = [each for each in request_fields(ECHO) if each[0] != b"content-type"]
    block = encode_fields(fields + [(b"content-type", value) for value in values])
    for _ in range(3):
        assert answer(reader(), block) == ("NotGrpc", 415)


def test_a_block_cut_after_a_known_run() -> None:
    block = sound([(b"x-number", b"7"), (b"x-last", b"same")])
    for cut in range(len(block)):
        assert answer(taught(), block[:cut]) == answer(reader(), block[:cut]), cut


def remembered_size(heads: HeadReader) -> int:
    """Bytes of what a reader remembers of its peer."""
    size = 0
    for memory in (heads._runs, heads._run_of_path, heads._last_block_of_path, heads._plain_names, heads._sound_fields):
        size += sum(sys.getsizeof(key) + sys.getsizeof(value) for key, value in memory.items())
    for _, fields in heads._runs.values():
        size += sum(sys.getsizeof(name) + sys.getsizeof(value) for name, value in fields.items())
    return size


def test_what_is_remembered_is_bounded() -> None:
    heads = reader()
    for number in range(2_000):
        path = f"/service/{number % 500}"
        fields = [(b"x-%d-%d" % (number, each), b"v" * 40) for each in range(20)]
        heads.read(encode_fields(request_fields(path, [(b"content-length", b"%d" % number), *fields])))
    assert len(heads._runs) <= RUNS_MAX
    assert len(heads._last_block_of_path) <= RUNS_MAX
    assert len(heads._plain_names) <= FIELDS_KNOWN_MAX
    assert len(heads._sound_fields) <= FIELDS_KNOWN_MAX
    assert remembered_size(heads) < 200 * 1024


def test_large_blocks_are_not_learned_from() -> None:
    heads = reader()
    for _ in range(3):
        heads.read(sound([(b"x", b"v" * FAST_BLOCK_SIZE_MAX)]))
    assert remembered_size(heads) == 0


@pytest.mark.parametrize(
    ("fields", "sound"),
    [
        ([(b"x", b"v")], True),
        ([], True),
        ([(b":path", b"/")], False),
        ([(b"Upper", b"v")], False),
        ([(b"connection", b"close")], False),
    ],
)
def test_trailers(fields: list[tuple[bytes, bytes]], sound: bool) -> None:
    decoder = stateless()
    if sound:
        check_trailers(decoder.decode(encode_fields(fields)))
    else:
        with pytest.raises(Malformed):
            check_trailers(decoder.decode(encode_fields(fields)))
