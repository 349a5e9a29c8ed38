"""The bulk scan says of all bytes what the exact decoder says of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quarry_mq.store.message import Message, PhysicalOffset
from quarry_mq.store.record import Blank, Corrupt, EndOfData, StoredMessage, Torn, decode_record, encode_blank
from quarry_mq.store.record.layout import RECORD_SIZE_MINIMUM
from quarry_mq.store.scan import fields, scan_apart, scan_segment, segment
from tests import golden
from tests.record.records import HOST_V6, message, messages, record
from tests.scan.comparison import assert_same, decoded_one_by_one, row_of, rows_of

GoldenStore = Callable[[str], Path]
BASE = 1 << 20
CHECKS = [
    {},
    {"check_crc": False},
    {"require_crc_property": True},
]


def log_of(each: list[tuple[Message, bool]], base: int = BASE) -> bytearray:
    log = bytearray()
    for one, crc_property in each:
        log += record(one, base + len(log), crc_property=crc_property)
    return log


VARIED = [
    (message(), False),
    (message(properties={}), False),
    (message(body=b""), True),
    (message(topic="%RETRY%" + "g" * 140), False),
    (message(born_host=HOST_V6), True),
    (message(store_host=HOST_V6, topic="%RETRY%" + "h" * 200), True),
    (message(born_host=HOST_V6, store_host=HOST_V6, topic="others"), False),
    (message(topic="größe", properties={"TAGS": "ü" * 300}), True),
    (message(properties={}, body=bytes(700)), True),
]
"""Every kind of record: both versions, all hosts, with and without body, properties and CRC property."""


@pytest.mark.parametrize("checks", CHECKS)
def test_every_kind_of_record(checks: dict[str, bool]) -> None:
    log = log_of(VARIED * 3) + bytes(300)
    count = assert_same(bytes(log), BASE, **checks)
    assert count == (0 if "require_crc_property" in checks else 3 * len(VARIED))


def test_records_from_anywhere_in_a_log() -> None:
    offsets = [7 << 40, 5, 1 << 20] * len(VARIED)
    records = [
        record(one, at, crc_property=crc_property) for (one, crc_property), at in zip(VARIED * 3, offsets, strict=True)
    ]
    data = memoryview(b"".join(records))
    expected = [
        decode_record(memoryview(each), 0, PhysicalOffset(at)) for each, at in zip(records, offsets, strict=True)
    ]
    found = [row for batch in scan_apart(data) for row in rows_of(batch, are_apart=True)]
    assert found == [row_of(each) for each in expected if isinstance(each, StoredMessage)]
    assert len(found) == len(records)
    for cut in (1, 30, 89):
        *_, last = scan_apart(data[:-cut])
        assert isinstance(last.ended_by, Torn), "the end is missing"
    damaged = bytearray(data)
    damaged[len(records[0]) + 90] ^= 1
    batches = list(scan_apart(memoryview(damaged)))
    assert isinstance(batches[-1].ended_by, Corrupt)
    assert [row for batch in batches for row in rows_of(batch, are_apart=True)] == found[:1]
    assert list(scan_apart(memoryview(b""))) == []


@pytest.mark.parametrize("window_bytes", [1, 100, 1000, 5000])
def test_windows_meet_without_gap(window_bytes: int) -> None:
    assert assert_same(bytes(log_of(VARIED * 5) + bytes(300)), BASE, window_bytes=window_bytes) == 5 * len(VARIED)


@pytest.mark.parametrize("left", [0, 1, 7, 8, 9, 87, 88, 89, 91, 92, 93, 99, 100, 111, 112, 500])
@pytest.mark.parametrize("filler", ["zeros", "blank", "wrong blank", "garbage"])
def test_ends_of_segments(left: int, filler: str) -> None:
    """A segment may end anywhere behind its last record; reading must not go beyond its memory."""
    tail = bytearray(left)
    if left >= 8 and "blank" in filler:
        tail[:8] = encode_blank(left if filler == "blank" else left + 1)
    if filler == "garbage":
        tail[:] = Random(left).randbytes(left)
    assert assert_same(bytes(log_of(VARIED) + tail), BASE) == len(VARIED)
    assert assert_same(bytes(tail), BASE) == 0


def test_endings_name_their_place() -> None:
    log = bytes(log_of(VARIED))
    end = PhysicalOffset(BASE + len(log))
    for tail, expected in (
        (b"", None),
        (bytes(200), EndOfData(end)),
        (encode_blank(300) + bytes(292), Blank(end, 300)),
        (b"x" * 200, Corrupt(end, "magic code 78787878 is unknown")),
        (record(message(), int(end))[:-3] + bytes(3), Torn(end, "part of the properties was never written")),
    ):
        *_, last = scan_segment(memoryview(log + tail), PhysicalOffset(BASE))
        assert last.ended_by == expected
        assert last.end == (end + 300 if isinstance(expected, Blank) else end)


@pytest.mark.parametrize("checks", CHECKS)
@pytest.mark.parametrize(
    "change",
    [
        "flip low",
        "zero",
        pytest.param("flip high", marks=pytest.mark.slow),
        pytest.param("0xff", marks=pytest.mark.slow),
    ],
)
def test_damage_at_every_byte(change: str, checks: dict[str, bool]) -> None:
    """One changed byte, anywhere in a small log: the verdict is the exact decoder's, and nothing behind it is read."""
    log = log_of([each for each in VARIED if len(each[0].body) < 100]) + encode_blank(180) + bytes(172)
    for at in range(len(log)):
        damaged = bytearray(log)
        damaged[at] = {"flip low": log[at] ^ 1, "flip high": log[at] ^ 0x80, "zero": 0, "0xff": 0xFF}[change]
        assert_same(bytes(damaged), BASE, **checks)


