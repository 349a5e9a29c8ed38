"""Removes tombstones of replicated rows once every member has had time to hear of the deletions."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from quarry_mq.kv import EngineFull
from quarry_mq.protocol.clock import DAY_MS, Clock
from quarry_mq.store.replication import ReplicatedRows

log = structlog.get_logger(__name__)

START_DELAY_S: Final = 3_600.0
"""Seconds after a start in which nothing is removed: a cluster that was off as a whole first exchanges what it knew."""

INTERVAL_S: Final = 3_600.0


class TombstoneDeletion:
    """Removes old tombstones. Lives on the event loop's thread; the store is read on another."""

    def __init__(self, replicated: ReplicatedRows, clock: Clock, *, kept_days: int) -> None:
        self._replicated = replicated
        self._clock = clock
        self._kept_ms = kept_days * DAY_MS

    async def run(self) -> None:
        """Remove old tombstones once per interval, until cancelled."""
        await asyncio.sleep(START_DELAY_S)
        while True:
            try:
                deleted = await asyncio.to_thread(
                    self._replicated.delete_tombstones, self._clock.wall_ms() - self._kept_ms
                )
                if deleted:
                    log.info("old deletions were forgotten", count=deleted)
            except EngineFull as error:
                log.warning("old deletions could not be forgotten, it is tried again", reason=str(error))
            await asyncio.sleep(INTERVAL_S)
