"""Frames of the remoting protocol: what is written is read, in any pieces; what is wrong is named."""

from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarry_mq.protocol.remoting.frames import (
    FRAME_SIZE_MAX,
    HEADER_SIZE_MAX,
    Command,
    Flag,
    Frame,
    FrameMalformed,
    FrameReader,
    Language,
    Serialization,
    read_command,
    write_command,
)

CONSUMERS = Command(38, 7, {"consumerGroup": "G"}, b"{}", language=Language.JAVA)
"""The example of which both forms were read by RocketMQ 5.5.0's own decoder."""
CONSUMERS_BINARY = bytes.fromhex(
    "0000002d01000029002600020100000007000000000000000000000014000d636f6e73756d657247726f75700000000147"
)
CONSUMERS_JSON = (
    b'{"code":38,"extFields":{"consumerGroup":"G"},"flag":0,"language":"JAVA","opaque":7,'
    b'"serializeTypeCurrentRPC":"JSON","version":513}'
)

I32 = st.integers(-(1 << 31), (1 << 31) - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
FIELDS = st.dictionaries(TEXT, TEXT.filter(bool), max_size=6)


@st.composite
def commands(draw: st.DrawFn) -> Command:
    serialization = draw(st.sampled_from(Serialization))
    is_json = serialization is Serialization.JSON
    return Command(
        draw(I32 if is_json else st.integers(-(1 << 15), 3_441) | st.integers(200_050, 200_079)),
        draw(I32),
        draw(FIELDS),
        draw(st.binary(max_size=200)),
        draw(I32),
        draw(st.none() | (TEXT if is_json else TEXT.filter(bool))),
        draw(st.sampled_from(Language)),
        draw(I32 if is_json else st.integers(-(1 << 15), (1 << 15) - 1)),
        serialization,
    )


def read(data: bytes) -> list[Command]:
    return [read_command(frame) for frame in FrameReader().feed(data)]


def framed(header: bytes, body: bytes = b"", serialization: int = 0) -> bytes:
    mark = serialization << 24 | len(header)
    return (4 + len(header) + len(body)).to_bytes(4, "big") + mark.to_bytes(4, "big") + header + body


@given(commands())
def test_what_is_written_is_read(command: Command) -> None:
    assert read(write_command(command)) == [command]


@given(st.lists(commands(), max_size=4), st.randoms(use_true_random=False))
def test_frames_come_in_any_pieces(wanted: list[Command], chance: Random) -> None:
    data, reader, found = b"".join(map(write_command, wanted)), FrameReader(), list[Command]()
    while data:
        size = chance.choice([1, 3, 8, 50, len(data)])
        found += map(read_command, reader.feed(data[:size]))
        data = data[size:]
    assert found == wanted
    assert reader.kept_size == 0


def test_both_forms_are_those_of_rocketmq() -> None:
    assert write_command(CONSUMERS) == framed(CONSUMERS_JSON, b"{}")
    binary = CONSUMERS._replace(serialization=Serialization.ROCKETMQ, body=b"")
    assert write_command(binary) == CONSUMERS_BINARY
    assert read(CONSUMERS_BINARY) == [binary]


def test_members_have_defaults_and_unknown_ones_are_ignored() -> None:
    header = b'{"opaque":5,"language":"COBOL","who":[1],"extFields":{"a":1,"b":true,"c":null,"d":"x"}}'
    [found] = read(framed(header))
    assert found == Command(0, 5, {"a": "1", "b": "true", "d": "x"}, language=Language.OTHER, version=0)
    [bare] = read(framed(b"{}"))
    assert bare == Command(0, 0, language=Language.JAVA, version=0)


def test_an_answer_is_paired_and_in_the_form_of_its_request() -> None:
    request = CONSUMERS._replace(flag=Flag.ONEWAY, serialization=Serialization.ROCKETMQ)
    answer = request.response(17, remark="no topic T")
    assert (answer.opaque, answer.serialization, answer.is_response, answer.is_oneway) == (7, 1, True, False)
    assert request.is_oneway
    assert not request.is_response


def test_codes_of_pop_arrive_cut() -> None:
    command = Command(200_050, 1, serialization=Serialization.ROCKETMQ)
    assert write_command(command)[8:10] == (3_442).to_bytes(2, "big")
    assert read(write_command(command))[0].code == 200_050
    with pytest.raises(ValueError, match="200200 does not fit"):
        write_command(command._replace(code=200_200))


def test_half_of_a_surrogate_pair_in_a_remark_is_no_reason_to_fail() -> None:
    """The name of a file that is no UTF-8 may be part of an error's text."""
    assert read(write_command(Command(1, 1, remark="a \ud800 file")))[0].remark == "a ? file"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\0\0\0\x03\0\0\0\0", "a frame of 3 bytes"),
        (b"\x47\x45\x54\x20\x2f\x20\x48\x54", "a frame of 1195725856 bytes"),
        ((FRAME_SIZE_MAX + 1).to_bytes(4, "big") + bytes(4), "a frame of 16777217 bytes"),
        (b"\0\0\0\x06\0\0\0\x03", "a header of 3 bytes in a frame of 6"),
        (b"\0\x10\0\0" + (HEADER_SIZE_MAX + 1).to_bytes(4, "big"), "a header of 65537 bytes; 65536 are allowed"),
        (b"\0\0\0\x06\x02\0\0\x02", "unknown serialization 2"),
        (framed(b"{"), "no JSON"),
        (framed(b"[" * 60_000), "no JSON"),
        (framed(b'{"opaque":NaN}'), "no JSON"),
        (framed(b'{"remark":"\\ud800"}'), "no JSON"),
        (framed(b"\xff"), "no JSON"),
        (framed(b"[]"), "no JSON object"),
        (framed(b'{"extFields":[]}'), "extFields are no JSON object"),
        (framed(b'{"extFields":{"a":{}}}'), "an array or an object"),
        (framed(b'{"code":true}'), "code is no integer of 32 bits"),
        (framed(b'{"code":"1"}'), "code is no integer of 32 bits"),
        (framed(b'{"opaque":2147483648}'), "opaque is no integer of 32 bits"),
        (framed(b'{"opaque":' + b"9" * 5_000 + b"}"), "no JSON"),
        (framed(b"\0", serialization=1), "ends too early"),
        (framed(CONSUMERS_BINARY[8:-1], serialization=1), "fields of 20 bytes where 19 are left"),
        (framed(CONSUMERS_BINARY[8:-1] + b"\xff", serialization=1), "not UTF-8"),
        (framed(CONSUMERS_BINARY[8:29] + b"\xff\xff" + CONSUMERS_BINARY[31:], serialization=1), "a text of -1 bytes"),
    ],
)
def test_what_is_wrong_is_named(data: bytes, reason: str) -> None:
    with pytest.raises(FrameMalformed, match=reason):
        read(data)