def test_every_cut() -> None:
    """A crash leaves zeros where the rest was to be; a file that was cut short leaves nothing."""
    log = bytes(log_of(VARIED))
    for at in range(len(log)):
        assert_same(log[:at], BASE)
        assert_same(log[:at] + bytes(len(log) - at), BASE)


def test_sectors_that_never_reached_the_disk() -> None:
    log = bytes(log_of([(message(body=b"b" * 900, properties={"p": "v" * 3000}), at % 2 == 0) for at in range(4)]))
    for at in range(0, len(log) - 512, 256):
        assert_same(log[:at] + bytes(512) + log[at + 512 :], BASE)
        assert_same(log[:at] + bytes(511) + log[at + 511 :], BASE)


def test_records_of_another_place_are_no_records() -> None:
    """An older use of the file: everything is right but where the record says that it lies."""
    log = bytes(log_of(VARIED))
    assert assert_same(log, BASE + 1) == 0
    assert assert_same(log + log, BASE) == len(VARIED)


def test_a_scan_may_begin_at_any_record() -> None:
    log = bytes(log_of(VARIED) + bytes(300))
    positions = [each.physical_offset - BASE for each in decoded_one_by_one(memoryview(log), BASE, 0)]
    for begun, position in enumerate(positions):
        assert assert_same(log, BASE, position) == len(VARIED) - begun


@settings(max_examples=150)
@given(
    st.lists(st.tuples(messages, st.booleans()), max_size=12),
    st.sampled_from([0, BASE, 1 << 40]),
    st.sampled_from([64, 700, 1 << 22]),
    st.binary(max_size=200),
)
def test_random_logs(each: list[tuple[Message, bool]], base: int, window_bytes: int, tail: bytes) -> None:
    log = bytes(log_of(each, base))
    for checks in CHECKS:
        assert_same(log + tail, base, window_bytes=window_bytes, **checks)


@settings(max_examples=300)
@given(st.data())
def test_random_damage(data: st.DataObject) -> None:
    """Bytes overwritten, taken out or put in, several at a time."""
    log = log_of(VARIED)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(log)))
        log[at : at + data.draw(st.integers(0, 16))] = data.draw(st.binary(max_size=16))
    for checks in CHECKS:
        assert_same(bytes(log), BASE, window_bytes=data.draw(st.sampled_from([500, 1 << 22])), **checks)


@settings(max_examples=200)
@given(st.binary(max_size=600))
def test_any_bytes(data: bytes) -> None:
    assert_same(data, BASE)


