"""Topics in memory before somebody sends to them: a send to one that was not used since the start looks it up."""

from __future__ import annotations

import asyncio
from typing import Final

from store.metadata import TopicTable

PAUSE_S: Final = 0.01
"""Between pages, each of which takes the loop about a millisecond: 125,000 topics take six seconds."""


async def warm_up(topics: TopicTable) -> None:
    """Until cancelled, though it is done long before."""
    behind: str | None = ""
    while behind is not None:
        behind = topics.warm(behind)
        await asyncio.sleep(PAUSE_S)
    await asyncio.Event().wait()
