"""Once a second it is written down how far the log is durable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from quarry_mq.kv import EngineFull, KvError

CHECKPOINT_INTERVAL_S: Final = 1.0
"""RocketMQ's. Damage in what became durable since then is cut off by the next start instead of refused."""

log = structlog.get_logger(__name__)


class CheckpointKeeper:
    """Saves the checkpoint of an open store, on threads of its own: the log's flushes must not wait for it."""

    def __init__(
        self,
        save: Callable[[], None],
        *,
        poisoned: Callable[[Exception], None],
        interval_s: float = CHECKPOINT_INTERVAL_S,
    ) -> None:
        """`save` writes when something changed (`store.recovery.checkpoint`).

        `poisoned` hears of what only a restart heals.
        """
        self._save = save
        self._poisoned = poisoned
        self._interval_s = interval_s
        self._complaint = ""

    async def run(self) -> None:
        """Until cancelled; a database that fails ends the broker.

        A file that cannot be written does no harm as long as the old one is there: it only claims less.
        """
        while True:
            await asyncio.sleep(self._interval_s)
            complaint = ""
            try:
                await asyncio.to_thread(self._save)
            except (OSError, EngineFull) as error:
                complaint = str(error)
            except KvError as error:
                self._poisoned(error)
            if complaint and complaint != self._complaint:
                log.warning("the checkpoint could not be written, it stays where it was", error=complaint)
            self._complaint = complaint
