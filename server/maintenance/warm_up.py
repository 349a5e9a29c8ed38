"""Topics, and where queues begin and end, in memory before somebody sends to them or reads them.

A send to a topic that was not used since the start looks it up, and its queue as well. A broker that has run for a
while knows those that are in use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from quarry_mq.kv import KvError
from quarry_mq.server.faults import FaultLog
from quarry_mq.store.metadata import TopicTable
from quarry_mq.store.migration.open_queues import OpenQueues

PAUSE_S: Final = 0.01
"""Between pages, each of which takes the loop about a millisecond: 125,000 topics take six seconds, a million queues
twelve more.
"""

Place = TypeVar("Place", str, bytes)


async def warm_up(topics: TopicTable, queues: OpenQueues, faults: FaultLog) -> None:
    """Until cancelled, though it is done long before."""
    await _read(topics.warm, "", faults)
    await _read(queues.warm, b"", faults)
    await asyncio.Event().wait()


async def _read(warm: Callable[[Place], Place | None], begin: Place, faults: FaultLog) -> None:
    """All pages, up to one that cannot be read: what lies there and behind it is left to who asks for it."""
    behind: Place | None = begin
    while behind is not None:
        try:
            behind = warm(behind)
        except KvError as error:
            faults.report(error)
            return
        await asyncio.sleep(PAUSE_S)
