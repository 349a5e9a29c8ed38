"""Read and write the frames of RocketMQ's remoting protocol, without I/O.

```text
frame  = u32 length      bytes that follow this field: 4 + header + body
         u32 mark        top byte: serialization of the header (0 JSON, 1 ROCKETMQ); low 24 bits: size of the header
         header
         body            length - 4 - header bytes, may be empty
```

All integers are big-endian. `FrameReader` cuts a stream of bytes into frames. `read_command` reads the header of a
frame, and `write_command` makes a frame. A frame that breaks these rules raises FrameMalformed. Nothing after such a
frame can be understood, so its connection has to be closed, as by RocketMQ.

Sources: `RemotingCommand`, `RocketMQSerializable` and `NettyDecoder` of RocketMQ 5.5.0, and exchanges captured from it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import IntEnum, IntFlag
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import orjson

FRAME_SIZE_MAX: Final = 16 * 1024 * 1024
"""Most that the length field may say, as in RocketMQ."""

HEADER_SIZE_MAX: Final = 64 * 1024
"""Bytes of a header. Properties of a message have at most 32,767 bytes; nothing else in a header is large."""

VERSION: Final = 513
"""The version that Quarry gives itself: RocketMQ 5.5.0's. Clients refuse SQL filters of brokers before 4.1."""

_CUT: Final = {code & 0xFFFF: code for code in (*range(200_050, 200_080), 200_151)}
"""Codes that do not fit into the 16 bits of the ROCKETMQ serialization: clients send 3442 for 200050."""
_PREFIX: Final = struct.Struct(">II")
_FIXED: Final = struct.Struct(">hBhiii")
"""The beginning of a ROCKETMQ header: code, language, version, opaque, flag, size of the remark."""
_KEY_SIZE: Final = struct.Struct(">h")
_VALUE_SIZE: Final = struct.Struct(">i")
_INT32: Final = range(-(1 << 31), 1 << 31)
_NONE: Final[Mapping[str, str]] = MappingProxyType({})


_make: Final = tuple.__new__
"""`_make(Frame, (…))` is `Frame(…)` without the cost of a NamedTuple's constructor."""


class FrameMalformed(ValueError):
    """Bytes are no frame of the remoting protocol. The text says what is wrong with them."""


class Serialization(IntEnum):
    """The form of a header."""

    JSON = 0
    ROCKETMQ = 1


class Language(IntEnum):
    """The language that a command names as its maker's."""

    JAVA = 0
    CPP = 1
    DOTNET = 2
    PYTHON = 3
    DELPHI = 4
    ERLANG = 5
    RUBY = 6
    OTHER = 7
    HTTP = 8
    GO = 9
    PHP = 10
    OMS = 11
    RUST = 12
    NODE_JS = 13


class Flag(IntFlag):
    """Bits of a command's flag."""

    RESPONSE = 1
    ONEWAY = 2


# members of enumerations take half a microsecond for each use in an expression
_RESPONSE: Final = int(Flag.RESPONSE)
_ONEWAY: Final = int(Flag.ONEWAY)
_JSON: Final = Serialization.JSON
_SERIALIZATIONS: Final = {int(each): each for each in Serialization}
_LANGUAGES: Final = {each.name: each for each in Language}
_LANGUAGE_NAMES: Final = {each: each.name for each in Language}


class Frame(NamedTuple):
    """A frame as it came. `header` and `body` are copies of what was received."""

    serialization: Serialization
    header: bytes
    body: bytes


class Command(NamedTuple):
    """A request or a response.

    `code` is a request code, or the response code of a response (0 is success). `opaque` is the number by which a
    response is paired with its request. `remark` is a text for people. `fields` are the custom header of the code:
    all values are text, numbers in decimal.
    """

    code: int
    opaque: int
    fields: Mapping[str, str] = _NONE
    body: bytes = b""
    flag: int = 0
    remark: str | None = None
    language: Language = Language.PYTHON
    version: int = VERSION
    serialization: Serialization = Serialization.JSON

    @property
    def is_response(self) -> bool:
        """Return whether the command answers a request."""
        return bool(self.flag & _RESPONSE)

    @property
    def is_oneway(self) -> bool:
        """Return whether nobody waits for an answer."""
        return bool(self.flag & _ONEWAY)

    def response(
        self, code: int = 0, fields: Mapping[str, str] = _NONE, body: bytes = b"", *, remark: str | None = None
    ) -> Command:
        """Return a response to this request, in its serialization. RocketMQ's clients expect JAVA as the language."""
        return Command(code, self.opaque, fields, body, _RESPONSE, remark, Language.JAVA, VERSION, self.serialization)


