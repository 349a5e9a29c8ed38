"""Topics, and where queues end, in memory before somebody sends to them.

A send to a topic that was not used since the start looks it up, and its queue as well. A broker that has run for a
while knows those that are in use.
"""

from __future__ import annotations

import asyncio
from typing import Final

from store.metadata import TopicTable
from store.open_queues import OpenQueues

PAUSE_S: Final = 0.01
"""Between pages, each of which takes the loop about a millisecond: 125,000 topics take six seconds, a million queues
twelve more.
"""


async def warm_up(topics: TopicTable, queues: OpenQueues) -> None:
    """Until cancelled, though it is done long before."""
    name: str | None = ""
    while name is not None:
        name = topics.warm(name)
        await asyncio.sleep(PAUSE_S)
    key: bytes | None = b""
    while key is not None:
        key = queues.warm(key)
        await asyncio.sleep(PAUSE_S)
    await asyncio.Event().wait()