@pytest.mark.parametrize("name", golden.NAMES)
@pytest.mark.parametrize("checks", CHECKS)
def test_golden_stores(golden_store: GoldenStore, name: str, checks: dict[str, bool]) -> None:
    found = 0
    for path in sorted((golden_store(name) / "store/commitlog").iterdir()):
        found += assert_same(path.read_bytes(), int(path.name), window_bytes=100_000, **checks)
    written = sum("blank" not in line for line in golden.records(golden_store(name)))
    assert found == (0 if "require_crc_property" in checks and name != "file-kill" else written)


@pytest.mark.parametrize("name", ["rocks-clean", "file-kill"])
def test_damaged_golden_stores(golden_store: GoldenStore, name: str) -> None:
    """Runs of bytes that are overwritten or zeroed, at places that depend on nothing but the number printed."""
    path = min((golden_store(name) / "store/commitlog").iterdir())
    whole = path.read_bytes()[: 1 << 18]
    for seed in range(40):
        random = Random(seed)
        damaged = bytearray(whole)
        at, length = random.randrange(len(whole)), random.choice([1, 2, 8, 512, 4096])
        damaged[at : at + length] = random.randbytes(length) if random.random() < 0.5 else bytes(length)
        print(f"seed {seed}: {length} bytes at {at}")
        assert_same(bytes(damaged[: len(whole)]), int(path.name), window_bytes=random.choice([10_000, 1 << 22]))


def test_what_looks_unusual_is_decided_by_the_exact_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule of the bulk scan that is too broad costs time, and nothing else."""

    def doubt_every_third(*arguments: Any) -> fields.Gathered:
        gathered = fields.gather(*arguments)
        doubtful = gathered.doubtful | (np.arange(len(gathered.doubtful)) % 3 == 2)
        return gathered._replace(doubtful=doubtful)

    monkeypatch.setattr(segment, "gather", doubt_every_third)
    assert assert_same(bytes(log_of(VARIED * 3) + bytes(300)), BASE) == 3 * len(VARIED)


def test_many_topics_of_one_length() -> None:
    each = [(message(topic=f"topic-{number % 40:02}"), False) for number in range(200)]
    assert assert_same(bytes(log_of(each)), BASE) == 200


def test_a_batch_gives_records_and_properties() -> None:
    log = bytes(log_of(VARIED))
    [batch] = scan_segment(memoryview(log), PhysicalOffset(BASE))
    expected = list(decoded_one_by_one(memoryview(log), BASE, 0))
    assert [batch.record(row) for row in range(len(batch))] == expected
    assert [batch.properties(row) for row in range(len(batch))] == [each["properties"] for each in rows_of(batch)]
    assert rows_of(batch) == [row_of(batch.record(row)) for row in range(len(batch))]


@pytest.mark.parametrize("tail", [b"", bytes(300), encode_blank(50) + bytes(42), encode_blank(95) + bytes(87)])
@pytest.mark.parametrize("window_bytes", [1, 300, 1 << 22])
def test_nothing_is_read_that_was_not_waited_for(window_bytes: int, tail: bytes) -> None:
    """Bytes that are not there yet may be anything, and reading them may cost the process its life."""
    whole = bytes(log_of(VARIED * 2) + tail)
    arrived = bytearray(b"\xaa" * len(whole))

    def await_bytes(position: int) -> None:
        assert position <= len(whole)
        arrived[:position] = whole[:position]

    batches = list(
        scan_segment(memoryview(arrived), PhysicalOffset(BASE), window_bytes=window_bytes, await_bytes=await_bytes)
    )
    *expected, last = decoded_one_by_one(memoryview(whole), BASE, 0)
    if not tail:
        expected.append(last)
    rows = [row for batch in batches for row in rows_of(batch)]
    assert rows == [row_of(each) for each in expected if isinstance(each, StoredMessage)]
    assert batches[-1].ended_by == (last if tail else None)


def test_the_smallest_record() -> None:
    smallest = record(message(topic="t", body=b"", properties={}), BASE)
    assert len(smallest) == RECORD_SIZE_MINIMUM
    assert assert_same(smallest, BASE) == 1
