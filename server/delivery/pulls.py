"""Receives and pulls that wait for messages (long polling), and pulls: reads at an offset that the client names.

A pull has nothing in flight, and no state of it is kept. Pulls are for clients that keep their own position in each
queue, and for broadcasting, where each client gets every message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, Generic, NamedTuple, Protocol

from quarry_mq.protocol.clock import Clock
from quarry_mq.server.counters import ReceiveStages
from quarry_mq.server.delivery.fetch import ANSWER_SIZE_MAX, ENTRIES_SCANNED_MAX, LENGTH_PER_ENTRY
from quarry_mq.server.delivery.model import Again, Delivered, MessageSource, Received, ReceiveRequest, Timer, Timers
from quarry_mq.server.delivery.state.inflight import StateWriter
from quarry_mq.server.delivery.state.subscription import KeptFilters, SourceT, WaitingPoll, WaitingPolls
from quarry_mq.server.errors import OverLimit
from quarry_mq.server.filters import MessageFilter
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.server.tasks import TimeSlice, run_guarded
from quarry_mq.store.consumequeue import ConsumeQueueEntry
from quarry_mq.store.errors import MessageGivenUp, OffsetOutOfRange, StoreDamaged
from quarry_mq.store.message import DispatchRequest, QueueId, QueueOffset
from quarry_mq.store.record import StoredMessage


class PullRequest(NamedTuple):
    """The terms of one pull."""

    queue: QueueId
    offset: QueueOffset
    filter: MessageFilter
    batch_size: int
    polling_s: float
    client_id: str = ""


Pulled = Callable[[Sequence[StoredMessage], QueueOffset, Exception | None], None]
"""Callback with the result of a pull: messages (none when its time is up), the offset to go on at, or an error."""


Check = Callable[[], None]
"""Checks a waiting pull again when it is woken; raises if it is not allowed any more."""


class WaitingPull:
    """A pull that found nothing and waits; it has scanned everything below `offset`."""

    __slots__ = ("check", "offset", "pulled", "request", "timer")

    def __init__(self, request: PullRequest, offset: QueueOffset, pulled: Pulled, check: Check | None) -> None:
        self.request = request
        self.check = check
        self.offset = offset
        self.pulled = pulled
        self.timer: Timer | None = None


class Pulls:
    """Answers pulls, and keeps those that wait for messages.

    Lives on the event loop's thread.
    """

    def __init__(self, source: MessageSource, timers: Timers, settings: BrokerSettings) -> None:
        self._source = source
        self._timers = timers
        self.configure(settings)
        self._of_client: Counter[str] = Counter()
        self._filters = KeptFilters()
        self._waiting: dict[QueueId, dict[WaitingPull, None]] = {}
        self._count = 0
        self._is_draining = False

    def configure(self, settings: BrokerSettings) -> None:
        self._waiting_max = settings.delivery.waiting_pulls_max
        self._waiting_per_client_max = settings.limits.waiting_polls_per_client

    def __len__(self) -> int:
        return self._count

    def pull(self, request: PullRequest, pulled: Pulled, check: Check | None = None) -> WaitingPull | None:
        """Read from an offset on, now or as soon as there is something and `check` raises nothing.

        `pulled` is called exactly once, unless the returned pull is cancelled before. Raises OffsetOutOfRange if the
        offset is not between the queue's minimum and maximum offset, the latter included; OverLimit if too many pulls
        wait.
        """
        self._require_within(request.queue, request.offset)
        messages, offset = self._read(request, request.offset)
        if messages or request.polling_s <= 0 or self._is_draining or offset < self._source.maximum(request.queue):
            pulled(messages, offset, None)
            return None
        if self._count >= self._waiting_max:
            raise OverLimit("waiting_polls", f"{self._count} pulls are already waiting")
        of_client = self._of_client[request.client_id]
        if of_client >= self._waiting_per_client_max:
            raise OverLimit("waiting_polls_per_client", f"{of_client} pulls of this client are already waiting")
        self._filters.check(request.filter)
        self._filters.add(request.filter)
        waiting = WaitingPull(request, offset, pulled, check)
        waiting.timer = self._timers.call_later(request.polling_s, lambda: self._end(waiting, ()))
        self._waiting.setdefault(request.queue, {})[waiting] = None
        self._count += 1
        self._of_client[request.client_id] += 1
        return waiting

    def cancel(self, waiting: WaitingPull) -> None:
        """Cancel a waiting pull whose caller has gone away; it is not answered. Does nothing if the pull has ended."""
        of_queue = self._waiting.get(waiting.request.queue)
        if of_queue is None or waiting not in of_queue:
            return
        del of_queue[waiting]
        self._filters.remove(waiting.request.filter)
        if not of_queue:
            del self._waiting[waiting.request.queue]
        self._count -= 1
        client_id = waiting.request.client_id
        self._of_client[client_id] -= 1
        if not self._of_client[client_id]:
            del self._of_client[client_id]
        if waiting.timer is not None:
            waiting.timer.cancel()

    def drain(self) -> None:
        """Answer all waiting pulls, and later ones at once: the broker stops."""
        self._is_draining = True
        self.end_waiting()

    def end_waiting(self) -> None:
        """Answer all waiting pulls."""
        for waiting in [each for of_queue in self._waiting.values() for each in of_queue]:
            self._end(waiting, ())

    def messages_arrived(self, requests: Iterable[DispatchRequest]) -> None:
        """Serve the pulls that wait for exactly these queues."""
        if not self._waiting:
            return
        queues = dict.fromkeys(QueueId(request.topic, request.queue_number) for request in requests)
        for queue in queues:
            for waiting in tuple(self._waiting.get(queue, ())):
                self._serve(waiting)

    def _serve(self, waiting: WaitingPull) -> None:
        try:
            if waiting.check is not None:
                waiting.check()
            self._require_within(waiting.request.queue, waiting.offset)  # the topic may have been replaced meanwhile
            messages, waiting.offset = self._read(waiting.request, waiting.offset)
        except Exception as error:  # noqa: BLE001 - this pull ends with it; the others go on
            self._end(waiting, (), error)
            return
        if messages or waiting.offset < self._source.maximum(waiting.request.queue):
            self._end(waiting, messages)  # also without messages if one scan is not enough: to go on from there

    def _end(self, waiting: WaitingPull, messages: Sequence[StoredMessage], error: Exception | None = None) -> None:
        self.cancel(waiting)
        run_guarded(waiting.pulled, messages, waiting.offset, error)

    def _require_within(self, queue: QueueId, offset: QueueOffset) -> None:
        bounds = self._source.bounds(queue)
        if not bounds.minimum <= offset <= bounds.maximum:
            raise OffsetOutOfRange(
                f"offset {offset} is outside of [{bounds.minimum}, {bounds.maximum}] of queue {queue.number} of "
                f"topic {queue.topic}"
            )

    def _read(self, request: PullRequest, offset: QueueOffset) -> tuple[list[StoredMessage], QueueOffset]:
        """Return the messages that match the filter from an offset on, and the offset after everything that was
        scanned. What precedes a damaged record is returned without an error.
        """
        found: list[StoredMessage] = []
        start = offset
        entries_left, bytes_left = ENTRIES_SCANNED_MAX, ANSWER_SIZE_MAX
        entry_cost = 1 + request.filter.length // LENGTH_PER_ENTRY
        wants_all = request.filter.wants_all
        while entries_left > 0 and len(found) < request.batch_size:
            entries = self._source.entries(request.queue, offset, min(request.batch_size, entries_left))
            if not entries:
                break
            for entry in entries:
                if found and entry.size > bytes_left:
                    return found, offset
                if request.filter.may_match(entry.tags_code):
                    try:
                        record = self._record(entry)
                    except StoreDamaged:
                        if offset > start:  # the next pull begins with it
                            return found, offset
                        raise
                    # properties are decoded when they are looked at
                    if record is not None and (wants_all or request.filter.matches(record.properties)):
                        found.append(record)
                        bytes_left -= entry.size
                offset = QueueOffset(entry.queue_offset + 1)
                entries_left -= entry_cost
                if len(found) == request.batch_size:
                    break
        return found, offset

    def _record(self, entry: ConsumeQueueEntry) -> StoredMessage | None:
        try:
            return self._source.read(entry)
        except MessageGivenUp:
            return None


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
