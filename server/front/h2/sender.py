"""The sending side of a connection: frames in order, within the peer's windows and the broker's memory.

    handler → outbox of the call → `unwritten` → transport

A message leaves its call's outbox as far as four bounds allow: the window of the stream, that of the connection, the
transport (which pauses the sender when the peer does not read), and `UNWRITTEN_MAX`. Outboxes take turns, one frame
each.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from struct import Struct
from typing import Final, Protocol

from quarry_mq.protocol.h2 import frames
from quarry_mq.protocol.h2.frames import (
    FRAME_SIZE_MAX,
    WINDOW_DEFAULT,
    WINDOW_MAX,
    ErrorCode,
    Flag,
    FrameType,
    PeerError,
)
from quarry_mq.protocol.h2.grpc_messages import MESSAGE_PREFIX_SIZE, RESPONSE_HEAD, TRAILERS_OK
from quarry_mq.server.front.h2.call import H2Call
from quarry_mq.server.front.memory import Unread

UNWRITTEN_MAX: Final = 256 * 1024
"""Bytes of messages that one loop iteration passes to the transport, per connection."""

WAITING_MAX: Final = 64 * 1024 * 1024
"""Bytes that may wait in the outboxes of one connection. A call that wants to add more is ended."""

WAITING_CALL_SIZE: Final = 2 * 1024
"""Bytes that a waiting call counts for beside those of its answer: what is kept of the call itself."""

READ_WITHIN_S: Final = 60.0
"""Seconds within which a client must be able, at its pace, to read what waits for it, or it gives way first."""

LOOKS_LEAST: Final = 3
"""Seconds for which the pace is measured before it is judged."""

_HEAD_SIZE: Final = len(RESPONSE_HEAD)
_ANSWER: Final = Struct(f">BHBBI{_HEAD_SIZE}sBHBBIBI")
"""The layout of a whole HEADERS frame, the head of a DATA frame, and the prefix of the message that follows."""

_OPENING: Final = Struct(f">BHBBI{_HEAD_SIZE}s")
_TRAILERS_OK_SIZE: Final = len(TRAILERS_OK)
_ENDING_OK: Final = Struct(f">BHBBI{_TRAILERS_OK_SIZE}s")
_HEADERS: Final = int(FrameType.HEADERS)
_DATA: Final = int(FrameType.DATA)
"""Frame types as plain numbers: reading them from the enum costs more than packing them."""

_END: Final = Flag.END_HEADERS | Flag.END_STREAM
_pack_answer: Final = _ANSWER.pack
_pack_ending_ok: Final = _ENDING_OK.pack


class Outlet(Protocol):
    """The transport that frames go to."""

    def buffered_size(self) -> int:
        """Return the bytes that were written and that the peer's socket has not taken."""

    def give_up(self) -> None:
        """Drop everything that waits for the peer."""


