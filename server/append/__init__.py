"""The write path appends the sends of one loop iteration together and answers them once they are durable."""

from __future__ import annotations

from typing import Protocol


class QueueCommit(Protocol):
    """The part of `server.append.group_commit` that work on queues needs."""

    async def make_queues_durable(self) -> bool: ...
