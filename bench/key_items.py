"""Generates realistic keys of messages for benchmarks of indexes, from a seed, the same for every store.

Messages of 200 to 2,000 bytes come 1 to 3 ms after each other. Each has two keys: an id of its own, and the number of
an order (four of five messages) or of a customer. An order has sixteen messages, which come shortly after each other; a
customer has up to ten thousand messages, which are spread over all.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Final

import numpy as np
from numpy.typing import NDArray

from bench.harness import Sample, read_bytes_of
from quarry_mq.store.index.keys import Hashes, KeyItems, key_hashes, key_text
from quarry_mq.store.index.message_index import WRITTEN_AT_ONCE

TOPIC: Final = "bench-orders"
KEYS_EACH: Final = 2
RECORD_SIZES: Final = (200, 2_000)
CLIENT: Final = "01AABBCCDDEEFF04D2"
FIRST_SECOND: Final = 0x0B5C_2A00
IDS_PER_SECOND: Final = 500
NUMBERS: Final = 10**10
NUMBERS_STEP: Final = 2_654_435_761
BEGIN_MS: Final = 1_700_000_000_000
ORDER_SHARE: Final = 0.8
ORDER_MESSAGES: Final = 16
ORDERS_OPEN: Final = 4_096
"""Orders whose messages come mixed with each other."""
CUSTOMER_MESSAGES: Final = 10_000
MESSAGE: Final = np.dtype(
    [("offset", np.int64), ("stored_ms", np.int64), ("hash", np.int32, (2,)), ("number", np.int32), ("kind", np.uint8)]
)
"""The row of a message. `number` is that of its order or customer."""
ALL: Final = 1 << 40
"""A limit that no answer reaches."""

Find = Callable[[str], tuple[int, int]]
"""Looks up a key text; returns how many items it found, and in how many files it searched."""


class KeyKind(IntEnum):
    """The kind of a lookup, by how many messages have the key."""

    ID = 0
    ORDER = 1
    CUSTOMER = 2
    MISSING = 3


class KeyColumns:
    """The items, read from a file that several processes share. Items 2 m and 2 m + 1 are those of message m."""

    def __init__(self, path: Path) -> None:
        self._messages: NDArray[np.void] = np.load(path, mmap_mode="r")

    @classmethod
    def make(cls, path: Path, seed: int, items: int) -> KeyColumns:
        random = np.random.default_rng(seed)
        count = items // KEYS_EACH
        is_order = random.random(count) < ORDER_SHARE
        spread = min(round(ORDERS_OPEN * ORDER_MESSAGES / ORDER_SHARE), max(1, count // 100))
        open_at_once = max(1, round(spread * ORDER_SHARE / ORDER_MESSAGES))
        orders = np.arange(count) // spread * open_at_once + random.integers(0, open_at_once, count)
        customers = random.integers(0, max(1, round(count * (1 - ORDER_SHARE) / CUSTOMER_MESSAGES)), count)
        order_hashes, customer_hashes = (
            _hashes_of([key_of(kind, number) for number in range(int(numbers.max()) + 1)])
            for kind, numbers in ((KeyKind.ORDER, orders), (KeyKind.CUSTOMER, customers))
        )
        messages = np.empty(count, MESSAGE)
        messages["offset"] = np.cumsum(random.integers(*RECORD_SIZES, count))
        messages["stored_ms"] = BEGIN_MS + np.cumsum(random.integers(1, 4, count))
        messages["hash"][:, 0] = _hashes_of([key_of(KeyKind.ID, number) for number in range(count)])
        messages["hash"][:, 1] = np.where(is_order, order_hashes[orders], customer_hashes[customers])
        messages["number"] = np.where(is_order, orders, customers)
        messages["kind"] = np.where(is_order, KeyKind.ORDER, KeyKind.CUSTOMER)
        np.save(path, messages)
        return cls(path)

    def __len__(self) -> int:
        """Return the number of items."""
        return KEYS_EACH * len(self._messages)

    def items(self, begin: int, end: int) -> KeyItems:
        """Return the items of [begin, end), which must be those of whole messages."""
        some = self._of(begin, end)
        offsets, times_ms = (np.repeat(some[name], KEYS_EACH) for name in ("offset", "stored_ms"))
        return KeyItems(some["hash"].reshape(-1), offsets, times_ms)

    def batches(self, begin: int, end: int) -> list[KeyItems]:
        """Return the items in batches of the size that a broker writes."""
        edges = [*range(begin, end, WRITTEN_AT_ONCE), end]
        items = self.items(begin, end)
        return [items.rows(first - begin, last - begin) for first, last in pairwise(edges)]

    def times_ms(self, begin: int, end: int) -> tuple[int, int]:
        """Return the store times of the first and the last of these items."""
        some = self._of(begin, end)
        return int(some["stored_ms"][0]), int(some["stored_ms"][-1])

    def offset(self, item: int) -> int:
        return int(self._messages[item // KEYS_EACH]["offset"])

    def some(self, kind: KeyKind, begin: int, end: int, count: int, random: Random) -> list[str]:
        """Return key texts that items of [begin, end) have, or that no item has."""
        if kind is KeyKind.MISSING:
            numbers = [random.getrandbits(64) for _ in range(count)]
        elif kind is KeyKind.ID:
            numbers = [random.randrange(begin, end) // KEYS_EACH for _ in range(count)]
        else:
            some = self._of(begin, end)
            having = some["number"][some["kind"] == kind].tolist()
            numbers = [random.choice(having) for _ in range(count)]
        return [key_text(TOPIC, key_of(kind, number)) for number in numbers]

    def _of(self, begin: int, end: int) -> NDArray[np.void]:
        return self._messages[begin // KEYS_EACH : end // KEYS_EACH]


def key_of(kind: KeyKind, number: int) -> str:
    """Return the text of a key. An id is like those of the official clients: client, second, counter.

    Other numbers do not count up, so that hashes are spread over all values, as with many senders.
    """
    if kind is KeyKind.ID:
        return f"{CLIENT}{FIRST_SECOND + number // IDS_PER_SECOND:08X}{number:08X}"
    return f"{kind.name.lower()}-{number * NUMBERS_STEP % NUMBERS:010d}"


def _hashes_of(keys: Sequence[str]) -> Hashes:
    parts = [
        key_hashes([key_text(TOPIC, key) for key in keys[begin : begin + WRITTEN_AT_ONCE]])
        for begin in range(0, len(keys), WRITTEN_AT_ONCE)
    ]
    return np.concatenate(parts)


@dataclass(slots=True)
class Lookups:
    """Durations and results of lookups. `files` and `items` are sums over all of them."""

    took_s: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    items: int = 0
    files: int = 0

    @classmethod
    def joined(cls, some: Iterable[Lookups]) -> Lookups:
        """Return all lookups as one."""
        all_of_them = cls()
        for each in some:
            all_of_them.took_s += each.took_s
            all_of_them.cpu_s += each.cpu_s
            all_of_them.items += each.items
            all_of_them.files += each.files
        return all_of_them

    @property
    def sample(self) -> Sample:
        return Sample(len(self.took_s), sum(self.took_s), self.cpu_s)

    def facts(self) -> dict[str, float]:
        ordered = sorted(self.took_s)
        count = len(ordered)
        return {
            "p50_us": round(ordered[count // 2] * 1e6, 1),
            "p99_us": round(ordered[int(count * 0.99)] * 1e6, 1),
            "items": round(self.items / count, 2),
            "files": round(self.files / count, 2),
        }


def look_up(find: Find, texts: Iterable[str]) -> Lookups:
    """Look up the texts one after the other."""
    lookups = Lookups()
    cpu_s = time.process_time()
    for text in texts:
        begin_s = time.perf_counter()
        items, files = find(text)
        lookups.took_s.append(time.perf_counter() - begin_s)
        lookups.items += items
        lookups.files += files
    lookups.cpu_s = time.process_time() - cpu_s
    return lookups


def look_up_cold(find: Find, texts: Iterable[str], drop_caches: Callable[[], None]) -> dict[str, float]:
    """Look up each text after `forget` made the kernel drop its cache, to measure what is read from the device."""
    took_s, read_bytes = [], 0
    for text in texts:
        drop_caches()
        before, begin_s = read_bytes_of(os.getpid()), time.perf_counter()
        find(text)
        took_s.append(time.perf_counter() - begin_s)
        read_bytes += read_bytes_of(os.getpid()) - before
    took_s.sort()
    return {
        "cold_p50_us": round(took_s[len(took_s) // 2] * 1e6, 1),
        "cold_p99_us": round(took_s[int(len(took_s) * 0.99)] * 1e6, 1),
        "cold_read_bytes": round(read_bytes / len(took_s)),
    }
