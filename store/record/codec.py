"""The module converts records to bytes and back, without any I/O (docs/formats/commit-log.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from operator import ne
from struct import Struct
from typing import Final

from isal import isal_zlib

from quarry_mq.protocol.messages.system_flag import BORN_HOST_V6, HOSTS_V6, STORE_HOST_V6
from quarry_mq.store.errors import Invalid
from quarry_mq.store.message import Host, Message, PhysicalOffset, QueueOffset
from quarry_mq.store.record import layout
from quarry_mq.store.record.layout import (
    AFTER_HOSTS_SIZE,
    BESIDE_BODY_MAX,
    BLANK_SIZE,
    CRC_DIGITS,
    CRC_PROPERTY_SIZE,
    CRC_PROPERTY_START,
    ENTRY_END,
    HEAD_BYTES,
    HEAD_SIZE,
    HEAD_V4,
    HEADS,
    HOST_BITS_SHIFT,
    IPV4_LENGTH,
    IPV6_LENGTH,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PORT_MAXIMUM,
    PROPERTIES_LENGTH,
    PROPERTIES_LENGTH_MAXIMUM,
    QUEUE_OFFSET_MAXIMUM,
    RECONSUME_TIMES,
    RECORD_SIZE_MINIMUM,
    SIZE_AND_MAGIC,
    TOPIC_LENGTH_MAXIMUM,
    TOPIC_LENGTH_V1,
    TOPIC_LENGTH_V1_MAXIMUM,
    TOPIC_LENGTH_V2,
    TOPIC_LENGTHS,
)
from quarry_mq.store.record.properties import Blank, Corrupt, Decoded, EndOfData, StoredMessage, Torn, too_long

_crc32: Final = isal_zlib.crc32
_PROPERTY_BACKWARDS: Final = b"\x02%%0%dd" % CRC_DIGITS + CRC_PROPERTY_START[::-1]

Buffer = bytes | bytearray | memoryview


def checksum(data: Buffer) -> int:
    """Return the CRC-32 with the top bit cleared, as records hold it (0..0x7FFFFFFF; 0 for no bytes)."""
    value: int = _crc32(data)
    return value & 0x7FFFFFFF


def crc32_of_each(data: memoryview, starts: Sequence[int], ends: Sequence[int]) -> list[int]:
    """Return the plain CRC-32 (all 32 bits) of each range of `data`. Other threads run during long ranges."""
    return [_crc32(data[start:end]) for start, end in zip(starts, ends, strict=True)]


def crc_property_of(covered: Buffer) -> bytes:
    """Return the 20-byte property that closes a record and covers all bytes before it.

    The decimal digits come lowest first, padded with zeros, as RocketMQ writes them. So the whole property is made back
    to front and then reversed.
    """
    return (_PROPERTY_BACKWARDS % (_crc32(covered) & 0x7FFFFFFF))[::-1]


_HOLE: Final = bytes(layout.SECTOR_SIZE)
_ZERO_HEAD: Final = bytes(HEAD_SIZE)
_SYSTEM_FLAG_FIELD: Final = 7
TRAILING_ZEROS: Final = 3
"""A record whose last bytes are this many zeros was not written to its end."""
_TOPICS_CACHED: Final = 8192
_HOSTS_CACHED: Final = 4_096
_make: Final = tuple.__new__
_PROPERTIES_LENGTH_SIZE: Final = PROPERTIES_LENGTH.size
_pack_properties_length: Final = PROPERTIES_LENGTH.pack


def has_crc_property(raw_properties: bytes) -> bool:
    """Return whether the stored properties end in the CRC property.

    Only the last property counts, and only as a separate property: where the text is a part of another property's value
    (RocketMQ forgets the 0x02 in batches), it cannot be told from what a producer wrote.
    """
    start = len(raw_properties) - CRC_PROPERTY_SIZE
    return raw_properties.startswith(CRC_PROPERTY_START, max(start, 0)) and (
        start == 0 or (start > 0 and raw_properties[start - 1] == ENTRY_END)
    )


def hides_crc_property(record: memoryview, raw_properties: bytes) -> bool:
    """Return whether there is a CRC property that one wrong byte keeps from being recognized.

    The wrong byte is the 0x02 before it or a byte of its name. The CRC shows that: it is right as soon as the byte is.
    """
    property_ = raw_properties[-CRC_PROPERTY_SIZE:]
    digits = property_[len(CRC_PROPERTY_START) :]
    if len(property_) < CRC_PROPERTY_SIZE or digits[-1] != ENTRY_END or not digits[:-1].isdigit():
        return False
    wrong = sum(map(ne, property_, CRC_PROPERTY_START))
    if wrong > 1:
        return False
    covered = bytearray(record[:-CRC_PROPERTY_SIZE])
    if wrong == 0:
        covered[-1] = ENTRY_END
    return crc_property_of(covered).endswith(digits)


def record_size(message: Message, raw_properties: bytes, crc_property: bool = False) -> int:  # noqa: FBT001, FBT002
    """Return the exact length in bytes of what `encode_record` will return for the same arguments."""
    size = (
        HEAD_SIZE
        + len(message.body)
        + len(_topic_field(message.topic)[0])
        + PROPERTIES_LENGTH.size
        + len(raw_properties)
        + len(message.born_host.address)
        + len(message.store_host.address)
        - 2 * IPV4_LENGTH
    )
    if crc_property:
        size += CRC_PROPERTY_SIZE
        if raw_properties and raw_properties[-1] != ENTRY_END:
            size += 1
    return size


def encode_record(
    message: Message,
    queue_offset: QueueOffset,
    physical_offset: PhysicalOffset,
    store_timestamp_ms: int,
    raw_properties: bytes,
    *,
    crc_property: bool = False,
) -> bytes:
    """Return the whole record in its final form.

    `raw_properties` is what gets stored (`encode_properties`); `message.properties` is ignored. The version follows
    from the topic's length, the host bits of the system flag from the hosts' lengths. With `crc_property` the record
    ends in a CRC of itself; a 0x02 is put before it where the properties lack one, in batches too, or it would become
    part of the last property's value.

    Raises Invalid for a topic that is empty, longer than 255 bytes or holds a zero byte, and for properties that would
    be longer than 32,767 bytes.
    """
    (
        topic, queue_number, body, _, born_timestamp_ms, born_host, store_host,
        flag, system_flag, reconsume_times, prepared_transaction_offset,
    ) = message  # fmt: skip
    born_address, born_port = born_host
    store_address, store_port = store_host
    topic_field, magic = _topic_field(topic)
    properties_length = len(raw_properties)
    if crc_property:
        if raw_properties and raw_properties[-1] != ENTRY_END:
            raw_properties += b"\x02"
        properties_length = len(raw_properties) + CRC_PROPERTY_SIZE
    if properties_length > PROPERTIES_LENGTH_MAXIMUM:
        raise too_long(properties_length)
    head = HEAD_V4
    if system_flag & HOSTS_V6 or not len(born_address) == len(store_address) == IPV4_LENGTH:
        host_bits = _host_bit(born_host, BORN_HOST_V6) | _host_bit(store_host, STORE_HOST_V6)
        head = HEADS[host_bits >> HOST_BITS_SHIFT]
        system_flag = system_flag & ~HOSTS_V6 | host_bits
    body_length = len(body)
    record = b"".join(
        (
            head.pack(
                head.size + body_length + len(topic_field) + _PROPERTIES_LENGTH_SIZE + properties_length,
                magic,
                checksum(body),
                queue_number,
                flag,
                queue_offset,
                physical_offset,
                system_flag,
                born_timestamp_ms,
                born_address,
                born_port,
                store_timestamp_ms,
                store_address,
                store_port,
                reconsume_times,
                prepared_transaction_offset,
                body_length,
            ),
            body,
            topic_field,
            _pack_properties_length(properties_length),
            raw_properties,
        )
    )
    return record + crc_property_of(record) if crc_property else record


def encode_blank(remaining: int) -> bytes:
    """Return the 8 bytes that close a segment with `remaining` bytes left; the bytes after them are not changed."""
    if remaining < BLANK_SIZE:
        raise ValueError(f"a blank takes {BLANK_SIZE} bytes, but {remaining} are left")
    return SIZE_AND_MAGIC.pack(remaining, MAGIC_BLANK)


def decode_record(
    segment: memoryview,
    position: int,
    physical_offset: PhysicalOffset,
    *,
    check_crc: bool = True,
    require_crc_property: bool = False,
) -> Decoded:
    """Return what lies at `position` of a segment, whose memory is given up to the segment's end.

    Structure, position and hosts are always checked; with `check_crc` also the body CRC and the CRC property (if there
    is one). With `require_crc_property` a record without one is corrupt: then every wrong bit is noticed.
    docs/formats/commit-log.md says what each check is for, and lists the outcomes.
    """
    if len(segment) - position < HEAD_SIZE:
        return _decode_no_record(segment, position, physical_offset)
    (
        size, magic, body_crc, queue_number, flag, queue_offset, stored_offset, system_flag,
        born_timestamp_ms, born_address, born_port, store_timestamp_ms, store_address, store_port,
        reconsume_times, prepared_transaction_offset, body_length,
    ) = HEAD_V4.unpack_from(segment, position)  # fmt: skip
    if magic not in TOPIC_LENGTHS:
        return _decode_no_record(segment, position, physical_offset)
    body_start = position + HEAD_SIZE
    if system_flag & HOSTS_V6:
        head = HEADS[(system_flag & HOSTS_V6) >> HOST_BITS_SHIFT]
        body_start = position + head.size
        if body_start > len(segment):
            return Torn(physical_offset, f"the head takes {head.size} bytes, but fewer are left in the segment")
        (
            born_address, born_port, store_timestamp_ms, store_address, store_port, reconsume_times,
            prepared_transaction_offset, body_length,
        ) = head.unpack_from(segment, position)[9:]  # fmt: skip
    if body_length < 0:
        return Corrupt(physical_offset, f"body length {body_length} is negative")
    fields = _locate(segment, position, size, body_start + body_length, TOPIC_LENGTHS[magic])
    if isinstance(fields, str):
        return _broken(segment, position, physical_offset, fields)
    topic, properties_start = fields
    if stored_offset != physical_offset:
        return Corrupt(physical_offset, f"the record states another offset: {stored_offset}")
    if not (0 <= born_port <= PORT_MAXIMUM and 0 <= store_port <= PORT_MAXIMUM):
        return Corrupt(physical_offset, f"port {born_port} or {store_port} out of range")
    if queue_number < 0 or queue_offset < 0 or store_timestamp_ms < 0:
        return Corrupt(physical_offset, "queue number, queue offset or store timestamp is negative")
    if queue_offset > QUEUE_OFFSET_MAXIMUM:
        return Corrupt(physical_offset, f"queue offset {queue_offset} is the largest number and has no next one")
    end = position + size
    body = segment[body_start : body_start + body_length]
    raw_properties = bytes(segment[properties_start:end])
    if raw_properties and (raw_properties[-1] == 0 or _HOLE in raw_properties):
        return Torn(physical_offset, "part of the properties was never written")
    if check_crc and checksum(body) != body_crc:
        return Corrupt(physical_offset, "the body does not match its CRC")
    if check_crc and (problem := _check_crc_property(segment[position:end], raw_properties, require_crc_property)):
        return Corrupt(physical_offset, problem)
    # `tuple.__new__` takes half the time of the constructor, which does the same
    return _make(StoredMessage, (
        size, magic, body_crc, queue_number, flag, queue_offset, physical_offset, system_flag,
        born_timestamp_ms, _host(born_address, born_port), store_timestamp_ms, _host(store_address, store_port),
        reconsume_times, prepared_transaction_offset, body, topic, raw_properties,
    ))  # fmt: skip


def with_reconsume_times(record: bytes, message: StoredMessage, times: int) -> bytes:
    """Return a record that says how often its message was consumed before. `message` is what it holds now."""
    at = HEADS[(message.system_flag & HOSTS_V6) >> HOST_BITS_SHIFT].size - AFTER_HOSTS_SIZE
    changed = record[:at] + RECONSUME_TIMES.pack(times) + record[at + RECONSUME_TIMES.size :]
    if not has_crc_property(message.raw_properties):
        return changed
    covered = changed[:-CRC_PROPERTY_SIZE]
    return covered + crc_property_of(covered)


def parts_to_decode(segment: memoryview, position: int) -> Iterator[tuple[int, int]]:
    """Yield the parts [begin, end) of a segment that `decode_record` reads at a position, each before it is read.

    A part is yielded before this iterator goes on to read in it: the caller can bring it into memory first.
    """
    head_end = min(position + HEAD_BYTES, len(segment))
    yield position, head_end
    if head_end - position < HEAD_SIZE:
        return
    size, magic = SIZE_AND_MAGIC.unpack_from(segment, position)
    end = position + size
    if magic not in TOPIC_LENGTHS or end <= head_end or end > len(segment):
        return
    beside = position + size_with_body(segment[position:head_end])
    if beside <= end <= beside + BESIDE_BODY_MAX:
        yield head_end, end
    else:
        # no record is like that: what tells so is after the body and at the end, and the rest may be very large
        if position <= beside < end:
            yield beside, min(end, beside + BESIDE_BODY_MAX)
        yield end - TRAILING_ZEROS, end


def size_with_body(head: bytes | memoryview) -> int:
    """Return how many bytes the head and the body of a record take, as its head states them (`HEAD_BYTES`)."""
    system_flag: int = HEAD_V4.unpack_from(head)[_SYSTEM_FLAG_FIELD]
    layout = HEADS[(system_flag & HOSTS_V6) >> HOST_BITS_SHIFT]
    return layout.size + int(layout.unpack_from(head)[-1])


def _locate(
    segment: memoryview, position: int, size: int, topic_length_start: int, length_field: Struct
) -> tuple[str, int] | str:
    """Return the topic and the position of the properties, or a text that says what is wrong with the lengths."""
    if size < RECORD_SIZE_MINIMUM:
        return f"size {size} is smaller than the smallest record"
    end = position + size
    if end > len(segment):
        return f"the record takes {size} bytes, but {len(segment) - position} are left in the segment"
    topic_start = topic_length_start + length_field.size
    if topic_start + PROPERTIES_LENGTH.size > end:
        return f"body length does not fit size {size}"
    (topic_length,) = length_field.unpack_from(segment, topic_length_start)
    topic_end = topic_start + topic_length
    properties_start = topic_end + PROPERTIES_LENGTH.size
    if topic_length <= 0 or properties_start > end:
        return f"topic length {topic_length} does not fit size {size}"
    (properties_length,) = PROPERTIES_LENGTH.unpack_from(segment, topic_end)
    if properties_start + properties_length != end:
        return f"properties length {properties_length} does not fit size {size}"
    topic = topic_text(bytes(segment[topic_start:topic_end]))
    if topic is None:
        return "the topic is not valid text"
    return topic, properties_start


def _decode_no_record(segment: memoryview, position: int, physical_offset: PhysicalOffset) -> Decoded:
    """Return the outcome for bytes that do not begin with a record's magic, or that are too few for a record."""
    remaining = len(segment) - position
    if remaining < BLANK_SIZE:
        return Corrupt(physical_offset, f"{max(remaining, 0)} bytes are left, which is too few even for a blank")
    size, magic = SIZE_AND_MAGIC.unpack_from(segment, position)
    if magic == MAGIC_BLANK:
        if size != remaining:
            return Corrupt(physical_offset, f"a blank of {size} bytes, but {remaining} are left in the segment")
        return Blank(physical_offset, size)
    if magic in TOPIC_LENGTHS:
        return Torn(physical_offset, f"{remaining} bytes are left, which is too few for a record")
    if magic == 0:
        head = segment[position : position + HEAD_SIZE]
        if head == _ZERO_HEAD[: len(head)]:
            return EndOfData(physical_offset)
        return Torn(physical_offset, "the magic code was never written, but bytes next to it were")
    return Corrupt(physical_offset, f"magic code {magic:08x} is unknown")


