"""Requests that are almost good: a valid one, changed where a parser or a handler may stumble.

Everything is decided by a `Random`, so a seed and a number name an input.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final, NamedTuple

VARINT, FIXED_64, LENGTH, GROUP, GROUP_END, FIXED_32 = range(6)
HUGE_VARINTS: Final = (
    b"\xff" * 9 + b"\x01",
    b"\xff" * 10,
    b"\xff" * 11,
    b"\x80" * 9 + b"\x01",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\x07",
    b"\x80\x80\x80\x80\x08",
)
NO_UTF8: Final = (b"\xff\xfe", b"\xc3\x28", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"\x80", b"\0", b"\xc0\xaf")
DEPTHS: Final = (2, 50, 99, 100, 101, 500, 5_000)
REPEATS: Final = (2, 3, 10, 300)
SIZE_MAX: Final = 64 * 1024


class Field(NamedTuple):
    """Where a field of a message lies: its tag, its value (with its length where it has one), its end."""

    start: int
    value: int
    end: int
    kind: int


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value, at
        shift += 7


def fields_of(data: bytes) -> list[Field]:
    """The fields of a valid message, those within other messages behind their own; what is text may look like some."""
    found: list[Field] = []
    pending = [(0, len(data))]
    while pending:
        at, end = pending.pop()
        own: list[Field] = []
        try:
            while at < end:
                start = at
                tag, at = _read_varint(data, at)
                value, kind = at, tag & 7
                if kind == VARINT:
                    _, at = _read_varint(data, at)
                elif kind == LENGTH:
                    size, at = _read_varint(data, at)
                    if at + size <= end:
                        pending.append((at, at + size))
                    at += size
                else:
                    at += {FIXED_64: 8, FIXED_32: 4}[kind]
                if at > end or not tag >> 3:
                    raise IndexError
                own.append(Field(start, value, at, kind))
        except (IndexError, KeyError):
            continue  # it was a text
        found += own
    return found


class Mutator:
    """Changes one valid request in a thousand ways."""

    def __init__(self, random: Random, valid: list[bytes]) -> None:
        """`valid` are requests of all kinds; the first is of the one that is attacked."""
        self._random = random
        self._valid = valid[0]
        self._others = valid
        self._fields = fields_of(valid[0])

    def next(self) -> bytes:
        data = self._valid
        for _ in range(self._random.choice((1, 1, 1, 2, 3))):
            data = self._random.choice(_CHANGES)(self, data)
        return data[:SIZE_MAX]

    def _field(self, data: bytes) -> Field | None:
        """One of the request's fields; where it was changed before they may lie elsewhere, which is as good."""
        return self._random.choice(self._fields) if self._fields and data else None

    def flip_bits(self, data: bytes) -> bytes:
        if not data:
            return data
        changed = bytearray(data)
        for _ in range(self._random.randint(1, 8)):
            changed[self._random.randrange(len(changed))] ^= 1 << self._random.randrange(8)
        return bytes(changed)

    def truncate(self, data: bytes) -> bytes:
        return data[: self._random.randint(0, len(data))]

    def repeat_field(self, data: bytes) -> bytes:
        field = self._field(data)
        if field is None:
            return data
        return data[: field.end] + data[field.start : field.end] * self._random.choice(REPEATS) + data[field.end :]

    def huge_varint(self, data: bytes) -> bytes:
        field = self._field(data)
        at = len(data) if field is None else field.value
        return data[:at] + self._random.choice(HUGE_VARINTS) + data[at + 1 :]

    def nest(self, data: bytes) -> bytes:
        """A message in a message in a message; or groups, which end where they like."""
        number = self._random.randint(1, 20)
        depth = self._random.choice(DEPTHS)
        if self._random.random() < 0.5:
            return data + varint(number << 3 | GROUP) * depth
        nested = b""
        for _ in range(min(depth, 500)):
            nested = varint(number << 3 | LENGTH) + varint(len(nested)) + nested
        return data + nested

    def wrong_type(self, data: bytes) -> bytes:
        field = self._field(data)
        if field is None or field.start >= len(data):
            return data
        changed = bytearray(data)
        changed[field.start] = changed[field.start] & ~7 | self._random.randrange(8)
        return bytes(changed)

    def no_utf8(self, data: bytes) -> bytes:
        """Text that is none, without a change of any length."""
        texts = [field for field in self._fields if field.kind == LENGTH and field.end - field.value > 1]
        if not texts:
            return data + self._random.choice(NO_UTF8)
        field, wrong = self._random.choice(texts), self._random.choice(NO_UTF8)
        at = self._random.randint(field.value + 1, max(field.value + 1, field.end - len(wrong)))
        return data[:at] + wrong + data[at + len(wrong) :]

    def number(self, data: bytes) -> bytes:
        """Another value of a field, negative ones and too large ones among them."""
        numbers = [field for field in self._fields if field.kind == VARINT]
        if not numbers:
            return self.unknown_field(data)
        field = self._random.choice(numbers)
        value = varint(self._random.getrandbits(self._random.choice((1, 7, 31, 32, 63, 64))))
        return data[: field.value] + value + data[field.end :]

    def unknown_field(self, data: bytes) -> bytes:
        kind = self._random.randrange(8)
        return data + varint(self._random.getrandbits(29) << 3 | kind) + self._random.randbytes(8)

    def splice(self, data: bytes) -> bytes:
        """A part of another request in the middle."""
        other = self._random.choice(self._others)
        at = self._random.randint(0, len(data))
        return data[:at] + other[: self._random.randint(0, len(other))] + data[at:]

    def grow(self, data: bytes) -> bytes:
        """A text of another length, which is told rightly to the message it is in if that is the whole request."""
        number = self._random.randint(1, 12)
        text = self._random.choice((b"x", b"\xe5\x90\x8d", b"%", b"a.", b"||", b"(")) * self._random.choice(
            (1, 130, 5_000)
        )
        return data + varint(number << 3 | LENGTH) + varint(len(text)) + text

    def noise(self, _data: bytes) -> bytes:
        return self._random.randbytes(self._random.randint(0, 300))


_CHANGES: Final[tuple[Callable[[Mutator, bytes], bytes], ...]] = (
    Mutator.flip_bits,
    Mutator.truncate,
    Mutator.repeat_field,
    Mutator.huge_varint,
    Mutator.nest,
    Mutator.wrong_type,
    Mutator.no_utf8,
    Mutator.number,
    Mutator.unknown_field,
    Mutator.splice,
    Mutator.grow,
    Mutator.noise,
)
