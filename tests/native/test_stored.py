"""Records read natively are what Python reads, or left to Python."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quarry_mq.store.consumequeue import ConsumeQueueEntry
from quarry_mq.store.consumequeue.rocks.entry_reader import entries_of
from quarry_mq.store.message import Host, Message, PhysicalOffset, QueueOffset
from quarry_mq.store.native import NATIVE, Native, RecordReader
from quarry_mq.store.record import StoredMessage, decode_record, encode_blank, encode_record

needs_native = pytest.mark.skipif(NATIVE is None, reason="no native part")

BEFORE = 7
AT = PhysicalOffset(1_000_000)
HOSTS = st.builds(
    Host, st.one_of(st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16)), st.integers(0, 65_535)
)
PROPERTIES = st.sampled_from([b"", b"a\x01b\x02", b"a\x01b", b"KEYS\x01\xc3\xa4\x02", b"\xff\x02", b"a\x00\x02"])
MESSAGES = st.builds(
    Message,
    topic=st.sampled_from(["orders", "ö" * 60, "t" * 127, "t" * 128, "t" * 255, "a\x01"]),
    queue_number=st.integers(0, 2**31 - 1),
    body=st.binary(max_size=100),
    properties=st.just({}),
    born_timestamp_ms=st.integers(-(2**63), 2**63 - 1),
    born_host=HOSTS,
    store_host=HOSTS,
    flag=st.integers(-(2**31), 2**31 - 1),
    system_flag=st.sampled_from([0, 1, 4, 8]),
    reconsume_times=st.integers(-(2**31), 2**31 - 1),
    prepared_transaction_offset=st.integers(-(2**63), 2**63 - 1),
)


def reader(native: Native, unlike: str = "") -> RecordReader:
    return native.RecordReader(StoredMessage, Host, unlike)


def segment_with(record: bytes) -> memoryview:
    return memoryview(bytes(BEFORE) + record + bytes(200)).toreadonly()


def encoded(message: Message, raw_properties: bytes, *, crc_property: bool = True) -> bytes:
    return encode_record(message, QueueOffset(3), AT, 1_700_000_000_000, raw_properties, crc_property=crc_property)


@needs_native
@settings(max_examples=200)
@given(st.lists(st.tuples(MESSAGES, PROPERTIES), min_size=1, max_size=3), st.booleans())
def test_whole_records_are_read_as_python_reads_them(messages: list[tuple[Message, bytes]], crc_property: bool) -> None:
    assert NATIVE is not None
    native = reader(NATIVE)
    for message, raw_properties in messages:
        segment = segment_with(encoded(message, raw_properties, crc_property=crc_property))
        found = native.read(segment, BEFORE, AT)
        if found is None:
            assert not crc_property or b"\0" in raw_properties or not raw_properties or not message.topic.isprintable()
            continue
        assert found == decode_record(segment, BEFORE, AT)
        assert isinstance(found, StoredMessage)
        assert isinstance(found.born_host, Host)
        assert isinstance(found.store_host, Host)
        assert isinstance(found.body, memoryview)
        assert found.body.readonly


@needs_native
@settings(max_examples=400)
@given(MESSAGES, PROPERTIES, st.data())
def test_damaged_records_are_read_as_python_reads_them_or_not_at_all(
    message: Message, raw_properties: bytes, data: st.DataObject
) -> None:
    assert NATIVE is not None
    record = bytearray(encoded(message, raw_properties))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(record) - 1))
        if data.draw(st.booleans()):
            record[at] = data.draw(st.integers(0, 255))
        else:
            del record[at]
    segment = segment_with(bytes(record))[: data.draw(st.sampled_from([None, -1, -200, -220, 50]))]
    found = reader(NATIVE).read(segment, BEFORE, AT)
    assert found is None or found == decode_record(segment, BEFORE, AT)


HOST = Host(b"\x7f\0\0\1", 8081)
USUAL = encoded(Message("orders", 1, b"body", {}, 1, HOST, HOST), b"a\x01b\x02")


def test_each_wrong_byte_is_noticed(native: Native) -> None:
    assert reader(native).read(segment_with(USUAL), BEFORE, AT) is not None
    for at in range(len(USUAL)):
        wrong = bytearray(USUAL)
        wrong[at] ^= 1
        assert reader(native).read(segment_with(bytes(wrong)), BEFORE, AT) is None


@pytest.mark.parametrize(
    "other", [b"", bytes(300), encode_blank(300), USUAL[:-1], USUAL[:30]], ids=["end", "zeros", "blank", "cut", "torn"]
)
def test_what_is_no_whole_record_is_left_to_python(native: Native, other: bytes) -> None:
    segment = memoryview(bytes(BEFORE) + other)
    assert reader(native).read(segment, BEFORE, AT) is None
    assert reader(native).read(segment, 10_000, AT) is None


def test_one_that_lies_elsewhere_is_left_to_python(native: Native) -> None:
    assert reader(native).read(segment_with(USUAL), BEFORE, PhysicalOffset(AT + 1)) is None


ENTRIES = st.tuples(st.binary(min_size=8, max_size=300), st.binary(min_size=28, max_size=28))


@given(entries=st.lists(ENTRIES, max_size=40))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_they_are_the_same(native: Native, entries: list[tuple[bytes, bytes]]) -> None:
    made = native.EntryMaker(ConsumeQueueEntry).make(entries)
    assert made == entries_of(entries)
    assert {type(entry) for entry in made} <= {ConsumeQueueEntry}


@pytest.mark.parametrize(
    "entry", [(b"key of a unit", b"\0" * 27), (b"key of a unit", b"\0" * 29), (b"key", b"\0" * 28)]
)
def test_what_is_no_entry_is_refused(native: Native, entry: tuple[bytes, bytes]) -> None:
    with pytest.raises(ValueError, match="28 bytes"):
        native.EntryMaker(ConsumeQueueEntry).make([entry])


def test_entries_of_another_kind_are_refused(native: Native) -> None:
    with pytest.raises(TypeError, match="no tuple"):
        native.EntryMaker(dict)  # type: ignore[arg-type]


@needs_native
def test_records_that_are_read_together_are_those_of_the_log_or_left_to_python() -> None:
    """Damage in one of them, another segment, and the end of the log are for Python to tell apart."""
    assert NATIVE is not None
    message = Message("orders", 1, b"body", {}, 1, Host(bytes(4), 1), Host(bytes(4), 1))
    size = len(encoded(message, b"a\x01b\x02"))
    places = [PhysicalOffset(AT + at * size) for at in range(3)]
    records = [
        encode_record(message, QueueOffset(at), place, 1, b"a\x01b\x02", crc_property=True)
        for at, place in enumerate(places)
    ]
    segment = bytearray(bytes(BEFORE) + b"".join(records))
    base, end = PhysicalOffset(AT - BEFORE), AT + 3 * size
    entries = [ConsumeQueueEntry(QueueOffset(at), place, size, 0, 1) for at, place in enumerate(places)]

    def joined(entries: list[ConsumeQueueEntry] = entries, *, end: int = end, unlike: str = "") -> bytes | None:
        view, native, fetched = memoryview(segment).toreadonly(), reader(NATIVE, unlike), list[tuple[int, int]]()
        together = native.join(view, base, end, entries, lambda *part: fetched.append(part))
        read = native.read_all(view, base, end, entries, lambda *_: None)
        if together is None:
            assert read is None
            return None
        assert read == [native.read(view, each.physical_offset - base, each.physical_offset) for each in entries]
        for each in entries:
            at = each.physical_offset - base
            assert any(begin <= at and at + each.size <= begin + size for begin, size in fetched)
        return together

    assert joined() == b"".join(records)
    assert joined([]) == b""
    assert joined([entries[2], entries[0]]) == records[2] + records[0]
    assert joined(end=end - 1) is None
    assert joined(unlike="orders") is None
    for elsewhere in (PhysicalOffset(base - 1), PhysicalOffset(base), PhysicalOffset(end), PhysicalOffset(AT + 1)):
        assert joined([entries[0], entries[0]._replace(physical_offset=elsewhere)]) is None
    for wrong in (-(2**31), -1, 0, size - 1, size + 1, 2**31 - 1):
        assert joined([entries[0]._replace(size=wrong)]) is None
    segment[BEFORE + size + 90] ^= 1
    assert joined() is None
    assert joined([entries[0], entries[2]]) == records[0] + records[2]


def test_neighbours_are_fetched_together_and_the_error_of_a_fetch_is_raised(native: Native) -> None:
    """Neighbours are records up to 16 KiB apart; one fetch has up to a MiB."""
    view, fetched = memoryview(bytes(4 << 20)), list[tuple[int, int]]()
    places = [
        0,
        4_000,
        4_000 + 1_000 + 16 * 1024,
        3 << 20,
        (3 << 20) - 1_000,
        100_000,
        *range(200_000, 1_400_000, 10_000),
    ]
    entries = [ConsumeQueueEntry(QueueOffset(0), PhysicalOffset(at), 1_000, 0, 0) for at in places]
    assert reader(native).join(view, PhysicalOffset(0), 4 << 20, entries, lambda *part: fetched.append(part)) is None
    *apart, large, last = fetched
    assert apart == [(0, 22_384 - 0), (3 << 20, 1_000), ((3 << 20) - 1_000, 1_000), (100_000, 1_000)]
    assert (large[0], large[0] + large[1] - 200_000 <= 1 << 20, last[0] - large[0] - large[1]) == (200_000, True, 9_000)

    def refused(position: int, size: int) -> None:
        raise OSError(position, size)

    for read in (reader(native).join, reader(native).read_all):
        with pytest.raises(OSError, match="1000"):
            read(view, PhysicalOffset(0), 4 << 20, entries[:1], refused)
