"""Background work on a running store: retention, clean-up, migration, checkpoints, indexes and verification.

`server/upkeep.py` puts the parts together and runs them.
"""

from __future__ import annotations

from typing import Protocol


class QueueCommit(Protocol):
    """The part of `server.append.group_commit` that work on queues needs."""

    async def make_queues_durable(self) -> bool: ...
