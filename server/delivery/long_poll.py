"""Long polling: receives that wait, and when they are served."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, Generic, Protocol

from quarry_mq.protocol.clock import Clock
from quarry_mq.server.counters.stages import ReceiveStages
from quarry_mq.server.delivery.model import Again, Delivered, Received, ReceiveRequest, Timers
from quarry_mq.server.delivery.state.state_writer import StateWriter
from quarry_mq.server.delivery.state.subscription import SourceT, WaitingPoll, WaitingPolls
from quarry_mq.server.tasks.supervision import run_guarded
from quarry_mq.server.tasks.time_slice import TimeSlice

SERVE_S: Final = 0.01
"""Seconds for which one loop iteration serves receives that have more to scan, of all groups together."""


FetchCall = Callable[[SourceT, ReceiveRequest], Sequence[Delivered]]
"""Function that takes the messages for a receive. Raises the error that prevented it."""


class Undeliverable(Protocol):
    """Gives back messages whose answer was not delivered; see `server.delivery.delivery`."""

    def __call__(self, group: str, topic: str, handles: Iterable[str], *, has_begun: bool) -> None: ...


class LongPolls(Generic[SourceT]):
    """Serves receives: hands over what `take` takes, once it is written that it is taken."""

    def __init__(
        self,
        fetch: FetchCall[SourceT],
        *,
        waiting: WaitingPolls,
        writer: StateWriter,
        clock: Clock,
        timers: Timers,
        stages: ReceiveStages,
        undeliverable: Undeliverable,
    ) -> None:
        """`undeliverable` gets messages that were taken but could not be written as taken: no client gets them."""
        self._fetch = fetch
        self._waiting = waiting
        self._writer = writer
        self._clock = clock
        self._timers = timers
        self._after_pass = writer.after_pass
        self._stages = stages
        self._undeliverable = undeliverable
        self._later: dict[SourceT, None] = {}
        """The sources that are served when the loop iteration ends."""
        self.is_draining = False

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def receive(
        self, source: SourceT, request: ReceiveRequest, polling_s: float, received: Received, again: Again | None
    ) -> WaitingPoll | None:
        """Receive from a source that is open, as `Delivery.receive`. Raises OverLimit."""
        if not source.waiting or source.has_given(request.attempt_id):
            delivered = self._fetch(source, request)
            if delivered:
                self._hand_over(request, delivered, received)
                return None
        if polling_s <= 0 and not source.may_have_messages:
            received((), None)
            return None
        self._waiting.require_room(request)
        poll = WaitingPoll(source, request, received, again, source.last_used_s)
        poll.timer = self._timers.call_later(max(polling_s, 0.0), lambda: self.end(poll))
        self._waiting.add(poll)
        if source.may_have_messages:
            self._serve_later(source)
        return poll

    def cancel(self, poll: WaitingPoll) -> None:
        """Cancel a waiting receive whose caller has gone away; it is not answered."""
        if not poll.done:
            self._waiting.remove(poll)

    def end_waiting(self, client_id: str | None = None) -> None:
        """Answer the waiting receives of a client that disconnects, or of all clients."""
        for poll in tuple(self._waiting) if client_id is None else self._waiting.of_client(client_id):
            self.end(poll)

    def drain(self) -> None:
        """Answer all waiting receives, and later ones at once, and hand out nothing any more: the broker stops."""
        self.is_draining = True
        self.end_waiting()

    def end(self, poll: WaitingPoll) -> None:
        """Answer a waiting receive without messages, since its time is up or it has to end."""
        if not poll.done:
            self._waiting.remove(poll)
            run_guarded(poll.received, (), None)

    def serve(self, source: SourceT) -> None:
        """Serve the waiting receives of the source from its candidates, oldest first, if they are still allowed."""
        waiting = source.waiting
        for _ in range(len(waiting)):
            if not waiting or not source.may_have_messages:
                return
            poll = next(iter(waiting))
            try:
                request = poll.request if poll.again is None else poll.again()
                delivered = self._fetch(source, request)
            except Exception as error:  # noqa: BLE001 - the receive ends with it; the others go on
                self._waiting.remove(poll)
                run_guarded(poll.received, (), error)
                continue
            if not delivered:
                break
            self._waiting.remove(poll)
            self._stages.wait.add(self._clock.monotonic_s() - poll.since_s)
            self._hand_over(request, delivered, poll.received)
        if waiting and source.may_have_messages:
            self._serve_later(source)

    def _serve_later(self, source: SourceT) -> None:
        """Serve the source again when the loop iteration ends, together with others that have more to scan."""
        if not self._later:
            self._after_pass(self._serve_some)
        self._later[source] = None

    def _serve_some(self) -> None:
        """Serve each source within the time limit of a loop iteration: filters that match little scan a lot."""
        later, self._later = self._later, {}
        time_slice = TimeSlice(self._clock, work_s=SERVE_S)
        for source in later:
            if time_slice.is_over:
                self._serve_later(source)
            else:
                self.serve(source)

    def _hand_over(self, request: ReceiveRequest, delivered: Sequence[Delivered], received: Received) -> None:
        fetched_s = self._clock.monotonic_s() if self._stages.is_turn() else None
        self._writer.when_written(partial(self._tell, request, delivered, received, fetched_s))

    def _tell(
        self,
        request: ReceiveRequest,
        delivered: Sequence[Delivered],
        received: Received,
        fetched_s: float | None,
        error: Exception | None,
    ) -> None:
        if fetched_s is not None:
            self._stages.write.add(self._clock.monotonic_s() - fetched_s)
        if error is None:
            received(delivered, None)
            return
        handles = [each.receipt_handle for each in delivered]
        self._undeliverable(request.group, request.topic, handles, has_begun=False)
        received((), error)

    def serve_after_pass(self, source: SourceT) -> None:
        """Serve the source at the end of the loop iteration; for callers that may be in the middle of serving it."""
        if source.waiting:
            self._after_pass(partial(self.serve, source))
