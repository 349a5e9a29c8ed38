"""Timeouts of a connection that makes no progress. Time is a number here as well."""

from __future__ import annotations

from typing import Final

from quarry_mq.protocol.h2.frames import ErrorCode, PeerError
from quarry_mq.server.front.h2.connection import Connection
from quarry_mq.server.front.h2.request_head import State
from quarry_mq.server.front.hello import GREETING_S

PROBE_AFTER_S: Final = 60.0
PROBE_ANSWER_S: Final = 20.0
"""Seconds of silence after which a peer is probed, and seconds to answer: gRPC's own defaults.

A frame counts only when it has come completely, so single bytes are no sign of life.
"""

STALL_S: Final = 60.0
"""Seconds for which a peer may leave answers unread, by not reading or by not opening its windows."""

IDLE_S: Final = 30 * 60.0
"""Seconds for which a connection may be without a call; then its client is asked to open another when it needs one.

Clients that keep a connection open by pings alone do so for some minutes (the C++ client pings each minute).
"""


class Timeouts:
    """The last progress seen on one connection, and when. It is checked every second or so."""

    __slots__ = (
        "_connection",
        "_frames_at_s",
        "_frames_seen",
        "_is_probed",
        "_made_at_s",
        "_messages_seen",
        "_sent_at_s",
        "_sent_seen",
        "_used_at_s",
    )

    def __init__(self, connection: Connection, now_s: float) -> None:
        self._connection = connection
        self._made_at_s = self._frames_at_s = self._sent_at_s = self._used_at_s = now_s
        self._frames_seen = self._sent_seen = self._messages_seen = 0
        self._is_probed = False

    def look(self, now_s: float) -> PeerError | None:
        """Return the reason to end the connection, or None. Probes or drains the connection where appropriate."""
        connection = self._connection
        if connection.state in (State.NEW, State.GREETED):
            if now_s - self._made_at_s > GREETING_S:
                return PeerError(ErrorCode.PROTOCOL_ERROR, "no preface in time")
            return None
        block_since_s = connection.calls.block_since_s
        if block_since_s is not None and now_s - block_since_s > GREETING_S:
            return PeerError(ErrorCode.PROTOCOL_ERROR, "a header block does not end")
        return self._look_at_frames(now_s) or self._look_at_answers(now_s) or self._look_at_calls(now_s)

    def _look_at_frames(self, now_s: float) -> PeerError | None:
        connection = self._connection
        if connection.frames_received != self._frames_seen:
            self._frames_seen, self._frames_at_s, self._is_probed = connection.frames_received, now_s, False
        elif now_s - self._frames_at_s > PROBE_AFTER_S + PROBE_ANSWER_S:
            return PeerError(ErrorCode.NO_ERROR, "no sign of life")
        elif now_s - self._frames_at_s > PROBE_AFTER_S and not self._is_probed:
            self._is_probed = True
            connection.probe()
        return None

    def _look_at_answers(self, now_s: float) -> PeerError | None:
        sender = self._connection.sender
        if sender.data_frames != self._sent_seen or not sender.waiting_size:
            self._sent_seen, self._sent_at_s = sender.data_frames, now_s
        elif now_s - self._sent_at_s > STALL_S:
            return PeerError(ErrorCode.ENHANCE_YOUR_CALM, "the client does not read its answers")
        return None

    def _look_at_calls(self, now_s: float) -> PeerError | None:
        connection = self._connection
        calls = connection.calls
        if calls.open or calls.messages != self._messages_seen:
            self._messages_seen, self._used_at_s = calls.messages, now_s
        elif connection.state is State.DRAINING and not connection.awaits_late_calls:
            return PeerError(ErrorCode.NO_ERROR, "idle")
        elif now_s - self._used_at_s > IDLE_S:
            connection.drain()
        return None