class FrameReader:
    """Cut the bytes of one connection into frames. At most one unfinished frame is kept."""

    def __init__(self, frame_size_max: int = FRAME_SIZE_MAX) -> None:
        """`frame_size_max` is the most that a length field may say."""
        self._frame_size_max = frame_size_max
        self._kept = bytearray()
        self._wanted = _PREFIX.size

    @property
    def kept_size(self) -> int:
        """Return the bytes of the unfinished frame."""
        return len(self._kept)

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that are complete with `data`. Raises FrameMalformed: the reader is of no use then."""
        kept = self._kept
        if kept:
            kept += data
            if len(kept) < self._wanted:  # a large frame comes in many pieces: it is looked at when it is whole
                return []
            data = bytes(kept)
            kept.clear()
        found: list[Frame] = []
        at, end = 0, len(data)
        while end - at >= _PREFIX.size:
            length, mark = _PREFIX.unpack_from(data, at)
            serialization, header_size = self._checked(length, mark)
            following = at + 4 + length
            if following > end:
                self._wanted = 4 + length
                break
            header_at = at + _PREFIX.size
            body_at = header_at + header_size
            found.append(_make(Frame, (serialization, data[header_at:body_at], data[body_at:following])))
            at = following
        else:
            self._wanted = _PREFIX.size
        if at < end:
            kept += memoryview(data)[at:]
        return found

    def _checked(self, length: int, mark: int) -> tuple[Serialization, int]:
        if mark <= HEADER_SIZE_MAX and mark + 4 <= length <= self._frame_size_max:
            return _JSON, mark
        header_size = mark & 0xFFFFFF
        if not 4 <= length <= self._frame_size_max:
            raise FrameMalformed(f"a frame of {length} bytes; 4 to {self._frame_size_max} are allowed")
        if header_size > length - 4:
            raise FrameMalformed(f"a header of {header_size} bytes in a frame of {length}")
        if header_size > HEADER_SIZE_MAX:
            raise FrameMalformed(f"a header of {header_size} bytes; {HEADER_SIZE_MAX} are allowed")
        serialization = _SERIALIZATIONS.get(mark >> 24)
        if serialization is None:
            raise FrameMalformed(f"unknown serialization {mark >> 24}")
        return serialization, header_size


def read_command(frame: Frame) -> Command:
    """Read the header of a frame. Raises FrameMalformed."""
    return _read_json(frame) if frame.serialization is Serialization.JSON else _read_binary(frame)


def write_command(command: Command) -> bytes:
    """Return a frame. Raises ValueError for a command that does not fit into one."""
    write = _write_json if command.serialization is Serialization.JSON else _write_binary
    header = write(command)
    length = 4 + len(header) + len(command.body)
    if len(header) > HEADER_SIZE_MAX or length > FRAME_SIZE_MAX:
        raise ValueError(f"command {command.code}: a header of {len(header)} bytes and a body of {len(command.body)}")
    return _PREFIX.pack(length, command.serialization << 24 | len(header)) + header + command.body


def _read_json(frame: Frame) -> Command:
    try:
        members = orjson.loads(frame.header)
    except orjson.JSONDecodeError as cause:
        raise FrameMalformed(f"a header that is no JSON: {cause}") from cause
    if not isinstance(members, dict):
        raise FrameMalformed("a header that is no JSON object")
    fields = members.get("extFields")
    if fields is not None and not isinstance(fields, dict):
        raise FrameMalformed("extFields are no JSON object")
    if fields and set(map(type, fields.values())) != {str}:
        fields = {name: _text(value) for name, value in fields.items() if value is not None}
    language, remark = members.get("language"), members.get("remark")
    return Command(
        _int32(members, "code"),
        _int32(members, "opaque"),
        fields or _NONE,
        frame.body,
        _int32(members, "flag"),
        None if remark is None else _text(remark),
        _LANGUAGES.get(language, Language.OTHER) if isinstance(language, str) else Language.JAVA,
        _int32(members, "version"),
    )


def _int32(members: Mapping[str, Any], name: str) -> int:
    value = members.get(name)
    if value is None:
        return 0
    if type(value) is not int or value not in _INT32:
        raise FrameMalformed(f"{name} is no integer of 32 bits")
    return value


def _text(value: object) -> str:
    """Return the text of a value. Clients write texts; Java's reader takes numbers and booleans as well."""
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)
    raise FrameMalformed("a value of extFields is an array or an object")