class Sender:
    """The outgoing frames of one connection. Calls write to it, and `take` empties it. Implements `limits.Reading`."""

    __slots__ = (
        "_beginning",
        "_buffered_size",
        "_departing",
        "_initial_window",
        "_looks",
        "_notify",
        "_pace",
        "_sent_seen",
        "_sent_size",
        "_stream_buffer_size",
        "_unread",
        "_unwritten",
        "_unwritten_size",
        "_waiting",
        "_window",
        "data_frames",
        "is_paused",
        "moved_in",
        "outlet",
        "waiting_size",
    )

    def __init__(self, stream_buffer_size: int, notify: Callable[[], None], unread: Unread | None = None) -> None:
        """`notify` is called when there is something to `take` and there was nothing before."""
        self._notify = notify
        self._unread = unread or Unread(WAITING_MAX)
        self._stream_buffer_size = stream_buffer_size
        self._window = WINDOW_DEFAULT
        self._initial_window = WINDOW_DEFAULT
        self._unwritten: list[bytes | memoryview] = []
        self._beginning: list[H2Call] = []  # calls whose first bytes are in `_unwritten`
        self._departing: list[H2Call] = []  # calls whose last bytes are
        self._unwritten_size = 0
        # Calls with an outbox and an open window, in the order of their turns. A plain dict would pass all entries that
        # were deleted before it finds its first one.
        self._waiting: OrderedDict[H2Call, None] = OrderedDict()
        self.waiting_size = 0
        self.data_frames = 0
        self.is_paused = False
        self.outlet: Outlet | None = None
        self._buffered_size = 0  # what the outlet held when it was last checked
        self._sent_size = self._sent_seen = 0
        self._pace = 0.0  # bytes taken recently, those of a second ago counting half
        self._looks = 0  # measurements of the pace since something waits
        self.moved_in = self._unread.number

    # -- called by calls

    @property
    def initial_window(self) -> int:
        """Return the bytes that the peer accepts for a new stream before it opens the window further."""
        return self._initial_window

    @property
    def is_full(self) -> bool:
        """Return whether so much waits for the peer that nothing may be added."""
        return self.waiting_size > WAITING_MAX

    def control(self, frame: bytes) -> None:
        """Send a frame that is not subject to flow control."""
        if not self._unwritten:
            self._notify()
        self._unwritten.append(frame)

    def answer(self, call: H2Call, body: bytes) -> bool:
        """Send all of a unary answer in one piece; return False, with nothing sent, if that is not possible."""
        size = len(body) + MESSAGE_PREFIX_SIZE
        if (
            size > FRAME_SIZE_MAX
            or size > self._window
            or size > call.send_window
            or self.is_paused
            or self._unwritten_size >= UNWRITTEN_MAX
        ):
            return False
        unwritten = self._unwritten
        if not unwritten:
            self._notify()
        stream_id = call.stream_id
        self._window -= size
        self._unwritten_size += size
        self.data_frames += 1
        unwritten += (
            _pack_answer(
                0, _HEAD_SIZE, _HEADERS, Flag.END_HEADERS, stream_id, RESPONSE_HEAD,
                0, size, _DATA, 0, stream_id,
                0, size - MESSAGE_PREFIX_SIZE,
            ),
            body,
            _pack_ending_ok(0, _TRAILERS_OK_SIZE, _HEADERS, _END, stream_id, TRAILERS_OK),
        )  # fmt: skip
        return True

    def open(self, call: H2Call) -> None:
        """Send the response headers, once."""
        if not call.headers_sent:
            call.headers_sent = True
            self.control(_OPENING.pack(0, _HEAD_SIZE, _HEADERS, Flag.END_HEADERS, call.stream_id, RESPONSE_HEAD))

    def messages(self, call: H2Call, packed: bytes) -> None:
        """Send one message or more, each with its prefix, now or when the bounds allow it."""
        self.open(call)
        self._put(call, packed)

    def refusal(self, call: H2Call, head: bytes, text: bytes) -> bool:
        """Send an answer that is not gRPC: its own header block, a text, and the end. Return whether all of it has
        left.
        """
        call.headers_sent = True
        self.control(frames.frame(FrameType.HEADERS, Flag.END_HEADERS, call.stream_id, head))
        self._put(call, text)
        return self.end(call, b"")

    def end(self, call: H2Call, trailers: bytes) -> bool:
        """Send the trailers, after everything that waits; return whether all of the call has left."""
        if call.outbox is not None:
            self._unread.answered_calls += call.trailers is None
            call.trailers = trailers
            return False
        self._emit_end(call, trailers)
        return True

    def discard(self, call: H2Call) -> bool:
        """Drop what waits for the call; return whether there was anything."""
        if call.outbox is None:
            return False
        call.outbox = None
        self._waiting.pop(call, None)
        self._wait(-call.waiting_size - WAITING_CALL_SIZE)
        call.waiting_size = 0
        self._unread.answered_calls -= call.trailers is not None
        call.trailers = None
        return True

    # -- called when the peer or the transport allows more

    def widen(self, increment: int) -> None:
        """Enlarge the window of the connection. Raises PeerError."""
        if increment == 0:
            raise PeerError(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
        self._window += increment
        if self._window > WINDOW_MAX:
            raise PeerError(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window is too large")
        self.pump()

    def widened(self, call: H2Call) -> None:
        """Send more of a call whose window was enlarged. The cost must not depend on how many others wait."""
        if call.outbox is not None and call.send_window > 0:
            self._waiting.setdefault(call)
            self.pump()

    def resize_streams(self, initial_window: int, calls: Iterable[H2Call]) -> None:
        """Change the window of each stream; a window may become negative. Raises PeerError."""
        if initial_window > WINDOW_MAX:
            raise PeerError(ErrorCode.FLOW_CONTROL_ERROR, "initial window size above 2^31-1")
        change = initial_window - self._initial_window
        self._initial_window = initial_window
        for call in calls:
            call.send_window += change
            if call.outbox is not None and call.send_window > 0:
                self._waiting.setdefault(call)
            if call.send_window > WINDOW_MAX:
                raise PeerError(ErrorCode.FLOW_CONTROL_ERROR, "a stream's window became too large")
        if change > 0:
            self.pump()

    def pump(self) -> None:
        """Send what waits, one frame per call in turns, as far as the bounds allow.

        A call whose window is closed loses its turn until it is `widened`.
        """
        waiting = self._waiting
        lively: list[H2Call] = []
        while waiting and self._may_emit():
            call = next(iter(waiting))
            if call.send_window <= 0:
                del waiting[call]
                continue
            waiting.move_to_end(call)
            self._emit_one(call)
            if call.drain_callbacks and call.waiting_size <= self._stream_buffer_size // 2 and call not in lively:
                lively.append(call)
        for call in lively:
            call.drained()

    def take(self) -> list[bytes | memoryview]:
        """Return everything that is to be written now, in order."""
        taken, self._unwritten = self._unwritten, []
        self._unwritten_size = 0
        if self._beginning:
            beginning, self._beginning = self._beginning, []
            for call in beginning:
                call.has_begun = True
        if self._departing:
            departing, self._departing = self._departing, []
            for call in departing:
                call.left()
        return taken

    def depart(self, call: H2Call) -> None:
        """Note that the end of the call's answer leaves with the next `take`, or that the rest of it never does."""
        self._departing.append(call)

    def lose(self) -> None:
        """Report the answers that were not taken as lost."""
        self._beginning.clear()
        departing, self._departing = self._departing, []
        for call in departing:
            call.lost()

    # -- pace of the client

    @property
    def unread_size(self) -> int:
        return self.waiting_size + self._buffered_size

    @property
    def is_dragging(self) -> bool:
        return self._looks >= LOOKS_LEAST and self.unread_size > READ_WITHIN_S * self._pace

    def look_at_pace(self) -> None:
        self._pace, self._sent_seen = (self._pace + self._sent_size - self._sent_seen) / 2, self._sent_size
        self._looks += 1

    def refresh(self) -> None:
        buffered = 0 if self.outlet is None else self.outlet.buffered_size()
        if buffered != self._buffered_size:
            if not self.unread_size:
                self._begin_to_wait()
            grown, self._buffered_size = buffered - self._buffered_size, buffered
            self._unread.grew(self, grown)

    def give_up(self) -> None:
        if self.outlet is not None:
            self.outlet.give_up()

    # -- internals

    def _put(self, call: H2Call, data: bytes) -> None:
        """Send data of a call, now or when the bounds allow it."""
        rest = memoryview(data) if call.outbox is not None else self._emit(call, memoryview(data), len(data))
        if rest is None:
            return
        if call.outbox is None:
            call.outbox = deque()
            if call.send_window > 0:
                self._waiting[call] = None
            self._wait(WAITING_CALL_SIZE)
        call.outbox.append(rest)
        call.waiting_size += len(rest)
        self._wait(len(rest))

    def _wait(self, size: int) -> None:
        """Add to the bytes that wait for the peer, or subtract."""
        if not self.unread_size:
            self._begin_to_wait()
        self.waiting_size += size
        self._unread.grew(self, size)

    def _begin_to_wait(self) -> None:
        self._looks, self._pace, self._sent_seen = 0, 0.0, self._sent_size
        self.moved_in = self._unread.number

    def _may_emit(self) -> bool:
        return self._window > 0 and not self.is_paused and self._unwritten_size < UNWRITTEN_MAX

    def _emit_one(self, call: H2Call) -> None:
        """Send one frame of the call whose turn it is."""
        outbox = call.outbox
        assert outbox, "a call that has nothing to send is waiting"
        first = outbox.popleft()
        rest = self._emit(call, first, FRAME_SIZE_MAX)
        gone = len(first) - (0 if rest is None else len(rest))
        call.waiting_size -= gone
        self._wait(-gone)
        if rest is not None:
            outbox.appendleft(rest)
        elif not outbox:
            call.outbox = None
            del self._waiting[call]
            self._wait(-WAITING_CALL_SIZE)
            if call.trailers is not None:
                self._unread.answered_calls -= 1
                self._emit_end(call, call.trailers)
                call.calls.left(call)

    def _emit(self, call: H2Call, message: memoryview, size_max: int) -> memoryview | None:
        """Send DATA frames of up to `size_max` bytes in all, as far as the bounds allow; return the rest of the
        message.
        """
        position, end = 0, min(len(message), size_max)
        while position < end and self._may_emit():
            size = min(end - position, FRAME_SIZE_MAX, self._window, call.send_window)
            if size <= 0:
                break
            self.control(frames.FRAME_HEAD.pack(0, size, _DATA, 0, call.stream_id))
            self._unwritten.append(message[position : position + size])
            self._unwritten_size += size
            self._sent_size += size
            self.moved_in = self._unread.number
            self._window -= size
            call.send_window -= size
            self.data_frames += 1
            position += size
        if position and not call.has_begun:
            self._beginning.append(call)
        return message[position:] if position < len(message) else None

    def _emit_end(self, call: H2Call, trailers: bytes) -> None:
        head = b"" if call.headers_sent else RESPONSE_HEAD
        call.headers_sent = True
        self.control(frames.frame(FrameType.HEADERS, _END, call.stream_id, head + trailers))
        if not call.client_done:
            self.control(frames.reset(call.stream_id, ErrorCode.NO_ERROR))
