"""Reads topics, and the min and max offsets of queues, into memory before they are first used.

The first send to a topic after a start has to read the topic and its queue from the database. A broker that has run for
a while has those in use in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from quarry_mq.kv import KvError
from quarry_mq.server.error_reporter import ErrorReporter
from quarry_mq.store.metadata import TopicTable
from quarry_mq.store.migration.open_queues import OpenQueues

PAUSE_S: Final = 0.01
"""Seconds between pages, each of which takes the loop about a millisecond.

125,000 topics take six seconds, a million queues twelve more.
"""

Place = TypeVar("Place", str, bytes)


async def warm_up(topics: TopicTable, queues: OpenQueues, error_reporter: ErrorReporter) -> None:
    """Read all topics and queues, then wait until cancelled."""
    await _read(topics.warm, "", error_reporter)
    await _read(queues.warm, b"", error_reporter)
    await asyncio.Event().wait()


async def _read(warm: Callable[[Place], Place | None], begin: Place, error_reporter: ErrorReporter) -> None:
    """Read all pages, up to one that cannot be read; the names from there on are read when they are first used."""
    after: Place | None = begin
    while after is not None:
        try:
            after = warm(after)
        except KvError as error:
            error_reporter.report(error)
            return
        await asyncio.sleep(PAUSE_S)
