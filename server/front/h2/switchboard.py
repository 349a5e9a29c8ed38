"""What all connections of one front share: the methods, the limits, the figures, and whose time runs out."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from quarry_mq.server.front.contract import FrontLimits, Method, Methods
from quarry_mq.server.front.figures import FrontFigures
from quarry_mq.server.front.h2.limits.incoming import Incoming
from quarry_mq.server.front.h2.limits.unread import Unread
from quarry_mq.server.front.h2.protocol.request_head import OWN_HEADERS
from quarry_mq.server.front.h2.protocol.scanner import ScannerMaker
from quarry_mq.server.front.status import GrpcStatus

if TYPE_CHECKING:
    from quarry_mq.server.front.h2.call import H2Call
    from quarry_mq.server.front.h2.calls import Calls

WHOLE_REQUEST_S: Final = 60.0
"""How long a client may take to send the one message of its call: else slow bodies could be piled up for ever."""


REFUSALS_MAX: Final = 256
"""Requests that are no gRPC and have not ended which may be listened to; beyond them the oldest is told at once."""

STALE_DEADLINES_MAX: Final = 10_000
"""Deadlines of calls that are over which may be kept until the whole list is gone through."""


class Switchboard:
    """`clock` gives monotonic seconds; `soon` runs a callback in a later pass of the loop."""

    def __init__(
        self,
        methods: Methods,
        limits: FrontLimits,
        figures: FrontFigures,
        *,
        clock: Callable[[], float],
        soon: Callable[[Callable[[], None]], None],
        call_ended: Callable[[H2Call, GrpcStatus], None] | None = None,
        make_scanner: ScannerMaker | None = None,
        headers: frozenset[str] | None = None,
    ) -> None:
        """`headers` are those that handlers ask for; None: any. Others are not kept."""
        self.methods: dict[bytes, tuple[str, Method]] = {
            path.encode(): (path, method) for path, method in methods.items()
        }
        self.limits = limits
        self.clock = clock
        self.soon = soon
        self.call_ended = call_ended
        self.make_scanner = make_scanner
        self.figures = figures
        self.headers_kept = None if headers is None else OWN_HEADERS | {name.encode() for name in headers}
        self.incoming = Incoming()
        self.unread = Unread(limits.max_unread_size)
        self._refused: dict[H2Call, None] = {}  # by HTTP, once their requests end; the oldest first
        self._young: list[Calls] = []  # of connections that have calls which are not noted yet
        self._deadlines: list[tuple[float, int, Calls, int]] = []
        self._order = 0

    def watch(self, calls: Calls) -> None:
        """End the new ones among these calls when their time runs out.

        They are noted at the next `expire`, because most are over by then. Nothing holds those until then: the next
        call gets their memory while it is still in the processor's cache.
        """
        self._young.append(calls)

    @property
    def is_full(self) -> bool:
        """Whether handlers hold as many calls as they may. Answers that wait for who does not read are not theirs."""
        return self.figures.calls_open - self.unread.answered_calls >= self.limits.max_open_calls

    def refuse_later(self, call: H2Call) -> None:
        """A request that is no gRPC is told so when it has ended, or when too many others wait for their end."""
        self._refused[call] = None
        if len(self._refused) > REFUSALS_MAX:
            oldest = next(iter(self._refused))
            oldest.calls.answer_http(oldest)

    def forget_refused(self, call: H2Call) -> None:
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
        if len(deadlines) > 2 * self.figures.calls_open + STALE_DEADLINES_MAX:
            # Calls that were over long before their deadline: clients may set it centuries ahead.
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
        """By its number, not the call itself: an entry must not keep a call's memory until its deadline."""
        due_s = call.deadline_s
        if call.awaits_request:
            whole_by_s = call.opened_at_s + WHOLE_REQUEST_S
            due_s = whole_by_s if due_s is None else min(due_s, whole_by_s)
        if due_s is not None:
            self._order += 1
            heappush(self._deadlines, (due_s, self._order, call.calls, call.stream_id))
