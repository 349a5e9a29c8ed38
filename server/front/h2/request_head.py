"""Reading of request headers, checked by the rules of HTTP/2 and gRPC, and the states of connections and streams.

A client sends the same fields with every call, except for a few (its request id, the time, a signature). So each
connection learns, per method, the run of fields at the start of a block that does not change. A block that begins with
a known run is checked already; of the rest only the names are looked up. Everything unknown takes the slow path,
`check`, which is the only place that knows the rules.

The native scanner (`native/src/calls.rs`) finds the frames of unary calls in one pass. It knows what the `HeadReader`
of its connection has learned. It finds header blocks that are known to be valid as a whole, and messages that are all
of their request, each in one frame and uncompressed. Most calls consist of these two frames, which follow each other
unless the client writes from several threads.

The fast path knows open calls. Every other case is looked up in the rules for frames on a stream that is not simply
open (RFC 9113 §5.1); `docs/front.md` shows the same table.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple, Protocol

from quarry_mq.protocol.h2.frames import ErrorCode, FrameType
from quarry_mq.protocol.h2.header_blocks import (
    BlockDecoder,
    Field,
    HuffmanCoded,
    decoded,
    integer,
    size_of,
)

RequestHead = tuple[bytes, dict[bytes, bytes]]
"""A checked request: its path and its regular fields, the last one of each repeated name.

The values may still be Huffman coded (`header_blocks.text_of`). It is a plain tuple, because one is created per call.
"""

Found = tuple[int, RequestHead | None, int | None, int]
"""A frame, or the two frames of a complete call.

The items are the stream id, the head that the header block stands for, the position of the message without its prefix,
and the end of the frames. None stands for a missing frame.
"""


class Scanner(Protocol):
    """The scanner of one connection. It learns as `HeadReader` does."""

    def learn_run(self, block: bytes, path: bytes, fields: dict[bytes, bytes], /) -> None:
        """Learn that this start of a block stands for the path and these fields. A run with a content length is not
        taken.
        """

    def evict_run(self, block: bytes, /) -> None: ...

    def learn_name(self, raw_name: bytes, name: bytes, /) -> None:
        """Learn a field that is valid with any value. Without a name it is not kept."""

    def learn_field(self, raw_field: bytes, name: bytes, /) -> None:
        """Learn a field that is valid with this value. Without a name it is not kept."""

    def scan(
        self,
        data: bytes,
        position: int,
        last_stream_id: int,
        frames_and_blocks_max: tuple[int, int],
        message_size_max: int,
        /,
    ) -> list[Found]:
        """Return the calls from `position` on, up to the first frame of another kind or the first incomplete one."""


class ScannerMaker(Protocol):
    def __call__(self, block_size_max: int, huffman_coded: type[bytes], /) -> Scanner:
        """Return a scanner. `huffman_coded` is the type that wraps Huffman-coded values."""


RUNS_MAX: Final = 16
"""Runs that a connection remembers: a client uses a dozen methods."""

FIELDS_KNOWN_MAX: Final = 64
"""Encoded names that a connection remembers, and as many whole fields."""

KNOWN_FIELD_SIZE_MAX: Final = 64
FAST_BLOCK_SIZE_MAX: Final = 2_048
"""Bytes of the largest block that is learned from or read on the fast path.

