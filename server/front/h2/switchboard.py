"""The state that all connections of one front share: the methods, limits and metrics, and the deadlines of calls."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final

from quarry_mq.protocol.codes import GrpcStatus
from quarry_mq.server.front.contract import Method, Methods
from quarry_mq.server.front.h2.call import ConnectionCalls, H2Call
from quarry_mq.server.front.h2.request_head import OWN_HEADERS, ScannerMaker
from quarry_mq.server.front.resources import FrontResources

WHOLE_REQUEST_S: Final = 60.0
"""Seconds for a client to send the one message of its call: otherwise slow bodies could be piled up for ever."""


REFUSALS_MAX: Final = 256
"""Incomplete requests other than gRPC that are kept open; above that the oldest one is answered at once."""

STALE_DEADLINES_MAX: Final = 10_000
"""Deadlines of ended calls that may be kept before they are removed from the list."""


class Switchboard:
    """State shared by a front's connections. `clock` gives monotonic seconds; `soon` calls back a little later."""

    def __init__(
        self,
        methods: Methods,
        resources: FrontResources,
        *,
        clock: Callable[[], float],
        soon: Callable[[Callable[[], None]], None],
        call_ended: Callable[[H2Call, GrpcStatus], None] | None = None,
        make_scanner: ScannerMaker | None = None,
        headers: frozenset[str] | None = None,
    ) -> None:
        """`headers` are those that handlers read; all others are dropped. None keeps all."""
        self.methods: dict[bytes, tuple[str, Method]] = {
            path.encode(): (path, method) for path, method in methods.items()
        }
        self.limits = resources.limits
        self.clock = clock
        self.soon = soon
        self.call_ended = call_ended
        self.make_scanner = make_scanner
        self.stats = resources.stats
        self.headers_kept = None if headers is None else OWN_HEADERS | {name.encode() for name in headers}
        self.incoming = resources.incoming
        self.unread = resources.unread
        self._refused: dict[H2Call, None] = {}  # calls to be refused by HTTP once their requests end; the oldest first
        self._young: list[ConnectionCalls] = []  # of connections with calls that have no entry in `_deadlines` yet
        self._deadlines: list[tuple[float, int, ConnectionCalls, int]] = []
        self._order = 0

    def watch(self, calls: ConnectionCalls) -> None:
        """Watch these calls, so that the new ones end when their time runs out.

        Calls are entered at the next `expire`, because most have ended by then. Until then no call is referred to here,
        so the next one gets its memory while it is still in the processor's cache.
        """
        self._young.append(calls)

    @property
    def is_full(self) -> bool:
        """Return whether handlers hold as many calls as they may. Answers waiting for slow readers do not count."""
        return self.stats.calls_open - self.unread.answered_calls >= self.limits.max_open_calls

    def refuse_later(self, call: H2Call) -> None:
        """Refuse a request that is not gRPC when it has ended, or when too many others wait for their end."""
        self._refused[call] = None
        if len(self._refused) > REFUSALS_MAX:
            oldest = next(iter(self._refused))
            oldest.calls.answer_http(oldest)

    def remove_refused(self, call: H2Call) -> None:
        self._refused.pop(call, None)

    def expire(self, now_s: float) -> None:
        """End the calls whose time has run out. To be called some times a second."""
        young, self._young = self._young, []
        for calls in young:
            for call in calls.take_new():
                calls.hold_headers(call)
                if not call.is_over:
                    self._note(call)
        deadlines = self._deadlines
        if len(deadlines) > 2 * self.stats.calls_open + STALE_DEADLINES_MAX:
            # Calls that ended long before their deadline: clients may set it centuries ahead.
            deadlines[:] = [entry for entry in deadlines if entry[3] in entry[2].open]
            heapify(deadlines)
        while deadlines and deadlines[0][0] <= now_s:
            _, _, calls, stream_id = heappop(deadlines)
            due = calls.open.get(stream_id)
            if due is None:
                continue
            if due.awaits_request or (due.deadline_s is not None and due.deadline_s <= now_s):
                calls.expire(due)
            else:
                self._note(due)

    def _note(self, call: H2Call) -> None:
        """Enter the call's deadline. The entry has the stream id, so that it does not keep the call's memory until
        then.
        """
        due_s = call.deadline_s
        if call.awaits_request:
            whole_by_s = call.opened_at_s + WHOLE_REQUEST_S
            due_s = whole_by_s if due_s is None else min(due_s, whole_by_s)
        if due_s is not None:
            self._order += 1
            heappush(self._deadlines, (due_s, self._order, call.calls, call.stream_id))
