"""Logs of several segments, and messages of every kind that dispatch treats in its own way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

from quarry_mq.store.commitlog import SegmentList
from quarry_mq.store.fs.protocol import Disk
from quarry_mq.store.layout.paths import segment_name
from quarry_mq.store.message import Message, PhysicalOffset, QueueOffset
from quarry_mq.store.record import encode_blank, encode_properties, encode_record, record_size
from quarry_mq.store.record.layout import BLANK_SIZE
from tests.commitlog.records import LOG, open_log
from tests.record.records import message

Sent = tuple[Message, bytes]
"""A message, and its properties as stored."""
SEGMENT_SIZE = 16 * 1024
STORED_AT_MS = 1_795_219_820_440


def write_log(
    disk: Disk,
    sent: Sequence[Sent],
    *,
    first: int = 0,
    tail: bytes = b"",
    crc_property: bool = True,
    directory: Path = LOG,
) -> SegmentList:
    """Segments in `directory` that hold the messages as the writer would have put them; `tail` follows the last."""
    log = bytearray()
    next_offsets: Counter[tuple[str, int]] = Counter()
    for number, (each, raw_properties) in enumerate(sent):
        size = record_size(each, raw_properties, crc_property)
        left = SEGMENT_SIZE - len(log) % SEGMENT_SIZE
        if size + BLANK_SIZE > left:
            log += encode_blank(left) + bytes(left - BLANK_SIZE)
        queue = each.topic, each.queue_number
        log += encode_record(
            each,
            QueueOffset(next_offsets[queue]),
            PhysicalOffset(first + len(log)),
            STORED_AT_MS + number,
            raw_properties,
            crc_property=crc_property,
        )
        next_offsets[queue] += 1
    log += tail
    disk.make_directories(directory)
    for begin in range(0, len(log), SEGMENT_SIZE):
        segment = disk.create_segment(directory / segment_name(PhysicalOffset(first + begin)), SEGMENT_SIZE)
        segment.write(0, bytes(log[begin : begin + SEGMENT_SIZE]))
        segment.flush()
    return open_log(disk, SEGMENT_SIZE, directory)


def sent(each: Message) -> Sent:
    return each, encode_properties(each.properties)


def random_messages(random: Random, count: int) -> list[Sent]:
    """Ordinary messages between transactions, delays, retries, light queues and properties that nobody should write."""
    topics = [f"orders-{number}" for number in range(6)] + ["%RETRY%group", "größe"]
    next_numbers: Counter[str] = Counter()
    found = []
    for _ in range(count):
        topic, properties = random.choice(topics), {"UNIQ_KEY": f"{random.getrandbits(64):X}"}
        if random.random() < 0.7:
            properties["TAGS"] = random.choice(["TagA", "TagB || TagC", "größe", "polygenelubricants", "x" * 400])
        match random.randrange(8):
            case 0:
                names = [f"%LMQ%{random.randrange(6)}" for _ in range(random.randrange(1, 4))] + ["no-light-queue"]
                properties["INNER_MULTI_DISPATCH"] = ",".join(names)
                numbers = [str(next_numbers[name]) for name in names]
                next_numbers.update(names)
                properties["INNER_MULTI_QUEUE_OFFSET"] = ",".join(numbers[random.randrange(10) == 0 :])
            case 1:
                topic, properties["DELAY"] = "SCHEDULE_TOPIC_XXXX", random.choice(["3", "99", "0", "x"])
        each = message(topic, random.randbytes(random.randrange(300)), properties)
        each = each._replace(
            queue_number=random.choice([0, 1, 2, 2**31 - 1]), system_flag=random.choice([0, 0, 0, 4, 8, 0xC, 0x702])
        )
        found.append(sent(each) if random.random() < 0.8 else (each, odd_properties(random)))
    return found


def odd_properties(random: Random) -> bytes:
    """Properties as another writer may have stored them: what is read of them is not obvious."""
    pieces = [
        b"TAGS\x01first\x02",
        b"TAGS\x01\x02",
        b"TAGS\x02",
        b"TAGS\x01second\x01more\x02",
        b"xTAGS\x01third\x02",
        b"x\x01TAGS\x01fourth\x02",
        b"\x01TAGS\x01fifth\x02",
        b"TAGS\x01\xff\xfe\x02",
        b"\xc3TAGS\x01sixth\x02",
        b"\x02\x02",
        b"INNER_MULTI_DISPATCH\x01%LMQ%a\x02",
        b"INNER_MULTI_QUEUE_OFFSET\x017\x02",
        b"name\x01INNER_MULTI_DISPATCH\x01%LMQ%b\x02",
        b"T",
        b"AGS\x01seventh\x02",
    ]
    return b"".join(random.choices(pieces, k=random.randrange(6))) + random.choice([b"", b"TAGS\x01last", b"TAGS"])


def log_files(store: Path) -> list[Path]:
    return sorted((store / "store/commitlog").iterdir())
