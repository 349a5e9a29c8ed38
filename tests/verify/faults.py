"""A store that says everything twice, and hands that plant a fault in it: each knows what is to be told of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from quarry_mq.protocol.clock import SystemClock
from quarry_mq.store.consumequeue.rocks_layout import (
    BOUND,
    ENTRIES_FAMILY,
    ENTRY,
    OFFSET_FAMILY,
    entry_key,
    maximum_key,
    minimum_key,
)
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.index.hash.layout import HEADER_SIZE, HashHeader
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.layout.queue_phase import QueueMode
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.metadata import READ_WRITE, Topic, TopicType
from quarry_mq.store.opening.open_store import open_store
from quarry_mq.store.settings import IndexSettings, StoreSettings
from quarry_mq.store.verify import Check
from tests.store.assembly import message
from tests.verify.stores import LIGHT, ORDERS, delete, get, put, queue_rows

MESSAGES = 120
SEGMENT_SIZE = 64 * 1024


def fill_everything(root: Path) -> None:
    """Queues in files and in RocksDB, a light queue, both key indexes; segments of 64 KiB, five of them in use."""
    settings = StoreSettings(
        root=root,
        segment_size=SEGMENT_SIZE,
        queue_mode=QueueMode.DOUBLE_WRITE,
        units_per_file=50,
        index=IndexSettings(
            hash_files=True, hash_slots=11, hash_items=300, tiered=True, tiered_slots=11, tiered_items=300
        ),
    )
    store = open_store(settings, disk=PosixDisk(), clock=SystemClock(), report=lambda _: None)
    for topic in ("orders", "bills"):
        store.topics.create(Topic(topic, TopicType.NORMAL, 2, 2, READ_WRITE, {}))
    for number in range(MESSAGES):
        order = message("orders", 0, b"order %d " % number * 200, TAGS="new", KEYS=f"order-{number} all", UNIQ_KEY="u")
        store.messages.append([order, message("bills", 0, b"bill", INNER_MULTI_DISPATCH=LIGHT, KEYS=f"bill-{number}")])
    store.messages.flush()
    store.messages.dispatch(store.messages.appended_up_to)
    store.close()


class Fault(NamedTuple):
    """`plant` spoils the store; `checks` tell of it, with `words` in one of the differences. None: it is refused."""

    name: str
    plant: Callable[[Path], None]
    checks: frozenset[Check] | None
    words: str


def _entry(root: Path, number: int, place: int, value: Callable[[int], int]) -> None:
    with queue_rows(root) as engine:
        key = entry_key(ORDERS, QueueOffset(number))
        fields = list(ENTRY.unpack(get(engine, ENTRIES_FAMILY, key)))
        fields[place] = value(fields[place])
        put(engine, ENTRIES_FAMILY, key, ENTRY.pack(*fields))


def _missing_entry(root: Path) -> None:
    with queue_rows(root) as engine:
        delete(engine, ENTRIES_FAMILY, entry_key(ORDERS, QueueOffset(10)))


def _wrong_size(root: Path) -> None:
    _entry(root, 20, 1, lambda size: size + 1)


def _wrong_tag_hash(root: Path) -> None:
    _entry(root, 21, 2, lambda code: code ^ 1)


def _swapped_offsets(root: Path) -> None:
    with queue_rows(root) as engine:
        keys = [entry_key(ORDERS, QueueOffset(number)) for number in (3, 4)]
        values = [get(engine, ENTRIES_FAMILY, key) for key in keys]
        for key, value in zip(keys, reversed(values), strict=True):
            put(engine, ENTRIES_FAMILY, key, value)


def _truncated_queue_file(root: Path) -> None:
    """Most of its units are gone, as a copy that broke off leaves it."""
    file = max((StorePaths(root).consume_queue / "orders" / "0").iterdir())
    os.truncate(file, file.stat().st_size // 5)


def _stale_maximum(root: Path) -> None:
    _bound(root, maximum_key(ORDERS), 50)


def _minimum_above_maximum(root: Path) -> None:
    _bound(root, minimum_key(ORDERS), MESSAGES + 5)


def _bound(root: Path, key: bytes, queue_offset: int) -> None:
    with queue_rows(root) as engine:
        place = ENTRY.unpack(get(engine, ENTRIES_FAMILY, entry_key(ORDERS, QueueOffset(50))))[0]
        put(engine, OFFSET_FAMILY, key, BOUND.pack(place, queue_offset))


def _extra_entry(root: Path) -> None:
    """One more than there are messages; it points at the last one."""
    with queue_rows(root) as engine:
        last = get(engine, ENTRIES_FAMILY, entry_key(ORDERS, QueueOffset(MESSAGES - 1)))
        put(engine, ENTRIES_FAMILY, entry_key(ORDERS, QueueOffset(MESSAGES)), last)
        put(engine, OFFSET_FAMILY, maximum_key(ORDERS), BOUND.pack(ENTRY.unpack(last)[0], MESSAGES))


def _flipped_body_byte(root: Path) -> None:
    segment = segments(root)[1]
    octets = bytearray(segment.read_bytes())
    at = octets.index(b"order 40 ") + 4
    octets[at] ^= 1
    segment.write_bytes(octets)


def _lost_index_item(root: Path) -> None:
    """The last one of RocketMQ's newest file, with all that tells of it."""
    file = max(StorePaths(root).index.iterdir())
    header = HashHeader.unpack(file.read_bytes()[:HEADER_SIZE])
    with file.open("r+b") as opened:
        opened.write(header._replace(next_number=header.next_number - 1).pack())


def _missing_segment(root: Path) -> None:
    segments(root)[2].unlink()


def _gap_in_light_queue(root: Path) -> None:
    with queue_rows(root) as engine:
        delete(engine, ENTRIES_FAMILY, entry_key(QueueId(LIGHT, 0), QueueOffset(7)))


def segments(root: Path) -> list[Path]:
    return sorted(StorePaths(root).commit_log.glob("0*"))


FAULTS = [
    Fault("missing unit", _missing_entry, frozenset({Check.RECORDS}), "orders/0@10"),
    Fault("wrong size", _wrong_size, frozenset({Check.RECORDS}), "orders/0@20"),
    Fault("wrong tag hash", _wrong_tag_hash, frozenset({Check.RECORDS}), "expected tags code"),
    Fault("swapped offsets", _swapped_offsets, frozenset({Check.RECORDS, Check.ENTRIES}), "orders/0@4"),
    Fault("truncated queue file", _truncated_queue_file, frozenset({Check.FILE_RECORDS}), "orders/0@119"),
    Fault("stale maximum", _stale_maximum, frozenset({Check.RECORDS}), "orders/0@51"),
    Fault("minimum above maximum", _minimum_above_maximum, frozenset({Check.OFFSETS}), "a minimum of at most 120"),
    Fault("extra unit", _extra_entry, frozenset({Check.ENTRIES}), "orders/0@120"),
    Fault("flipped body byte", _flipped_body_byte, frozenset({Check.LOG, Check.ENTRIES, Check.FILE_ENTRIES}), "body"),
    Fault("lost index item", _lost_index_item, frozenset({Check.INDEX}), "the key 'bills#bill-119'"),
    Fault("missing segment", _missing_segment, None, f"{2 * SEGMENT_SIZE:020d}"),
    Fault("gap in a light queue", _gap_in_light_queue, frozenset({Check.RECORDS}), f"{LIGHT}/0@7"),
]