def reaches_over_end(rest: memoryview) -> bool:
    """Return whether the rest of a file, after its last whole record, shows that the file was longer once.

    Records end before a segment does, and a blank follows the last one.
    """
    if len(rest) < BLANK_SIZE:
        return True
    size, magic = SIZE_AND_MAGIC.unpack_from(rest)
    return (magic == MAGIC_BLANK or magic in TOPIC_LENGTHS) and bool(size > len(rest))


def _broken(segment: memoryview, position: int, physical_offset: PhysicalOffset, reason: str) -> Torn | Corrupt:
    """Return Torn when the record exceeds the segment or ends in more zeros than a whole record does; otherwise
    Corrupt.

    At least three zeros are needed: a record without properties ends in two, and before them is the topic's last byte.
    """
    (size,) = layout.SIZE.unpack_from(segment, position)
    end = position + size
    if end > len(segment) or (size >= RECORD_SIZE_MINIMUM and not any(segment[end - TRAILING_ZEROS : end])):
        return Torn(physical_offset, reason)
    return Corrupt(physical_offset, reason)


def _check_crc_property(record: memoryview, raw_properties: bytes, required: bool) -> str | None:  # noqa: FBT001
    """Return what is wrong with the CRC property, None when nothing is."""
    if not has_crc_property(raw_properties):
        if hides_crc_property(record, raw_properties):
            return "a byte before the record's CRC property, or in the name of the property, is damaged"
        return "the record has no CRC property" if required else None
    if raw_properties[-CRC_PROPERTY_SIZE:] != crc_property_of(record[:-CRC_PROPERTY_SIZE]):
        return "the record does not match its CRC property"
    return None


