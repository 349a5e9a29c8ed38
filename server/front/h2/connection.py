"""The protocol engine: the meaning of a peer's bytes, without any I/O (RFC 9113; gRPC over HTTP/2).

Bytes come in by `receive`, calls go to the methods' handlers, frames come out of `sender.take`. All frames of one read
are handled together. Nothing here waits, and nothing knows asyncio; time is a number.

    receive ─→ frame by frame ─→ _HANDLERS ─→ open calls: handlers
                                          └─→ anything else: request_head.RULES

An error of the peer is a `PeerError`, raised anywhere below `receive` and turned there into a GOAWAY.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NoReturn

from quarry_mq.protocol.codes import GrpcStatus
from quarry_mq.protocol.h2 import frames
from quarry_mq.protocol.h2.frames import (
    FRAME_HEAD,
    FRAME_HEAD_SIZE,
    FRAME_SIZE_MAX,
    PREFACE,
    SETTING,
    SETTINGS_ACK,
    STREAM_MASK,
    U32,
    WINDOW_MAX,
    ErrorCode,
    Flag,
    FrameType,
    PeerError,
    Setting,
    check_dependency,
    unpadded,
)
from quarry_mq.protocol.h2.grpc_messages import MESSAGE_PREFIX_SIZE
from quarry_mq.protocol.h2.header_blocks import BlockDecoder, HuffmanCoded, PartialBlock
from quarry_mq.server.front.h2.call import Client, H2Call
from quarry_mq.server.front.h2.calls import CONNECTION_WINDOW, STREAMS_MAX, Calls
from quarry_mq.server.front.h2.greeting import HTTP_1_ANSWER, Greeting, answer_to_preface, greeting_in
from quarry_mq.server.front.h2.limits import CALLS_PER_FRAME, AbuseBudget
from quarry_mq.server.front.h2.request_head import (
    FAST_BLOCK_SIZE_MAX,
    RULES,
    TRANSITIONS,
    HeadReader,
    Malformed,
    NotGrpc,
    Outcome,
    Scanner,
    State,
    StreamState,
    TooLarge,
    check_trailers,
)
from quarry_mq.server.front.h2.sender import Sender
from quarry_mq.server.front.h2.switchboard import Switchboard

CONTINUATIONS_MAX: Final = 64
"""Frames that one header block may have; the size of the block is bounded as well."""

UNLIMITED: Final = 1 << 62
_HEADERS: Final = int(FrameType.HEADERS)

DECODED_BEYOND_LIMIT: Final = 4
"""Multiple of the size limit up to which header blocks are still decoded, so that only their call is refused."""


class Connection:
    """The protocol state of one client's connection. `notify` is called when `sender.take` has something to return."""

    def __init__(self, board: Switchboard, client: Client, notify: Callable[[], None]) -> None:
        self.sender = Sender(board.limits.stream_buffer_size, notify, board.unread)
        self.calls = Calls(board, client, self.sender)
        self.state = State.NEW
        self.frames_received = 0
        self.backlog_size = 0
        self.ended_with: PeerError | None = None
        self._board = board
        self._rest = b""  # bytes that came in and are not handled yet, from _begin on
        self._begin = 0
        self._block_size_max = DECODED_BEYOND_LIMIT * board.limits.max_metadata_size
        self._decoder = BlockDecoder(self._block_size_max)
        self._scanner = None if board.make_scanner is None else board.make_scanner(FAST_BLOCK_SIZE_MAX, HuffmanCoded)
        self._heads = HeadReader(self._decoder, board.limits.max_metadata_size, self._scanner, board.headers_kept)
        self._partial: PartialBlock | None = None
        self._expected: FrameType | None = FrameType.SETTINGS  # the type that the next frame must have
        self._last_stream_id = 0
        self._refuse_above = STREAM_MASK  # streams that our GOAWAY has excluded
        self._received = 0  # bytes of DATA that were not given back to the peer's window yet
        self._abuse_budget = AbuseBudget(board.clock())

    # -- bytes in

    def receive(self, data: bytes, frames_max: int = UNLIMITED, seconds_max: float = UNLIMITED) -> None:
        """Handle bytes from the peer, up to a number of frames and for some time. Never raises, whatever a peer sends.

        Afterwards `backlog_size` is 0, or the number of bytes that are kept for the next call to go on with.
        """
        self.calls.now_s = self._board.clock()
        if self.state is State.OVER:
            return
        self.backlog_size = 0
        if self._rest:
            data, self._begin = (self._rest[self._begin :] + data, 0) if data else (self._rest, self._begin)
        try:
            self._receive(data, self._begin, self.frames_received + frames_max, self.calls.now_s + seconds_max)
        except PeerError as error:
            self._end_connection(error)

    def _receive(self, data: bytes, position: int, frames_end: int, end_s: float) -> None:
        if self.state is State.NEW:
            if not self._read_preface(data):
                return
            position = len(PREFACE)
        end, clock = len(data), self._board.clock
        while end - position >= FRAME_HEAD_SIZE:
            high, low, kind, flags, stream_id = FRAME_HEAD.unpack_from(data, position)
            size = high << 16 | low
            if size > FRAME_SIZE_MAX:
                raise PeerError(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {size} bytes; {FRAME_SIZE_MAX} are allowed")
            start = position + FRAME_HEAD_SIZE
            if start + size > end:
                break
            if self.frames_received >= frames_end or clock() > end_s:
                self.backlog_size = end
                break
            if kind == _HEADERS and self._scanner is not None and self.state is State.OPEN and self._expected is None:
                found_end = self._take_found(self._scanner, data, position, frames_end, end_s)
                if found_end > position:
                    position = found_end
                    continue
            position = start + size
            self.frames_received += 1
            if self._expected is not None and kind != self._expected:
                raise PeerError(ErrorCode.PROTOCOL_ERROR, f"expected a frame {self._expected.name}")
            if kind < len(_HANDLERS):
                _HANDLERS[kind](self, flags, stream_id & STREAM_MASK, data, start, position)
            else:
                self._spend(1)
        # not cut off while more of it is to be handled: that would copy all of it in every turn
        self._rest, self._begin = (data, position) if self.backlog_size else (data[position:], 0)
        if self._received >= CONNECTION_WINDOW // 2:
            self.sender.control(frames.window_update(0, self._received))
            self._received = 0
        if not self.backlog_size:
            self.calls.read_ended()

    def _take_found(self, scanner: Scanner, data: bytes, position: int, frames_end: int, end_s: float) -> int:
        """Take what a scanner finds; return the end of the last frame that was taken."""
        calls, clock = self.calls, self._board.clock
        bounds = frames_end - self.frames_received, STREAMS_MAX - len(calls.open)
        size_max = self._board.limits.max_message_size
        for stream_id, head, message_start, end in scanner.scan(data, position, self._last_stream_id, bounds, size_max):
            position, start = end, message_start
            if head is not None:
                self._last_stream_id = stream_id
                self.frames_received += 1
                if start is not None and calls.take_found(stream_id, head, data[start:end]):
                    self.frames_received += 1
                    self._count_data(end - start + MESSAGE_PREFIX_SIZE)
                    start = None
                else:
                    calls.begin(stream_id, head, client_done=False)
            if start is not None:
                self.frames_received += 1
                self.on_data(Flag.END_STREAM, stream_id, data, start - MESSAGE_PREFIX_SIZE, end)
            if clock() > end_s:
                break
        return position

    def _read_preface(self, data: bytes) -> bool:
        """Return whether the preface is complete. Raises PeerError if it cannot become one."""
        match greeting_in(data):
            case Greeting.HTTP_1:
                self.sender.control(HTTP_1_ANSWER)
                self._move(State.OVER)
                return False
            case Greeting.ELSE:
                raise PeerError(ErrorCode.PROTOCOL_ERROR, "this is not HTTP/2")
            case Greeting.BEGINNING:
                self._rest = data
                return False
            case Greeting.PREFACE:
                pass
        self._move(State.GREETED)
        self.sender.control(answer_to_preface(self._board.limits.max_metadata_size))
        return True

    # -- frames

    def on_data(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        size = end - start
        self._count_data(size)
        call = self.calls.open.get(stream_id)
        if call is None or call.client_done:
            self._out_of_place(FrameType.DATA, stream_id, call)
            return
        if flags & Flag.PADDED:
            start, end = unpadded(data, start, end)
        if flags & Flag.END_STREAM:
            call.client_done = True
            if call.reader is None and not call.method.streaming_in:
                self.frames_received += self.calls.take_whole(call, data, start, end)
                return
        elif start == end:
            self._spend(1)
        self.frames_received += self.calls.take_part(call, memoryview(data)[start:end], size)

    def _count_data(self, size: int) -> None:
        self._received += size
        if self._received > CONNECTION_WINDOW:
            raise PeerError(ErrorCode.FLOW_CONTROL_ERROR, "more data than the connection's window")

    def on_headers(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        if stream_id & 1 == 0:
            raise PeerError(ErrorCode.PROTOCOL_ERROR, f"HEADERS on stream {stream_id}")
        if flags & Flag.PADDED:
            start, end = unpadded(data, start, end)
        if flags & Flag.PRIORITY:
            check_dependency(stream_id, data, start, end)
            start += 5
        if flags & Flag.END_HEADERS:
            self._header_block(stream_id, flags, data[start:end])
        else:
            self._partial = PartialBlock(stream_id, flags, data[start:end])
            self._expected = FrameType.CONTINUATION
            self._keep_partial(end - start)

    def on_continuation(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        partial = self._partial
        if partial is None or partial.stream_id != stream_id:
            raise PeerError(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without a header block")
        partial.continuations += 1
        partial.block += data[start:end]
        self._keep_partial(end - start)
        if partial.continuations > CONTINUATIONS_MAX or len(partial.block) > self._block_size_max:
            raise PeerError(ErrorCode.ENHANCE_YOUR_CALM, "a header block is too large")
        if flags & Flag.END_HEADERS:
            self._expected = None
            self._drop_partial()
            self._header_block(stream_id, partial.flags, bytes(partial.block))

    def _keep_partial(self, size: int) -> None:
        """Account for another part of an incomplete header block."""
        if not self.calls.hold_block(size):
            self._board.stats.limits_met["incoming_size"] += 1
            raise PeerError(ErrorCode.ENHANCE_YOUR_CALM, "too much request data is in transit")

    def _drop_partial(self) -> None:
        partial, self._partial = self._partial, None
        if partial is not None:
            self.calls.drop_block(len(partial.block))

    def on_priority(self, _flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        self._spend(1)
        if stream_id == 0:
            raise PeerError(ErrorCode.PROTOCOL_ERROR, "PRIORITY on stream 0")
        if end - start != 5:
            raise PeerError(ErrorCode.FRAME_SIZE_ERROR, "PRIORITY has 5 bytes")
        check_dependency(stream_id, data, start, end)

    def on_rst_stream(self, _flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        self._spend(1)
        if stream_id == 0 or end - start != 4:
            raise PeerError(
                ErrorCode.FRAME_SIZE_ERROR if stream_id else ErrorCode.PROTOCOL_ERROR, "RST_STREAM is malformed"
            )
        (code,) = U32.unpack_from(data, start)
        self._board.stats.resets_received[_code_name(code)] += 1
        call = self.calls.open.get(stream_id)
        if call is None:
            self._out_of_place(FrameType.RST_STREAM, stream_id, None)
        else:
            self.calls.cancel(call)

    def on_settings(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        self._spend(1 + (end - start) // SETTING.size)
        if stream_id:
            raise PeerError(ErrorCode.PROTOCOL_ERROR, "SETTINGS on a stream")
        if (end - start) % SETTING.size or (flags & Flag.ACK and end > start):
            raise PeerError(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS is malformed")
        if self._expected is not None:  # it is the first frame; the connection may already be draining
            if flags & Flag.ACK:
                raise PeerError(ErrorCode.PROTOCOL_ERROR, "the first frame must be SETTINGS")
            self._expected = None
            if self.state is State.GREETED:
                self._move(State.OPEN)
        if flags & Flag.ACK:
            self._decoder.settings_acknowledged()
            return
        self.sender.control(SETTINGS_ACK)  # before frames that a larger window releases
        for position in range(start, end, SETTING.size):
            self._apply_setting(*SETTING.unpack_from(data, position))

    def _apply_setting(self, setting: int, value: int) -> None:
        """Apply a setting of the peer. Settings that only bound what servers may initiate have no effect here."""
        if setting == Setting.INITIAL_WINDOW_SIZE:
            self._spend(len(self.calls.open) // CALLS_PER_FRAME)
            self.sender.resize_streams(value, self.calls.open.values())
        elif setting == Setting.MAX_FRAME_SIZE and not FRAME_SIZE_MAX <= value <= 0xFF_FFFF:
            raise PeerError(ErrorCode.PROTOCOL_ERROR, f"MAX_FRAME_SIZE {value}")
        elif setting == Setting.ENABLE_PUSH and value > 1:
            raise PeerError(ErrorCode.PROTOCOL_ERROR, f"ENABLE_PUSH {value}")

    def on_push_promise(self, _flags: int, _stream_id: int, _data: bytes, _start: int, _end: int) -> NoReturn:
        raise PeerError(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE from a client")

    def on_ping(self, flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        self._spend(1)
        if stream_id or end - start != 8:
            raise PeerError(ErrorCode.PROTOCOL_ERROR if stream_id else ErrorCode.FRAME_SIZE_ERROR, "PING is malformed")
        if not flags & Flag.ACK:
            self.sender.control(frames.ping(data[start:end], ack=True))
        elif data[start:end] == _DRAIN_PING:
            self._exclude_new_streams()

    def on_goaway(self, _flags: int, stream_id: int, _data: bytes, start: int, end: int) -> None:
        """Accept that the client opens no more streams; its open streams go on."""
        self._spend(1)
        if stream_id or end - start < 8:
            raise PeerError(
                ErrorCode.PROTOCOL_ERROR if stream_id else ErrorCode.FRAME_SIZE_ERROR, "GOAWAY is malformed"
            )

    def on_window_update(self, _flags: int, stream_id: int, data: bytes, start: int, end: int) -> None:
        self._spend(1)
        if end - start != 4:
            raise PeerError(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE has 4 bytes")
        increment = U32.unpack_from(data, start)[0] & WINDOW_MAX
        if not stream_id:
            self.sender.widen(increment)
            return
        call = self.calls.open.get(stream_id)
        if call is None:
            self._out_of_place(FrameType.WINDOW_UPDATE, stream_id, None)
            return
        call.send_window += increment
        if increment == 0:
            self.calls.reset(call, ErrorCode.PROTOCOL_ERROR)
        elif call.send_window > WINDOW_MAX:
            self.calls.reset(call, ErrorCode.FLOW_CONTROL_ERROR)
        else:
            self.sender.widened(call)

    def _out_of_place(self, kind: FrameType, stream_id: int, call: H2Call | None) -> None:
        """Handle a frame on a stream that is not simply open, by `RULES`."""
        self._spend(1)
        if stream_id == 0:
            raise PeerError(ErrorCode.PROTOCOL_ERROR, f"{kind.name} on stream 0")
        if call is not None:
            state = StreamState.HALF_CLOSED
        elif stream_id > self._last_stream_id or stream_id & 1 == 0:
            state = StreamState.IDLE
        else:
            state = StreamState.RESET if self.calls.was_reset(stream_id) else StreamState.CLOSED
        rule = RULES[state, kind]
        if rule.outcome is Outcome.END_CONNECTION:
            raise PeerError(rule.code, f"{kind.name} on stream {stream_id}, which is {state.value}")
        if rule.outcome is Outcome.RESET_STREAM:
            if call is not None:
                self.calls.reset(call, rule.code)
            else:
                self.calls.send_reset(stream_id, rule.code)

    # -- header blocks

    def _header_block(self, stream_id: int, flags: int, block: bytes) -> None:
        """Handle a complete header block: of a new call, or the trailers of an open one."""
        if len(block) > self._block_size_max:
            raise PeerError(ErrorCode.ENHANCE_YOUR_CALM, "a header block is too large")
        if stream_id <= self._last_stream_id:
            self._trailers(stream_id, flags, block)
            return
        self._last_stream_id = stream_id
        client_done = flags & Flag.END_STREAM != 0
        try:
            head = self._heads.read(block)
        except Malformed:
            self._spend(1)
            self.calls.send_reset(stream_id, ErrorCode.PROTOCOL_ERROR)
        except TooLarge:
            self._board.stats.limits_met["metadata_size"] += 1
            self.calls.refuse(
                stream_id, GrpcStatus.RESOURCE_EXHAUSTED, "the request headers are too large", client_done
            )
        except NotGrpc as refusal:
            self.calls.refuse_http(stream_id, refusal, client_done)
        else:
            if stream_id > self._refuse_above or len(self.calls.open) >= STREAMS_MAX:
                self._spend(1)
                self._board.stats.limits_met["calls_per_connection"] += stream_id <= self._refuse_above
                self.calls.send_reset(stream_id, ErrorCode.REFUSED_STREAM)
            else:
                self.calls.begin(stream_id, head, client_done)

    def _trailers(self, stream_id: int, flags: int, block: bytes) -> None:
        fields = self._decoder.decode(block)  # decoded in any case, to keep the peer's table up to date
        call = self.calls.open.get(stream_id)
        if call is None or call.client_done:
            self._out_of_place(FrameType.HEADERS, stream_id, call)
            return
        try:
            check_trailers(fields)
        except Malformed:
            flags = 0
        if flags & Flag.END_STREAM:
            self.calls.end_of_request(call)
        else:
            self.calls.reset(call, ErrorCode.PROTOCOL_ERROR)

    # -- the end of the connection

    def drain(self) -> None:
        """Accept no new calls, except those that the peer opens before it has answered our PING (§6.8)."""
        if self.state in (State.OPEN, State.GREETED):
            self._move(State.DRAINING)
            self.sender.control(frames.go_away(STREAM_MASK, ErrorCode.NO_ERROR) + frames.ping(_DRAIN_PING, ack=False))

    @property
    def is_used(self) -> bool:
        """Return whether the peer has begun a call yet."""
        return self._last_stream_id > 0

    @property
    def awaits_late_calls(self) -> bool:
        """Return whether the peer may have opened calls before it read that it must not open more."""
        return self.state is State.DRAINING and self._refuse_above == STREAM_MASK

    def probe(self) -> None:
        """Ask the peer for a sign of life; `frames_received` grows when it comes."""
        self.sender.control(frames.ping(_PROBE_PING, ack=False))

    def end(self, code: ErrorCode, reason: str) -> None:
        """End the connection with a GOAWAY. Open calls are lost."""
        if self.state is not State.OVER:
            self._end_connection(PeerError(code, reason))

    def stop(self) -> None:
        """End the open calls and the connection, since the server stops."""
        for call in list(self.calls.open.values()):
            self.calls.fail(call, GrpcStatus.UNAVAILABLE, "the server is stopping")
        self.end(ErrorCode.NO_ERROR, "the server is stopping")

    def lost(self) -> None:
        """End the connection after its transport was lost."""
        if self.state is not State.OVER:
            self._move(State.OVER)
        self._drop_partial()
        self.calls.lose_all()

    def _exclude_new_streams(self) -> None:
        """Refuse new streams from now on, since the peer knows of the drain. Streams opened until here are served."""
        if self.awaits_late_calls:
            self._refuse_above = self._last_stream_id
            self.sender.control(frames.go_away(self._last_stream_id, ErrorCode.NO_ERROR))

    def _end_connection(self, error: PeerError) -> None:
        # a new object: the one raised refers to its frames, also by its cause, and so to everything that was read
        self.ended_with = PeerError(error.code, error.reason)
        self._rest, self.backlog_size = b"", 0
        self._drop_partial()
        self._move(State.OVER)
        self.calls.lose_all()
        self.sender.control(frames.go_away(self._last_stream_id, error.code, error.reason))

    def _spend(self, amount: int) -> None:
        """Charge the peer for a frame that carries nothing useful."""
        calls = self.calls
        if not self._abuse_budget.spend(amount, calls.messages + self.sender.data_frames, calls.now_s):
            self._board.stats.limits_met["frames_that_carry_nothing"] += 1
            raise PeerError(ErrorCode.ENHANCE_YOUR_CALM, "too many frames without content")

    def _move(self, state: State) -> None:
        if state not in TRANSITIONS[self.state]:
            raise AssertionError(f"from {self.state} to {state}")
        self.state = state


def _code_name(code: int) -> str:
    return ErrorCode(code).name if code in ErrorCode._value2member_map_ else "UNKNOWN"


_DRAIN_PING: Final = b"drained?"
_PROBE_PING: Final = b"alive?\0\0"

_HANDLERS: Final[tuple[Callable[[Connection, int, int, bytes, int, int], None], ...]] = (
    Connection.on_data,
    Connection.on_headers,
    Connection.on_priority,
    Connection.on_rst_stream,
    Connection.on_settings,
    Connection.on_push_promise,
    Connection.on_ping,
    Connection.on_goaway,
    Connection.on_window_update,
    Connection.on_continuation,
)
"""The handler of each frame, by frame type."""