With the bounds above, what is remembered of a peer takes less than 100 KiB, whatever it sends. Blocks of the official
clients have 300 to 700 bytes.
"""

CONTENT_TYPE: Final = b"content-type"
GRPC_CONTENT_TYPE: Final = re.compile(rb"application/grpc(?:[+;].*)?")
CONTENT_LENGTH_DIGITS_MAX: Final = 18
_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_OF_THE_CONNECTION: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)
OWN_HEADERS: Final = frozenset((CONTENT_TYPE, b"content-length", b"grpc-encoding", b"grpc-timeout"))
"""The headers that the engine itself reads."""

NOT_KEPT: Final = b""
"""Replaces the name of a field that is valid and that no handler reads."""

_NEVER_PLAIN: Final = frozenset((b"te", CONTENT_TYPE, b"content-length"))
_PSEUDO: Final = frozenset((b":method", b":scheme", b":path", b":authority"))
_REQUIRED: Final = frozenset((b":method", b":scheme", b":path"))


class Malformed(Exception):
    """The request violates HTTP/2: its stream is reset with PROTOCOL_ERROR (RFC 9113 §8.1.1)."""


class NotGrpc(Exception):
    """The request is valid HTTP but not a gRPC call: it is answered with an HTTP status."""

    def __init__(self, http_status: int, fields: dict[bytes, bytes]) -> None:
        super().__init__(f"HTTP status {http_status}")
        self.http_status = http_status
        self.fields = fields


class TooLarge(Exception):
    """The request has more bytes of fields than a front accepts: it is refused with a gRPC status."""


class HeadReader:
    """Reads the header blocks of one connection, in order."""

    def __init__(
        self,
        decoder: BlockDecoder,
        size_max: int,
        scanner: Scanner | None = None,
        kept: Container[bytes] | None = None,
    ) -> None:
        """`scanner` is told what is learned. Fields outside `kept` are checked and then dropped."""
        self._kept = kept
        self._decoder = decoder
        self._scanner = scanner
        self._size_max = size_max
        self._runs: dict[bytes, RequestHead] = {}
        self._run_lengths: list[int] = []  # the one that matched last comes first
        self._run_of_path: dict[bytes, bytes] = {}
        self._last_block_of_path: dict[bytes, bytes] = {}
        self._plain_names: dict[bytes, bytes] = {}  # raw name → name or NOT_KEPT, of fields valid with any value
        self._sound_fields: dict[bytes, bytes] = {}  # whole raw field → name, of fields valid with this value

    def read(self, block: bytes) -> RequestHead:
        """Return the request that the block begins.

        Raises Malformed, NotGrpc and TooLarge, which concern this stream only; PeerError, which ends the connection.
        """
        lengths = self._run_lengths if len(block) <= FAST_BLOCK_SIZE_MAX else []
        run: RequestHead | None = None
        for number, length in enumerate(lengths):
            run = self._runs.get(block[:length])
            if run is not None:
                if number:
                    lengths.insert(0, lengths.pop(number))
                path, fields = run[0], run[1].copy()
                if self._read_rest(block, length, fields) and CONTENT_TYPE in fields:
                    return path, fields
                break
        decoded_fields = self._decoder.decode(block)
        if size_of(decoded_fields) > self._size_max:
            raise TooLarge
        head = check(decoded_fields, self._kept)
        require_grpc(decoded_fields, head)
        if decoded_fields[0].end and len(block) <= FAST_BLOCK_SIZE_MAX:
            self._learn_fields(block, decoded_fields)
            if run is None:
                self._learn_run(head[0], block, decoded_fields)
        return head

    def skip(self, block: bytes) -> None:
        """Decode a block whose fields are not needed, to keep the peer's table up to date. Raises PeerError."""
        self._decoder.decode(block)

    def _read_rest(self, block: bytes, position: int, fields: dict[bytes, bytes]) -> bool:
        """Add the fields from `position` on; return False if one of them is not known to be valid."""
        names, end = self._plain_names, len(block)
        try:
            while position < end:
                # As if the name were a literal of less than 127 bytes. Anything else has another first byte, so the
                # bytes looked up for it are no known name.
                name_end = position + 2 + block[position + 1]
                name = names.get(block[position:name_end])
                if name is not None and block[name_end] < 0x7F:
                    position = name_end + 1 + block[name_end]
                    if name:
                        fields[name] = block[name_end + 1 : position]
                    continue
                position = self._read_field(block, position, fields)
                if not position:
                    return False
        except IndexError:
            return False
        return position == end

    def _read_field(self, block: bytes, start: int, fields: dict[bytes, bytes]) -> int:
        """Add one field of any form and return its end, or 0 if the field is not known. Raises IndexError."""
        first = block[start]
        mask = 0x3F if first & 0x40 else 0x0F
        if first & 0x80:
            return 0
        if not first & mask:
            name_end = start + 2 + (block[start + 1] & 0x7F)
        else:
            name_end = start + (2 if first & mask == mask else 1)
        size, value_start = integer(block, name_end, 0x7F)
        end = value_start + size
        name = self._plain_names.get(block[start:name_end])
        if name is None:
            name = self._sound_fields.get(block[start:end])
        if name is None:
            return 0
        if name:
            value = block[value_start:end]
            fields[name] = HuffmanCoded(value) if block[name_end] & 0x80 else value
        return end

    def _learn_fields(self, block: bytes, fields: list[Field]) -> None:
        start = 0
        for field in fields:
            raw_field, start = block[start : field.end], field.end
            if field.name[:1] == b":" or raw_field[:1] >= b"\x80" or len(field.raw_name) > KNOWN_FIELD_SIZE_MAX:
                continue
            name = field.name if self._kept is None or field.name in self._kept else NOT_KEPT
            if field.name not in _NEVER_PLAIN:
                if len(self._plain_names) < FIELDS_KNOWN_MAX:
                    self._plain_names[field.raw_name] = name
                    if self._scanner is not None:
                        self._scanner.learn_name(field.raw_name, name)
            elif len(raw_field) <= KNOWN_FIELD_SIZE_MAX and len(self._sound_fields) < FIELDS_KNOWN_MAX:
                self._sound_fields[raw_field] = name
                if self._scanner is not None:
                    self._scanner.learn_field(raw_field, name)

    def _learn_run(self, path: bytes, block: bytes, fields: list[Field]) -> None:
        """Remember the common start of this block and the last one for the same path."""
        last = self._last_block_of_path.get(path)
        if last is not None or len(self._last_block_of_path) < RUNS_MAX:
            self._last_block_of_path[path] = block
        if last is None:
            return
        common = [field for field in fields if block[: field.end] == last[: field.end]]
        if not {field.name for field in common} >= _REQUIRED:
            return
        given_up = self._run_of_path.pop(path, b"")
        self._runs.pop(given_up, None)
        run = block[: common[-1].end]
        self._runs[run] = check(common, self._kept)
        self._run_of_path[path] = run
        if self._scanner is not None:
            self._scanner.evict_run(given_up)
            self._scanner.learn_run(run, *self._runs[run])
        self._run_lengths = list({len(each) for each in self._runs})