def _host_bit(host: Host, bit: int) -> int:
    if len(host.address) == IPV4_LENGTH:
        return 0
    if len(host.address) != IPV6_LENGTH:
        raise ValueError(f"an address has 4 or 16 bytes, not {len(host.address)}")
    return bit


@lru_cache(maxsize=_HOSTS_CACHED)
def _host(address: bytes, port: int) -> Host:
    return Host(address, port)


@lru_cache(maxsize=_TOPICS_CACHED)
def _topic_field(topic: str) -> tuple[bytes, int]:
    """Return length and bytes of the topic as stored, and the magic code of the version that can hold it."""
    try:
        encoded = topic.encode()
    except UnicodeEncodeError:
        raise Invalid(f"topic {topic!r}: not valid Unicode") from None
    if not encoded or b"\0" in encoded:
        raise Invalid(f"topic {topic!r}: empty, or contains a zero byte")
    if len(encoded) > TOPIC_LENGTH_MAXIMUM:
        raise Invalid(f"topic {topic!r}: {len(encoded)} bytes, at most {TOPIC_LENGTH_MAXIMUM} are allowed")
    if len(encoded) <= TOPIC_LENGTH_V1_MAXIMUM:
        return TOPIC_LENGTH_V1.pack(len(encoded)) + encoded, MAGIC_V1
    return TOPIC_LENGTH_V2.pack(len(encoded)) + encoded, MAGIC_V2


@lru_cache(maxsize=_TOPICS_CACHED)
def topic_text(encoded: bytes) -> str | None:
    """Return the topic that a record holds as these bytes, None when they cannot be one."""
    if b"\0" in encoded:
        return None
    try:
        return encoded.decode()
    except UnicodeDecodeError:
        return None