def _write_json(command: Command) -> bytes:
    members: dict[str, Any] = {"code": command.code}
    if command.fields:
        members["extFields"] = dict(command.fields)
    members["flag"] = int(command.flag)
    members["language"] = _LANGUAGE_NAMES[command.language]
    members["opaque"] = command.opaque
    if command.remark is not None:
        members["remark"] = command.remark.encode(errors="replace").decode()
    members["serializeTypeCurrentRPC"] = "JSON"
    members["version"] = command.version
    return orjson.dumps(members)


def _read_binary(frame: Frame) -> Command:
    header = frame.header
    try:
        code, language, version, opaque, flag, remark_size = _FIXED.unpack_from(header)
        remark, at = _string(header, _FIXED.size, remark_size)
        (map_size,) = _VALUE_SIZE.unpack_from(header, at)
        at += _VALUE_SIZE.size
        if at + map_size != len(header):
            raise FrameMalformed(f"fields of {map_size} bytes where {len(header) - at} are left")
        fields: dict[str, str] = {}
        while at < len(header):
            (size,) = _KEY_SIZE.unpack_from(header, at)
            name, at = _string(header, at + _KEY_SIZE.size, size)
            (size,) = _VALUE_SIZE.unpack_from(header, at)
            value, at = _string(header, at + _VALUE_SIZE.size, size)
            if value:  # a value without bytes is read as null
                fields[name] = value
    except struct.error as cause:
        raise FrameMalformed("a header that ends too early") from cause
    return Command(
        _CUT.get(code, code),
        opaque,
        fields or _NONE,
        frame.body,
        flag,
        remark or None,
        Language(language) if language in set(Language) else Language.OTHER,
        version,
        Serialization.ROCKETMQ,
    )


def _string(header: bytes, at: int, size: int) -> tuple[str, int]:
    """Return a text of `size` bytes at an offset, and the offset of its end."""
    end = at + size
    if size < 0 or end > len(header):
        raise FrameMalformed(f"a text of {size} bytes where {len(header) - at} are left")
    try:
        return header[at:end].decode(), end
    except UnicodeDecodeError as cause:
        raise FrameMalformed(f"a text that is not UTF-8: {cause}") from cause


def _write_binary(command: Command) -> bytes:
    remark = (command.remark or "").encode(errors="replace")
    pairs = b"".join(
        _sized(_KEY_SIZE, name) + _sized(_VALUE_SIZE, value) for name, value in command.fields.items() if value
    )
    code = command.code if command.code in range(-(1 << 15), 1 << 15) else command.code & 0xFFFF
    if _CUT.get(code, code) != command.code:
        raise ValueError(f"command {command.code} does not fit into 16 bits")
    fixed = _FIXED.pack(code, command.language, command.version, command.opaque, command.flag, len(remark))
    return fixed + remark + _VALUE_SIZE.pack(len(pairs)) + pairs


def _sized(size: struct.Struct, text: str) -> bytes:
    encoded = text.encode(errors="replace")
    try:
        return size.pack(len(encoded)) + encoded
    except struct.error as cause:
        raise ValueError(f"a text of {len(encoded)} bytes") from cause
