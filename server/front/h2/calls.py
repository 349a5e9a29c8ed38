"""The open calls of one connection: how they begin, get their messages, and end."""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from typing import Final

import structlog

from quarry_mq.protocol.codes import GrpcStatus
from quarry_mq.protocol.h2 import frames
from quarry_mq.protocol.h2.frames import ErrorCode, Flag, FrameType
from quarry_mq.protocol.h2.grpc_messages import (
    MESSAGE_PREFIX,
    MESSAGE_PREFIX_SIZE,
    NOT_GRPC_TEXT,
    RESPONSE_HEAD,
    BadMessage,
    MessageReader,
    http_refusal,
    timeout_s,
    trailers,
    with_prefix,
)
from quarry_mq.protocol.h2.header_blocks import decoded
from quarry_mq.server.front.contract import Method, told_of
from quarry_mq.server.front.fairness import address_of
from quarry_mq.server.front.h2.call import Client, H2Call
from quarry_mq.server.front.h2.request_head import NotGrpc, RequestHead
from quarry_mq.server.front.h2.sender import Sender
from quarry_mq.server.front.h2.switchboard import Switchboard

log = structlog.get_logger(__name__)

STREAMS_MAX: Final = 10_000
"""Calls that one client may have open: a client library keeps a receive open for each queue that it reads."""

STREAM_WINDOW: Final = 1024 * 1024
"""Bytes that a client may send for one call before the broker has accepted them."""

CONNECTION_WINDOW: Final = 16 * 1024 * 1024
"""Bytes that a client may send for all calls together: enough for one message of the largest size at full speed."""

UNPACKED_BYTES_PER_FRAME: Final = 256
"""Uncompressed bytes of messages that cost a peer as much of its turn as a frame.

A message of 64 KiB compressed to a hundred bytes costs a whole turn: the work of uncompressing is not bounded by the
size of what was sent.
"""

RESETS_REMEMBERED: Final = 256
"""Streams reset by the broker whose late frames are ignored. Later frames of others get a reset again, which is
harmless.
"""


OK: Final = GrpcStatus.OK
_NOT_GRPC: Final = Method(lambda _call, _body: None)
"""Method of a request that names none."""


