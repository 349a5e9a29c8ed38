"""Frames, handshakes and epochs: what is sent is what is understood, and nothing else is."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from struct import pack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarry_mq.server.replicas.handshake import Hello, Keys, Welcome, nonce, unpack
from quarry_mq.server.replicas.handshake import pack as packed
from quarry_mq.server.replicas.role import NOTHING_SHARED, Epoch, shared_end
from quarry_mq.server.replicas.wire import (
    BODY_SIZE_MAX,
    Ack,
    Beat,
    FrameReader,
    FrameType,
    WireError,
    frame,
    header,
    pack_ack,
    pack_beat,
    pack_cursor,
    read_ack,
    read_beat,
    read_cursor,
)
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.state.state_log import StateCursor

HELLO = Hello(
    shard="quarry-0",
    replica="b",
    nonce="ab" * 32,
    follows=True,
    lineage="",
    term=3,
    epochs=(Epoch(1, 0, 7), Epoch(3, 500, 8)),
    segment_size=65_536,
    log_end=700,
    run="00" * 16,
    number=5,
    position=600,
)
WELCOME = Welcome(
    replica="a",
    nonce="cd" * 32,
    is_primary=True,
    lineage="x",
    term=3,
    epochs=(Epoch(1, 0, 7),),
    origin="new",
    segment_size=65_536,
    log_begin=0,
    log_end=900,
    cut_to=700,
)

frames = st.lists(st.tuples(st.sampled_from(FrameType), st.integers(0, 1 << 60), st.binary(max_size=300)), max_size=8)


def read(reader: FrameReader, data: bytes) -> list[tuple[FrameType, int, bytes]]:
    return [(each.type, each.term, bytes(each.body)) for each in reader.feed(data)]


@given(frames, st.lists(st.integers(1, 200), max_size=40))
def test_frames_arrive_whole_in_pieces_of_any_size(sent: list[tuple[FrameType, int, bytes]], sizes: list[int]) -> None:
    data = b"".join(frame(*each) for each in sent)
    reader, found = FrameReader(), []
    for size in [*sizes, len(data)]:
        found += read(reader, data[:size])
        data = data[size:]
    assert found == sent


@given(st.binary(max_size=200), st.data())
def test_a_flipped_bit_is_found(body: bytes, data: st.DataObject) -> None:
    spoilt = bytearray(frame(FrameType.LOG, 7, body))
    at = data.draw(st.integers(0, len(spoilt) - 1))
    spoilt[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(WireError, match="checksum"):
        read(FrameReader(), bytes(spoilt))


def test_a_body_before_the_handshake_is_small() -> None:
    large = bytes(70_000)
    with pytest.raises(WireError, match="70000 bytes is too large"):
        read(FrameReader(), header(FrameType.LOG, 1, large))
    reader = FrameReader()
    reader.size_max = BODY_SIZE_MAX
    assert read(reader, frame(FrameType.LOG, 1, large)) == [(FrameType.LOG, 1, large)]


def test_frames_of_a_later_version_are_passed_over() -> None:
    unknown: Any = 99  # a type of frame that this version does not have
    later = header(unknown, 1, b"new") + b"new"
    assert read(FrameReader(), later + frame(FrameType.BYE, 1, b"")) == [(FrameType.BYE, 1, b"")]


def test_what_comes_after_the_frame_that_is_due_is_kept() -> None:
    reader = FrameReader()
    large = frame(FrameType.STATE, 1, bytes(70_000))  # more than fits before the handshake is over
    proof, ack = frame(FrameType.PROOF, 1, b"m"), frame(FrameType.ACK, 1, b"a")
    assert [each.type for each in reader.feed(proof + ack + large, is_one_due=True)] == [FrameType.PROOF]
    reader.size_max = BODY_SIZE_MAX
    assert [each[0] for each in read(reader, b"")] == [FrameType.ACK, FrameType.STATE]


def test_fixed_bodies_come_back_and_short_ones_are_refused() -> None:
    cursor = StateCursor(bytes(range(16)), 5, PhysicalOffset(-1))
    beat = Beat(9, cursor, PhysicalOffset(1), PhysicalOffset(2), 6)
    ack = Ack(9, PhysicalOffset(1), PhysicalOffset(2), 3, PhysicalOffset(4))
    assert read_beat(memoryview(pack_beat(beat))) == beat
    assert read_ack(memoryview(pack_ack(ack))) == ack
    found, rest = read_cursor(memoryview(pack_cursor(cursor) + b"rest"))
    assert (found, bytes(rest)) == (cursor, b"rest")
    for reading, body in ((read_beat, pack_beat(beat)), (read_ack, pack_ack(ack)), (read_cursor, pack_cursor(cursor))):
        with pytest.raises(WireError, match="too short"):
            reading(memoryview(body[:-1]))


def test_the_bytes_of_version_1_stay() -> None:
    assert frame(FrameType.ACK, 2, pack("> 5q", 1, 2, 3, 4, 5)).hex() == (
        "000000280700000031647518"
        "bc684ed4"
        "0000000000000002"
        "00000000000000010000000000000002000000000000000300000000000000040000000000000005"
    )


def test_a_handshake_comes_back() -> None:
    assert unpack(Hello, packed(HELLO)) == HELLO
    assert unpack(Welcome, packed(WELCOME)) == WELCOME


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "cannot be read"),
        (b"[]", "cannot be read"),
        (b"{}", "version None"),
        (packed(HELLO).replace(b'"version": 1', b'"version": 2'), "version 2 of the protocol is not supported"),
        (packed(HELLO).replace(b'"term": 3', b'"term": "3"'), "term is '3'"),
        (packed(HELLO).replace(b'"term": 3, ', b""), "'term'"),
        (packed(HELLO).replace(b"[1, 0, 7]", b"[1]"), "cannot be read"),
        (packed(HELLO).replace(b"[1, 0, 7]", b"[1e999, 0, 7]"), "cannot be read"),
        (b"[" * 60_000, "cannot be read"),
        (packed(replace(HELLO, nonce="short")), "no nonce"),
    ],
)
def test_what_is_no_handshake_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(WireError, match=problem):
        unpack(Hello, data)


def test_fields_of_a_later_version_are_passed_over() -> None:
    assert unpack(Hello, packed(HELLO)[:-1] + b', "more": 1}') == HELLO


def test_only_the_key_makes_a_proof_and_no_proof_serves_twice() -> None:
    old, new = Keys([b"old"]), Keys([b"new", b"old"])
    hello, welcome = packed(HELLO), packed(WELCOME)
    new.check_welcome(old.sign_welcome(hello, welcome), hello, welcome)
    with pytest.raises(WireError, match="does not have the key"):
        old.check_welcome(new.sign_welcome(hello, welcome), hello, welcome)
    with pytest.raises(WireError):
        old.check_proof(old.sign_welcome(hello, welcome), hello, welcome)
    another = packed(replace(WELCOME, nonce=nonce()))
    with pytest.raises(WireError):
        old.check_proof(old.sign_proof(hello, welcome), hello, another)
    with pytest.raises(WireError):
        old.check_welcome(b"", hello, welcome)


class Replica:
    """A log in which each record is the term and the primary that wrote it."""

    def __init__(self) -> None:
        self.log: list[tuple[int, int]] = []
        self.epochs: list[Epoch] = []


@pytest.mark.parametrize("seed", range(60))
def test_logs_are_equal_up_to_where_they_are_said_to_be(seed: int) -> None:
    """A random history of promotions, writes and copies: what `shared_end` says is the common beginning, not less."""
    chance = Random(seed)
    replicas = [Replica() for _ in range(3)]
    replicas[0].epochs = [Epoch(1, 0, 7)]
    term, primary = 1, 0
    for _ in range(60):
        step = chance.randrange(4)
        if step == 0:
            primary = chance.randrange(3)
            if not replicas[primary].epochs:
                continue
            term += 1
            leader = replicas[primary]
            end = len(leader.log)
            leader.epochs = [each for each in leader.epochs if each.start < end or each.start == 0 == end]
            leader.epochs.append(Epoch(term, end, 0))
        elif step == 1:
            leader = replicas[primary]
            if leader.epochs and leader.epochs[-1].term == term:
                leader.log += [(term, chance.randrange(1 << 30)) for _ in range(chance.randrange(5))]
        else:
            leader, copy = replicas[primary], replicas[chance.randrange(3)]
            if copy is leader or not leader.epochs or leader.epochs[-1].term != term:
                continue
            shared = shared_end(leader.epochs, len(leader.log), copy.epochs, len(copy.log))
            kept = max(shared, 0)
            assert copy.log[:kept] == leader.log[:kept]
            if shared != NOTHING_SHARED and kept < min(len(copy.log), len(leader.log)):
                assert copy.log[kept] != leader.log[kept], "more is equal"
            copy.log = leader.log[: max(kept, chance.randrange(len(leader.log) + 1))]
            copy.epochs = list(leader.epochs)
