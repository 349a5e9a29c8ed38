"""Updates, saves and queries the key index of a live store on threads beside the event loop (`store.index`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, Protocol

import structlog

from quarry_mq.kv import KvError
from quarry_mq.protocol.clock import Clock
from quarry_mq.server.errors import NoIndex
from quarry_mq.server.tasks import LastErrors, TimeSlice, Worker
from quarry_mq.store.errors import Invalid, StoreDamaged
from quarry_mq.store.index import FoundMessages, KeyIndexes, MessageIndex
from quarry_mq.store.index.facts import IndexFile, checked, index_files
from quarry_mq.store.index.message_index import ReadRecord
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.pending.rows import TIMER_TOPIC
from quarry_mq.store.record import StoredMessage

log = structlog.get_logger(__name__)

NO_INDEX: Final = "this broker has no key index: set index.tiered or index.hash_files"
WRITE_INTERVAL_S: Final = 0.2
"""Seconds until the keys of a message are written. A query has them written at once."""
SAVE_INTERVAL_S: Final = 5.0
"""Seconds between saves: a start after a kill reads at most as much of the log again."""
RETRY_INTERVAL_S: Final = 5.0
MOVE_INTERVAL_S: Final = 1.0
"""Seconds between checks for files that may be compacted, uploaded or rebuilt."""
PAUSES: Final = 1
"""Pauses are as long as the steps while the index lags behind the log: the loop shares the interpreter with it."""
FOUND_MAX: Final = 1_000
ASKERS_MAX: Final = 4
"""Number of queries at a time; others wait."""


class Move(Enum):
    """The kinds of work on index files; each is done one file at a time."""

    REPAIR = "repair"
    COMPACTION = "compaction"
    UPLOAD = "upload"


class IndexMetrics(Protocol):
    def index_failed(self, step: str) -> None: ...


class KeyIndex:
    """The indexes of one store.

    Lives on the event loop's thread. Without an index it does nothing, and queries raise NoIndex.
    """

    def __init__(self, indexes: KeyIndexes, read: ReadRecord, clock: Clock, metrics: IndexMetrics) -> None:
        self._indexes = indexes
        self._read = read
        self._clock = clock
        self._metrics = metrics
        self._errors = LastErrors()
        self._moving = {move: asyncio.Lock() for move in Move}
        # its own threads: many queries that wait for an object store must not block other work
        self._askers = Worker("key-query", ASKERS_MAX)

    async def run(self) -> None:
        """Run until cancelled.

        An error does not end the broker: the index is built from the log, and lags behind meanwhile.
        """
        roles = [self._keep_up(index) for index in self._indexes.followers]
        roles += [self._move_on(move) for move in Move if self._movers(move)]
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(asyncio.Event().wait())  # `run` must not return, even without an index
            for role in roles:
                tasks.create_task(role)

    async def _keep_up(self, index: MessageIndex) -> None:
        saved_at_s = self._clock.monotonic_s()
        while True:
            interval_s = WRITE_INTERVAL_S
            try:
                await self._write(index)
                if self._clock.monotonic_s() - saved_at_s >= SAVE_INTERVAL_S:
                    saved_at_s = self._clock.monotonic_s()
                    await asyncio.to_thread(_save, index)
                self._errors.clear("keys")
            except (OSError, KvError, StoreDamaged) as error:
                interval_s = RETRY_INTERVAL_S
                self._report("keys", error)
            await asyncio.sleep(interval_s)

    async def _write(self, index: MessageIndex) -> None:
        time_slice = TimeSlice(self._clock, work_s=0, pauses=PAUSES)
        has_more = True
        while has_more:
            has_more = await asyncio.to_thread(index.step)
            await time_slice.pause()

    def _movers(self, move: Move) -> list[Callable[[], bool]]:
        """Return functions, each of which does this work on one file and returns whether there was one to do."""
        tiered = self._indexes.tiered
        match move:
            case Move.REPAIR:
                return [index.repair_one for index in self._indexes.followers]
            case Move.COMPACTION:
                return [] if tiered is None else [tiered.compact_one]
            case Move.UPLOAD:
                return [] if tiered is None or tiered.objects is None else [tiered.upload_one]

    async def _move_on(self, move: Move) -> None:
        """Do this kind of work whenever there is some, one file after the other."""
        while True:
            interval_s = MOVE_INTERVAL_S
            try:
                await self._move(move)
                self._errors.clear(move.value)
            except (OSError, StoreDamaged) as error:
                interval_s = RETRY_INTERVAL_S
                self._report(move.value, error)
            await asyncio.sleep(interval_s)

    async def _move(self, move: Move) -> int:
        count = 0
        async with self._moving[move]:
            for move_one in self._movers(move):
                while await asyncio.to_thread(move_one):
                    count += 1
        return count

    def _report(self, step: str, error: Exception) -> None:
        """Count a failure, and log it once."""
        self._metrics.index_failed(step)
        if self._errors.is_new(error, step):
            log.warning("the key index falls behind, it is tried again", step=step, error=str(error))

    def require(self) -> None:
        """Make sure that there is an index. Raises NoIndex."""
        if not self._indexes.followers:
            raise NoIndex(NO_INDEX)

    async def find(self, topic: str, key: str, *, begin_ms: int, end_ms: int, limit: int) -> FoundMessages:
        """Return the newest messages of a topic with a key, stored in [begin_ms, end_ms].

        Raises NoIndex, Invalid, StoreDamaged, OSError, Unavailable.
        """
        self.require()
        if not topic or not key:
            raise Invalid("topic and key must be given")
        if not 0 < limit <= FOUND_MAX:
            raise Invalid(f"limit {limit}: must be 1 to {FOUND_MAX}")
        index = self._indexes.followers[0]
        return await self._askers.run(
            index.find, topic, key, begin_ms=begin_ms, end_ms=end_ms, limit=limit, read=self._read
        )

    async def find_ids(
        self, topic: str, ids: Sequence[str], *, begin_ms: int, up_to: PhysicalOffset
    ) -> list[StoredMessage]:
        """Return a message for each of the ids that messages of a topic have, as `MessageIndex.find_ids`.

        Messages that wait for their delivery to the topic count as messages of the topic.

        Raises NoIndex, StoreDamaged, OSError, Unavailable.
        """
        self.require()
        return await self._askers.run(
            self._indexes.followers[0].find_ids,
            topic,
            ids,
            waiting_in=(TIMER_TOPIC,),
            begin_ms=begin_ms,
            up_to=up_to,
            read=self._read,
        )

    async def files(self) -> list[IndexFile]:
        """Return all files of the indexes. Raises NoIndex."""
        self.require()
        return index_files(self._indexes)

    async def verified(self, file: IndexFile) -> IndexFile:
        """Return the file with what is wrong with it, after reading every byte of it."""
        return await asyncio.to_thread(checked, self._indexes, file)

    async def move_all(self, move: Move) -> int:
        """Do all work of one kind now, and return the number of files. Raises NoIndex, OSError, StoreDamaged."""
        if not self._movers(move):
            raise NoIndex("set index.upload_to" if move is Move.UPLOAD and self._indexes.tiered else "set index.tiered")
        return await self._move(move)

    async def stop(self) -> None:
        """Wait until no query is under way."""
        await self._askers.stop(drop_waiting=True)


def _save(index: MessageIndex) -> None:
    index.save()
    index.expire()