def check(fields: Iterable[Field], kept: Container[bytes] | None = None) -> RequestHead:
    """Check the fields of a request, or those that it starts with, by RFC 9113 §8.2 and §8.3. Raises Malformed.

    Returns the path and the regular fields that are in `kept`, or all for None.
    """
    pseudo: dict[bytes, bytes] = {}
    regular: dict[bytes, bytes] = {}
    is_regular = False
    for field in fields:
        name = field.name
        if name[:1] == b":":
            if is_regular:
                raise Malformed(f"{name!r} after a regular field")
            if name not in _PSEUDO or name in pseudo:
                raise Malformed(f"pseudo-header field {name!r} is unknown or repeated")
            pseudo[name] = decoded(field.value)
        else:
            _check_regular(name, field.value)
            is_regular = True
            if kept is None or name in kept:
                regular[name] = field.value
    if not pseudo.keys() >= _REQUIRED or not pseudo[b":path"]:
        raise Malformed("a pseudo-header field is missing or empty")
    return pseudo[b":path"], regular


def require_grpc(fields: Sequence[Field], head: RequestHead) -> None:
    """Raise NotGrpc unless the valid request is a gRPC call."""
    if any(field.name == b":method" and decoded(field.value) != b"POST" for field in fields):
        raise NotGrpc(405, head[1])
    # Each of them, if there are several: a field that passes here is learned as valid wherever it stands.
    kinds = [decoded(field.value) for field in fields if field.name == CONTENT_TYPE]
    if not kinds or not all(map(GRPC_CONTENT_TYPE.fullmatch, kinds)):
        raise NotGrpc(415, head[1])


