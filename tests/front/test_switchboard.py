"""Deadlines: noted late, kept short."""

from __future__ import annotations

from quarry_mq.server.front import FrontFigures, FrontLimits, Method
from quarry_mq.server.front.h2.call import Client
from quarry_mq.server.front.h2.calls import Calls
from quarry_mq.server.front.h2.sender import Sender
from quarry_mq.server.front.h2.switchboard import STALE_DEADLINES_MAX, Switchboard


def test_calls_that_end_long_before_their_deadlines_leave_nothing_behind() -> None:
    """A client may set each deadline a thousand years ahead."""
    board = Switchboard(
        {"/t/Unary": Method(lambda _call, _body: None)},
        FrontLimits(),
        FrontFigures(),
        clock=lambda: 0.0,
        soon=lambda callback: callback(),
    )
    calls = Calls(board, Client("peer"), Sender(1024, lambda: None))
    for number in range(3 * STALE_DEADLINES_MAX):
        calls.begin(2 * number + 1, (b"/t/Unary", {b"grpc-timeout": b"99999999H"}), client_done=False)
        board.expire(1.0)
        calls.lose_all()
    assert len(board._deadlines) <= STALE_DEADLINES_MAX + 1
    assert board.figures.calls_open == 0
