"""State of consumer groups as it is stored: the changes of one loop iteration are one write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

import structlog

from quarry_mq.kv import EngineFull, KeyValueEngine, WriteBatch
from quarry_mq.server.delivery.handles import HandleKey
from quarry_mq.server.delivery.state.inflight import InFlightTable
from quarry_mq.server.tasks.supervision import run_guarded
from quarry_mq.store.errors import StorePoisoned
from quarry_mq.store.metadata.lite_subscriptions import LiteSubscriptionTable
from quarry_mq.store.metadata.offsets import ConsumerOffsetTable
from quarry_mq.store.state.families import INFLIGHT

log = structlog.get_logger(__name__)

AfterPass = Callable[[Callable[[], None]], None]
Written = Callable[[Exception | None], None]


class StateWriter:
    """Collects the rows that change during a loop iteration and writes them as one batch at its end.

    Answers that depend on the rows are given in the `written` callbacks, after the write: a client never holds an
    answer that the death of the process can take back.

    After a failed write the next one must not simply follow: it would store next offsets above messages whose rows are
    missing, and a restart would take those for acknowledged. So when the disk is full, everything in memory is staged
    once there is free space again (`stage_again_with`). Any other failure is final: nothing is written any more, all
    waiting callers get the error, `failed` is called once, and a restart goes on from the last good write.
    """

    def __init__(
        self,
        engine: KeyValueEngine,
        after_pass: AfterPass,
        failed: Callable[[Exception], None] | None = None,
        *,
        sign: Callable[[WriteBatch], None] | None = None,
    ) -> None:
        """`sign` may add to each batch a row that states what its changes are based on."""
        self._engine = engine
        self.after_pass: Final = after_pass
        """Runs a callback at the end of the current loop iteration, where its changes are written."""
        self._failed = failed
        self._sign = sign
        self._batch: WriteBatch | None = None
        self._written: list[Written] = []
        self._gathered: list[Callable[[], None]] = []
        # why not everything is written: texts, since an error object that is raised twice keeps the frames of both
        self._full_error: str | None = None
        self._failure: str | None = None
        self._stage_all: Callable[[WriteBatch], None] = lambda _: None

    def stage_again_with(self, stage_all: Callable[[WriteBatch], None]) -> None:
        """Set the function that stages everything in memory, for the write after one that failed."""
        self._stage_all = stage_all

    @property
    def is_full(self) -> bool:
        """Return whether memory holds changes that could not be written yet, so that none of it may be dropped."""
        return self._full_error is not None

    def batch(self) -> WriteBatch:
        """Return the batch of this loop iteration, which is written when the iteration ends."""
        if self._batch is None:
            self._batch = self._engine.batch()
            self.after_pass(self._end_pass)
        return self._batch

    def when_written(self, written: Written) -> None:
        """Call back with None once everything staged so far is stored, or with the error that prevented it."""
        self.batch()
        self._written.append(written)

    def before_write(self, change: Callable[[], None]) -> None:
        """Call back when the loop iteration ends, just before its write: for changes that are collected until then."""
        self.batch()
        self._gathered.append(change)

    def try_again(self) -> None:
        """Try again to write what could not be written, even if there is nothing else to write."""
        if self._full_error is not None:
            self._stage_probe(self.batch())

    def write_now(self) -> None:
        """Write the batch of this loop iteration early."""
        self._write(sync=False)

    def write_durably(self) -> None:
        """Write the batch of this loop iteration early, and durably. Raises StorePoisoned or kv.EngineFull."""
        self._stage_probe(self.batch())  # earlier iterations may have left something to sync, even if this one has not
        self._write(sync=True)
        if self._failure is not None:
            raise StorePoisoned(self._failure)
        if self._full_error is not None:
            raise EngineFull(self._full_error)

    def require_room(self) -> None:
        """Check by a small durable write whether changes can be stored, before memory is changed.

        Raises StorePoisoned or kv.EngineFull.
        """
        self.write_durably()

    def _end_pass(self) -> None:
        while self._gathered:
            run_guarded(self._gathered.pop(0))
        self._write(sync=False)

    def _write(self, *, sync: bool) -> None:
        batch, self._batch = self._batch, None
        callbacks, self._written = self._written, []
        if batch is None:
            return
        if len(batch) and self._failure is None:
            try:
                if self._full_error is not None:
                    self._catch_up()
                if self._sign is not None:
                    self._sign(batch)
                self._engine.write(batch, sync=sync)
                self._full_error = None
            except EngineFull as error:
                self._full_error = str(error)
            except Exception as error:  # noqa: BLE001 - handed to every caller that waits for this write
                self._fail(error)
        for written in callbacks:
            run_guarded(written, self._error())

    def _catch_up(self) -> None:
        """Write everything in memory again. A small write is tried first, so that a disk that is still full costs
        little.
        """
        probe = self._engine.batch()
        self._stage_probe(probe)
        self._engine.write(probe)
        whole = self._engine.batch()
        self._stage_all(whole)
        if self._sign is not None:
            self._sign(whole)
        self._engine.write(whole)

    def _stage_probe(self, batch: WriteBatch) -> None:
        batch.delete(self._engine.family(INFLIGHT), b"")

    def _error(self) -> Exception | None:
        """Return the error for which not everything is written, as a new object for each caller."""
        if self._failure is not None:
            return StorePoisoned(self._failure)
        return None if self._full_error is None else EngineFull(self._full_error)

    def _fail(self, error: Exception) -> None:
        self._failure = f"delivery state cannot be written: {error}"
        log.error("delivery state cannot be written", error=str(error))
        if self._failed is not None:
            self._failed(StorePoisoned(self._failure))


@dataclass(frozen=True, slots=True)
class GroupState:
    """All that is stored about consumer groups in the state database, and the one writer of its changes."""

    offsets: ConsumerOffsetTable
    in_flight: InFlightTable
    lite_subscriptions: LiteSubscriptionTable
    handle_key: HandleKey
    writer: StateWriter

    @classmethod
    def of(
        cls,
        engine: KeyValueEngine,
        offsets: ConsumerOffsetTable,
        handle_key: HandleKey,
        writer: StateWriter,
        *,
        leases_until_ms: int | None = None,
    ) -> Self:
        """Prepare the state after a start. `leases_until_ms` limits all leases, as is needed after a crash.

        After a crash, what was handed out last may never have reached its client. That client is alive, and would be
        taken for busy with it until the end of the lease.
        """
        in_flight = InFlightTable(engine)
        in_flight.make_ready(leases_until_ms)
        return cls(offsets, in_flight, LiteSubscriptionTable(engine), handle_key, writer)