def check_trailers(fields: Iterable[Field]) -> None:
    """Raise Malformed for fields that must not follow a body (RFC 9113 §8.1)."""
    for field in fields:
        if field.name[:1] == b":":
            raise Malformed(f"pseudo-header field {field.name!r} in trailers")
        _check_regular(field.name, field.value)


def _check_regular(name: bytes, value: bytes) -> None:
    if not _NAME.fullmatch(name):
        raise Malformed(f"field name {name!r}")
    if name in _OF_THE_CONNECTION:
        raise Malformed(f"{name!r} is specific to a connection and not allowed in HTTP/2")
    if name == b"te" and decoded(value) != b"trailers":
        raise Malformed("te may only say `trailers`")
    if name == b"content-length":
        digits = decoded(value)
        if not digits.isdigit() or len(digits) > CONTENT_LENGTH_DIGITS_MAX:
            raise Malformed("content-length is not a number of bytes")


class State(Enum):
    """The state of a connection. `TRANSITIONS` lists the states that may follow."""

    NEW = "awaits the preface"
    GREETED = "awaits the first SETTINGS"
    OPEN = "open"
    DRAINING = "takes no new calls"
    OVER = "says nothing more"


TRANSITIONS: Final = {
    State.NEW: {State.GREETED, State.OVER},
    State.GREETED: {State.OPEN, State.DRAINING, State.OVER},
    State.OPEN: {State.DRAINING, State.OVER},
    State.DRAINING: {State.OVER},
    State.OVER: set[State](),
}


class StreamState(Enum):
    """The state of a stream as the peer left it.

    Open streams are calls; whether the broker has ended its side does not matter here.
    """

    IDLE = "idle"
    HALF_CLOSED = "half closed by the peer"
    CLOSED = "closed"
    RESET = "reset by us"
    """The broker has reset the stream recently, so frames that the peer sent before it knew may still come."""


class Outcome(Enum):
    IGNORE = "ignore"
    RESET_STREAM = "reset the stream"
    END_CONNECTION = "end the connection"


class Rule(NamedTuple):
    outcome: Outcome
    code: ErrorCode = ErrorCode.NO_ERROR


_IGNORE: Final = Rule(Outcome.IGNORE)
_NOT_BEFORE_HEADERS: Final = Rule(Outcome.END_CONNECTION, ErrorCode.PROTOCOL_ERROR)
_NO_MORE: Final = Rule(Outcome.RESET_STREAM, ErrorCode.STREAM_CLOSED)

RULES: Final[Mapping[tuple[StreamState, FrameType], Rule]] = {
    (StreamState.IDLE, FrameType.DATA): _NOT_BEFORE_HEADERS,
    (StreamState.IDLE, FrameType.RST_STREAM): _NOT_BEFORE_HEADERS,
    (StreamState.IDLE, FrameType.WINDOW_UPDATE): _NOT_BEFORE_HEADERS,
    (StreamState.HALF_CLOSED, FrameType.DATA): _NO_MORE,
    (StreamState.HALF_CLOSED, FrameType.HEADERS): _NO_MORE,
    (StreamState.CLOSED, FrameType.DATA): _NO_MORE,
    (StreamState.CLOSED, FrameType.HEADERS): Rule(Outcome.END_CONNECTION, ErrorCode.STREAM_CLOSED),
    (StreamState.CLOSED, FrameType.RST_STREAM): _IGNORE,
    (StreamState.CLOSED, FrameType.WINDOW_UPDATE): _IGNORE,
    (StreamState.RESET, FrameType.DATA): _IGNORE,
    (StreamState.RESET, FrameType.HEADERS): _IGNORE,
    (StreamState.RESET, FrameType.RST_STREAM): _IGNORE,
    (StreamState.RESET, FrameType.WINDOW_UPDATE): _IGNORE,
}
