"""Saves once a second the offset below which the log is durable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from quarry_mq.kv import EngineFull, KvError
from quarry_mq.server.tasks.worker import LastErrors

CHECKPOINT_INTERVAL_S: Final = 1.0
"""RocketMQ's interval.

The next start cuts off damage in what became durable since the last checkpoint, instead of refusing to start.
"""

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
        """`save` writes the checkpoint if something changed (`store.recovery.checkpoint`).

        `poisoned` is called with an error that only a restart can clear.
        """
        self._save = save
        self._poisoned = poisoned
        self._interval_s = interval_s
        self._errors = LastErrors()

    async def run(self) -> None:
        """Save checkpoints until cancelled; an error of the database ends the broker.

        A checkpoint file that cannot be written does no harm while
        the old one is there: the old one only states a lower offset.
        """
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await asyncio.to_thread(self._save)
                self._errors.clear()
            except (OSError, EngineFull) as error:
                if self._errors.is_new(error):
                    log.warning("the checkpoint could not be written, it stays where it was", error=str(error))
            except KvError as error:
                self._poisoned(error)