@given(commands(), st.randoms(use_true_random=False))
def test_damaged_frames_are_read_or_named(command: Command, chance: Random) -> None:
    data = bytearray(write_command(command))
    for _ in range(chance.randrange(1, 6)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    try:
        for found in read(bytes(data)):
            write_command(found._replace(serialization=Serialization.JSON))
    except FrameMalformed:
        pass


def test_a_large_frame_is_not_searched_again_with_each_piece() -> None:
    """A reader that looks at all it has for each packet takes quadratic time for a large body."""
    command = Command(310, 1, body=bytes(1 << 20))
    data, reader = write_command(command), FrameReader()
    for at in range(0, len(data) - 1, 1_000):
        assert reader.feed(data[at : min(at + 1_000, len(data) - 1)]) == []
    [frame] = reader.feed(data[-1:])
    assert len(frame.body) == 1 << 20


def test_a_command_that_is_too_large_is_refused() -> None:
    with pytest.raises(ValueError, match="a header of 70"):
        write_command(Command(0, 1, {"a": "x" * 70_000}))
    with pytest.raises(ValueError, match="a body of 16777216"):
        write_command(Command(0, 1, body=bytes(FRAME_SIZE_MAX)))


def test_headers_that_java_writes_are_json_objects() -> None:
    header = FrameReader().feed(write_command(CONSUMERS))[0]
    assert isinstance(header, Frame)
    assert json.loads(header.header)["serializeTypeCurrentRPC"] == "JSON"