class Calls:
    """Holds the open calls of a connection. `open` has them by stream id, until all of their answer has left or is
    lost.
    """

    __slots__ = (
        "_address",
        "_awaiting",
        "_board",
        "_buffered_size",
        "_is_watched",
        "_newest_taken",
        "_resets",
        "block_since_s",
        "client",
        "clock",
        "messages",
        "now_s",
        "open",
        "sender",
        "soon",
        "stream_buffer_size",
    )

    def __init__(self, board: Switchboard, client: Client, sender: Sender) -> None:
        self.client = client
        self.clock = board.clock
        self.soon = board.soon
        self.stream_buffer_size = board.limits.stream_buffer_size
        self.sender = sender
        self.open: dict[int, H2Call] = {}
        self.now_s = board.clock()
        self.messages = 0
        self.block_since_s: float | None = None
        """Time since when a header block is incomplete, or None."""
        self._board = board
        self._address = address_of(client.host)
        self._buffered_size = 0
        self._awaiting: list[H2Call] = []  # begun in this read; the request has not come with the headers
        self._resets: dict[int, None] = {}
        self._is_watched = False
        self._newest_taken = 0

    # -- the beginning of calls

    def begin(self, stream_id: int, head: RequestHead, client_done: bool) -> None:  # noqa: FBT001
        """Begin a new call, or refuse it."""
        board = self._board
        stats = board.stats
        stats.calls += 1
        path, fields = head
        served = board.methods.get(path)
        timeout = fields.get(b"grpc-timeout")
        try:
            if served is None:
                raise BadMessage(GrpcStatus.UNIMPLEMENTED, "no such method")
            if board.is_full:
                raise BadMessage(GrpcStatus.RESOURCE_EXHAUSTED, "too many calls are open", "open_calls")
            remaining_s = None if timeout is None else timeout_s(decoded(timeout))
        except BadMessage as bad:
            self._count(bad.limit)
            self.refuse(stream_id, bad.status, bad.reason, client_done)
            return
        call = H2Call(self, stream_id, served, fields, remaining_s)
        call.client_done = client_done
        self._add(call)
        if b"content-length" in fields:
            call.is_unusual = True
        method = call.method
        if method.streaming_in:
            if method.on_open is not None:
                self._run(call, method.on_open)
            if not call.closed:
                self.sender.open(call)
        if client_done:
            self.end_of_request(call)
        else:
            self._awaiting.append(call)

    def read_ended(self) -> None:
        """End a read, all of which is handled: calls begun in it without a request may stay open for long."""
        awaiting, self._awaiting = self._awaiting, []
        for call in awaiting:
            if not call.client_done and not call.is_over:
                self._admit(call, is_message_there=False)
                self.hold_headers(call)

    def hold_headers(self, call: H2Call) -> None:
        """Account for the headers of a call that stays open."""
        if not call.head_size and not call.is_over:
            call.head_size = call.fields_size
            self._account(call)

    def _admit(self, call: H2Call, *, is_message_there: bool) -> None:
        """Call the method's `admit`, once, before anything of the request is kept or uncompressed."""
        admit = call.method.admit
        if admit is not None and not call.is_admitted and (is_message_there or not call.method.streaming_in):
            call.is_admitted = True
            self._run(call, admit)

    def take_found(self, stream_id: int, head: RequestHead, body: bytes) -> bool:
        """Take a call that came in completely, as `begin` and `take_whole` would. Return False if it needs these."""
        board = self._board
        stats = board.stats
        path, fields = head
        served = board.methods.get(path)
        if served is None or served[1].streaming_in or board.is_full:
            return False
        size_max = served[1].size_max
        if size_max is not None and len(body) > size_max:
            return False
        timeout = fields.get(b"grpc-timeout")
        try:
            remaining_s = None if timeout is None else timeout_s(decoded(timeout))
        except BadMessage:
            return False
        stats.calls += 1
        call = H2Call(self, stream_id, served, fields, remaining_s)
        call.client_done = True
        self._add(call)
        self._deliver(call, body)
        return True

    def refuse(self, stream_id: int, status: GrpcStatus, message: str, client_done: bool) -> None:  # noqa: FBT001
        """Answer a call that is not begun."""
        self._board.stats.calls_failed[status] += 1
        self._answer_in_one(stream_id, RESPONSE_HEAD + trailers(status, message), client_done)

    def refuse_http(self, stream_id: int, refusal: NotGrpc, client_done: bool) -> None:  # noqa: FBT001
        """Answer a request that is not a gRPC call, once it has ended: it must be valid HTTP/2 to its end."""
        call = H2Call(self, stream_id, ("", _NOT_GRPC), refusal.fields, None)
        call.http_status = refusal.http_status
        call.is_unusual = True
        self._add(call)
        if client_done:
            self.end_of_request(call)
        else:
            self._board.refuse_later(call)

    def answer_http(self, call: H2Call) -> None:
        """Answer a request that it is not a gRPC call."""
        self._board.remove_refused(call)
        if self.sender.refusal(call, http_refusal(call.http_status), NOT_GRPC_TEXT):
            self._remove(call, GrpcStatus.INVALID_ARGUMENT)
        call.lost()

    def _add(self, call: H2Call) -> None:
        self.open[call.stream_id] = call
        self._board.stats.calls_open += 1
        if not self._is_watched:
            self._is_watched = True
            self._board.watch(self)

    def take_new(self) -> list[H2Call]:
        """Return the open calls that have begun since the last time this was called."""
        self._is_watched = False
        newest_taken = self._newest_taken
        new = list(takewhile(lambda call: call.stream_id > newest_taken, reversed(self.open.values())))
        if new:
            self._newest_taken = new[0].stream_id
        return new

    def _answer_in_one(self, stream_id: int, block: bytes, client_done: bool) -> None:  # noqa: FBT001
        self.sender.control(frames.frame(FrameType.HEADERS, Flag.END_HEADERS | Flag.END_STREAM, stream_id, block))
        if not client_done:
            self.send_reset(stream_id, ErrorCode.NO_ERROR)

    # -- the messages of calls

    def take_whole(self, call: H2Call, data: bytes, start: int, end: int) -> int:
        """Take the one message of a call, all in one frame, which ends the request. Returns the same as `take_part`."""
        if call.closed:
            return 0
        body_start = start + MESSAGE_PREFIX_SIZE
        if body_start > end or call.is_unusual:
            return self.take_part(call, memoryview(data)[start:end], end - start)
        flag, size = MESSAGE_PREFIX.unpack_from(data, start)
        body = data[body_start:end]
        if flag or size != len(body) or size > self._size_max(call):
            return self.take_part(call, memoryview(data)[start:end], end - start)
        self._deliver(call, body)
        return 0

    def take_part(self, call: H2Call, data: memoryview, frame_size: int) -> int:
        """Take data of a stream, which may hold a part of a message or several messages.

        Returns what this costs beside the frame, in frames.
        """
        cost = 0
        call.received += frame_size
        if call.received > STREAM_WINDOW:
            self.reset(call, ErrorCode.FLOW_CONTROL_ERROR)
            return cost
        if not call.closed:
            self._admit(call, is_message_there=True)
        if not call.closed:
            reader = call.reader
            if reader is None:
                reader = call.reader = MessageReader(decoded(call.field(b"grpc-encoding")), self._size_max(call))
            before = reader.unpacked_size
            try:
                self._read(call, reader, data)
            except BadMessage as bad:
                self._count(bad.limit)
                self.fail(call, bad.status, bad.reason)
            cost = (reader.unpacked_size - before) // UNPACKED_BYTES_PER_FRAME
            self._account(call)
        if call.received >= STREAM_WINDOW // 2 and not call.client_done and call.stream_id in self.open:
            self.sender.control(frames.window_update(call.stream_id, call.received))
            call.received = 0
        return cost

    def _size_max(self, call: H2Call) -> int:
        return call.method.message_size_max(self._board.limits)

    def end_of_request(self, call: H2Call) -> None:
        """End the client's side of the call: it has sent everything."""
        call.client_done = True
        if call.closed:
            return
        reader = call.reader
        length = call.field(b"content-length")
        if length and int(decoded(length)) != (0 if reader is None else reader.total_size):
            self.reset(call, ErrorCode.PROTOCOL_ERROR)
            return
        if call.http_status:
            self.answer_http(call)
            return
        try:
            if call.method.streaming_in:
                if reader is not None and reader.size:
                    raise BadMessage(GrpcStatus.INTERNAL, "the request ends in the middle of a message")
                if call.method.on_half_close is not None:
                    self._run(call, call.method.on_half_close)
                return
            message = None if reader is None else reader.take()
            if reader is None or message is None or reader.size:
                raise BadMessage(GrpcStatus.INTERNAL, "the request is not exactly one message")
        except BadMessage as bad:
            self._count(bad.limit)
            self.fail(call, bad.status, bad.reason)
        else:
            call.reader = None
            self._deliver(call, message)

    def _read(self, call: H2Call, reader: MessageReader, data: memoryview) -> None:
        if call.http_status:
            reader.skip(data)
        else:
            reader.feed(data)
        if call.method.streaming_in:
            while not call.closed and (message := reader.take()) is not None:
                self._deliver(call, message)
        if call.client_done:
            self.end_of_request(call)

    def _deliver(self, call: H2Call, body: bytes) -> None:
        self.messages += 1
        method = call.method
        try:
            method.handler(call, body)
        except Exception:  # noqa: BLE001 - logged there
            self._fault(call)
        if method.streaming_out and not call.closed:
            self.sender.open(call)  # the Rust client does nothing before it has seen the response headers

    def _run(self, call: H2Call, step: Callable[[H2Call], None]) -> None:
        """Run one step of a handler. A handler that raises ends its call, never the server."""
        try:
            step(call)
        except Exception:  # noqa: BLE001 - logged there
            self._fault(call)

    def _fault(self, call: H2Call) -> None:
        log.exception("handler failed", **told_of(call))
        self.fail(call, GrpcStatus.INTERNAL, "internal error")

    def _account(self, call: H2Call) -> None:
        """Keep the size of incomplete requests within bounds: of this connection, and of all."""
        size = 0
        if not call.is_over:
            size = call.head_size + (0 if call.reader is None else call.reader.size)
        grown, call.buffered_size = size - call.buffered_size, size
        if not self.hold(grown):
            self._count("incoming_size")
            self.fail(call, GrpcStatus.RESOURCE_EXHAUSTED, "too many large messages at once")

    def hold(self, grown: int) -> bool:
        """Add to the bytes held of requests, or subtract; return False if that is too much."""
        board = self._board
        self._buffered_size += grown
        board.incoming.grew(self._address, grown)
        return grown <= 0 or not board.incoming.is_too_much(board.limits, self._address, self._buffered_size)

    def hold_block(self, size: int) -> bool:
        """Add to the bytes of incomplete header blocks; return False if all connections together have too many.

        They do not use the bound of requests, since it is not known which call an incomplete block belongs to.
        """
        if self.block_since_s is None:
            self.block_since_s = self.now_s
        board = self._board
        board.incoming.blocks_size += size
        return board.incoming.blocks_size <= board.limits.max_message_size

    def drop_block(self, size: int) -> None:
        """Remove the bytes of a header block that has ended, or never will."""
        self.block_since_s = None
        self._board.incoming.blocks_size -= size

    def _count(self, limit: str | None) -> None:
        """Count a refusal if it was because of a limit."""
        if limit is not None:
            self._board.stats.limits_met[limit] += 1

    # -- the end of calls

    def answer(self, call: H2Call, body: bytes) -> None:
        """Answer a unary call."""
        if self.sender.answer(call, body):
            if not call.client_done:
                self.send_reset(call.stream_id, ErrorCode.NO_ERROR)  # the rest of the request is not needed
            self._remove(call, OK)
        else:
            self.stream(call, with_prefix(body))
            self.end(call, GrpcStatus.OK, "")

    def stream(self, call: H2Call, packed: bytes) -> None:
        """Send packed messages of an answer, or end the call if too much waits for the client to read it."""
        if self._board.unread.is_too_much:
            self._board.unread.relieve()
            if call.closed:
                return
        if self.sender.is_full:
            self._lose_unread(call)
        else:
            self.sender.messages(call, packed)

    def _lose_unread(self, call: H2Call) -> None:
        self._count("unread_size")
        self.fail(call, GrpcStatus.RESOURCE_EXHAUSTED, "too many answers wait to be read by this client")

    def lose_waiting(self) -> None:
        """End the calls whose answers wait for the client to read them."""
        for call in list(self.open.values()):
            if call.outbox is not None:
                self._lose_unread(call)

    def end(self, call: H2Call, status: GrpcStatus, message: str) -> None:
        """End a call for its handler. What the handler sent before may still wait."""
        if call.is_over:
            return
        if self.sender.end(call, trailers(status, message)):
            self._remove(call, status)
            self.sender.depart(call)
        else:
            call.ended_with = status

    def left(self, call: H2Call) -> None:
        """End a call of which the last waiting byte has gone."""
        self._remove(call, call.ended_with)
        self.sender.depart(call)

    def fail(self, call: H2Call, status: GrpcStatus, message: str) -> None:
        """End a call whatever its handler does."""
        if call.is_over:
            return
        if self.sender.discard(call):
            self.send_reset(call.stream_id, ErrorCode.CANCEL)  # trailers would end a message in its middle
        else:
            self.sender.end(call, trailers(status, message))
        self._remove(call, status)
        call.lost()

    def expire(self, call: H2Call) -> None:
        self.fail(call, GrpcStatus.DEADLINE_EXCEEDED, "the deadline has passed")

    def reset(self, call: H2Call, code: ErrorCode) -> None:
        """End the stream of a call whose client broke a rule."""
        self.cancel(call)
        self.send_reset(call.stream_id, code)

    def cancel(self, call: H2Call) -> None:
        """End a call whose client, or its connection, does not wait for the answer any more."""
        call.client_done = True
        self.sender.discard(call)
        self._remove(call, GrpcStatus.CANCELLED)
        call.lost()

    def lose_all(self) -> None:
        self._awaiting.clear()
        self._resets.clear()
        for call in list(self.open.values()):
            self.cancel(call)
        self.sender.lose()

    def send_reset(self, stream_id: int, code: ErrorCode) -> None:
        self._board.stats.resets_sent[code.name] += 1
        self.sender.control(frames.reset(stream_id, code))
        self._remember_reset(stream_id)

    def was_reset(self, stream_id: int) -> bool:
        """Return whether the broker has recently ended the stream while its client was still sending."""
        return stream_id in self._resets

    def _remember_reset(self, stream_id: int) -> None:
        resets = self._resets
        resets[stream_id] = None
        if len(resets) > RESETS_REMEMBERED:
            del resets[next(iter(resets))]

    def _remove(self, call: H2Call, status: GrpcStatus) -> None:
        """Remove a call that has ended, and everything that is accounted for it."""
        if self.open.pop(call.stream_id, None) is None:
            return
        board = self._board
        board.stats.calls_open -= 1
        if call.http_status:
            board.remove_refused(call)
        if status is not OK:
            board.stats.calls_failed[status] += 1
        if not call.client_done:
            self._remember_reset(call.stream_id)
        if call.buffered_size:
            call.reader = None
            self._account(call)
        if board.call_ended is not None:
            board.call_ended(call, status)
