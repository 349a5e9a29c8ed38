"""Finding queues in RocksDB whose stored minimum is above their maximum, as RocketMQ leaves them (rmq#10417).

As long as nothing is sent to such a queue it is empty, and that is all. But what is sent is numbered from the maximum
on, and so hidden below the minimum that is believed again as soon as the maximum has reached it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kv import Family, KeyRange
from store.consumequeue.rocks_layout import is_minimum, maximum_key_beside, parse_bound

ROWS_PER_PAGE: Final = 1_000


def minima_above_maxima(offsets: Family) -> Iterator[list[bytes]]:
    """Keys of minima above the offset that the next entry of their queue gets, page by page of the family's rows.

    The minimum of an empty queue may be that offset: RocketMQ's double write stores such. Raises `kv.KvError`.
    """
    behind: bytes | None = b""
    while behind is not None:
        rows = offsets.scan(KeyRange(behind, None), limit=ROWS_PER_PAGE)
        behind = rows[-1][0] + b"\0" if len(rows) == ROWS_PER_PAGE else None
        minima = [(key, value) for key, value in rows if is_minimum(key, value)]
        maxima = offsets.get_many([maximum_key_beside(key) for key, _ in minima])
        yield [
            key
            for (key, minimum), maximum in zip(minima, maxima, strict=True)
            if parse_bound(minimum).queue_offset > _next_offset(maximum)
        ]


def _next_offset(maximum: bytes | None) -> int:
    return 0 if maximum is None else parse_bound(maximum).queue_offset + 1
