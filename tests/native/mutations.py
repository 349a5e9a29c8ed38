"""Requests that went wrong in the ways that bytes of protobuf can: built from good ones, field by field."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

VARINT: Final = 0
BITS_64: Final = 1
BYTES: Final = 2
GROUP_BEGIN: Final = 3
GROUP_END: Final = 4
BITS_32: Final = 5
AS_IS: Final = -1
"""No wire type: bytes that are fields already."""

NUMBERS: Final = (
    0, 1, 2, 3, 4, 5, 127, 128, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**32 + 2, 2**33 + 1, 2**62, 2**63 - 1,
    2**63, 2**64 - 1, 2**64 - 2**31, 253_402_300_799, 253_402_300_800, 999_999_999, 1_000_000_000, 1_700_000_000,
)  # fmt: skip
SIZES: Final = (0, 1, 15, 16, 59, 60, 63, 64, 126, 127, 128, 254, 255, 256, 511, 512, 513, 2_047, 2_048, 2_049)
LARGE_SIZES: Final = (
    4_095,
    4_096,
    4_097,
    16_300,
    16_383,
    16_384,
    16_385,
    22_000,
    32_766,
    32_767,
    32_768,
    33_000,
    70_000,
)
COUNTS: Final = (2, 3, 31, 32, 33, 127, 128, 129, 130)
LARGE_COUNTS: Final = (4_095, 4_096, 4_097, 16_000)
_GOOD_TEXTS: Final = (
    "", " ", "  ", "\t", "a\x01b", "\x02", "\0", "\x7f", "\x80", "\x85", "\x9f", "\xa0", "ä", "中文", "🙂", "a|b",
    "|", "\u2028", " a ", "\u200b", "\u3000", "*", "||", "TAGS", "KEYS", "UNIQ_KEY", "__CRC32#", "INNER_MULTI_DISPATCH",
    "%LMQ%a,%LMQ%a,b", "%LMQ%$lite$one", "__RMQ.TRANSIENT.x", "orders", "mixed", "fifo", "later", "halves", "lite",
    "urgent", "new-topic", "%RETRY%g_orders", "%DLQ%g", "TBW102", "rmq_sys_x", "CHECKPOINT_TOPIC", "127.0.0.1:80",
    "[::1]:9", "REAL_TOPIC", "__SHARDINGKEY", "TRAN_MSG", "MIN_OFFSET", "true",
)  # fmt: skip
_NO_TEXTS: Final = (b"\xff", b"\xc3", b"a\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\x80", b"\xe2\x80")
TEXTS: Final = (*(text.encode() for text in _GOOD_TEXTS), *_NO_TEXTS)


def varint(value: int, padding: int = 0) -> bytes:
    """With so many bytes more than it takes, which say nothing."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    if padding:
        out[-1] |= 0x80
        out += b"\x80" * (padding - 1) + b"\0"
    return bytes(out)


class Field:
    """One field as it lies in a request: `value` is a number, the bytes of a text, or the fields of a message."""

    __slots__ = ("descriptor", "key_padding", "length_off", "number", "padding", "value", "wire")

    def __init__(self, number: int, wire: int, value: int | bytes | list[Field], descriptor: FieldDescriptor | None):
        self.number = number
        self.wire = wire
        self.value = value
        self.descriptor = descriptor
        self.key_padding = 0
        self.padding = 0
        self.length_off = 0

    def copy(self) -> Field:
        value = [each.copy() for each in self.value] if isinstance(self.value, list) else self.value
        return Field(self.number, self.wire, value, self.descriptor)

    def encoded(self) -> bytes:
        if self.wire == AS_IS and isinstance(self.value, bytes):
            return self.value
        key = varint(self.number << 3 | self.wire, self.key_padding)
        if isinstance(self.value, int):
            if self.wire == BITS_32:
                return key + (self.value & 0xFFFFFFFF).to_bytes(4, "little")
            if self.wire == BITS_64:
                return key + (self.value & 0xFFFFFFFFFFFFFFFF).to_bytes(8, "little")
            return key + varint(self.value, self.padding)
        content = encoded(self.value) if isinstance(self.value, list) else self.value
        if self.wire != BYTES:
            return key + content
        return key + varint(max(0, len(content) + self.length_off), self.padding) + content


def encoded(fields: Sequence[Field]) -> bytes:
    return b"".join([each.encoded() for each in fields])


def parsed(message: Message) -> list[Field]:
    """The fields of a good request."""
    fields: list[Field] = []
    for descriptor, value in message.ListFields():
        if descriptor.message_type is not None and descriptor.message_type.GetOptions().map_entry:
            for name, text in value.items():
                fields.append(Field(descriptor.number, BYTES, _entry(descriptor.message_type, name, text), descriptor))
            continue
        fields += [_field(descriptor, each) for each in (value if descriptor.is_repeated else (value,))]
    return fields


def _field(descriptor: FieldDescriptor, value: object) -> Field:
    if isinstance(value, Message):
        return Field(descriptor.number, BYTES, parsed(value), descriptor)
    if isinstance(value, str):
        return Field(descriptor.number, BYTES, value.encode(), descriptor)
    if isinstance(value, bytes):
        return Field(descriptor.number, BYTES, value, descriptor)
    assert isinstance(value, int)
    return Field(descriptor.number, VARINT, value & 0xFFFFFFFFFFFFFFFF, descriptor)


def _entry(descriptor: Descriptor, name: str, text: str) -> list[Field]:
    by_name: Mapping[str, FieldDescriptor] = descriptor.fields_by_name
    return [_field(by_name["key"], name), _field(by_name["value"], text)]


class Mutator:
    """Makes requests out of good ones. The same seed makes the same requests."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        random = self._random
        self._changes: Sequence[Callable[[list[Field], int], None]] = (
            self._text, self._text, self._text, self._text, self._number, self._number, self._resize, self._resize,
            self._double, self._double, self._remove, self._swap, self._unknown, self._wire, self._padding,
            self._length, self._new_field, self._new_field, self._many,
        )  # fmt: skip
        self._choice = random.choice

    def mutated(self, good: Sequence[Field]) -> bytes:
        """A request with some changes, hardly ever none."""
        random = self._random
        root = Field(0, BYTES, [each.copy() for each in good], None)
        for _ in range(random.choice((1, 1, 1, 1, 2, 2, 3, 5))):
            siblings, at = self._place(root)
            if siblings:
                self._choice(self._changes)(siblings, at)
        body = encoded(root.value) if isinstance(root.value, list) else b""
        if random.random() < 0.1:
            body = self._damaged(body)
        return body

    def _place(self, root: Field) -> tuple[list[Field], int]:
        """A field anywhere in the tree, by the list that it is in."""
        random, siblings = self._random, root.value
        assert isinstance(siblings, list)
        while siblings:
            at = random.randrange(len(siblings))
            inner = siblings[at].value
            if not isinstance(inner, list) or not inner or random.random() < 0.2:
                return siblings, at
            siblings = inner
        return [], 0

    # -- what is changed

    def _text(self, siblings: list[Field], at: int) -> None:
        field = siblings[at]
        if isinstance(field.value, bytes):
            text = self._choice(TEXTS)
            field.value = self._choice((text, field.value + text, text + field.value))

    def _number(self, siblings: list[Field], at: int) -> None:
        if isinstance(siblings[at].value, int):
            siblings[at].value = self._choice(NUMBERS)

    def _resize(self, siblings: list[Field], at: int) -> None:
        field = siblings[at]
        if isinstance(field.value, bytes):
            size = self._choice(LARGE_SIZES if self._random.random() < 0.05 else SIZES)
            field.value = (field.value or b"x") * (size // len(field.value or b"x") + 1)
            field.value = field.value[:size]

    def _double(self, siblings: list[Field], at: int) -> None:
        siblings.insert(self._random.randrange(len(siblings) + 1), siblings[at].copy())

    def _remove(self, siblings: list[Field], at: int) -> None:
        del siblings[at]

    def _swap(self, siblings: list[Field], at: int) -> None:
        other = self._random.randrange(len(siblings))
        siblings[at], siblings[other] = siblings[other], siblings[at]

    def _unknown(self, siblings: list[Field], at: int) -> None:
        random = self._random
        number = random.choice((0, 1, 2, 3, 4, 5, 9, 11, 14, 15, 16, 17, 19, 20, 99, 2**29 - 1, 2**29, 2**32 - 1))
        wire = random.choice((VARINT, BITS_64, BYTES, BITS_32, GROUP_BEGIN, GROUP_END))
        value: int | bytes = random.choice(TEXTS) if wire in (BYTES, GROUP_BEGIN, GROUP_END) else random.choice(NUMBERS)
        siblings.insert(at, Field(number, wire, value, None))

    def _wire(self, siblings: list[Field], at: int) -> None:
        field = siblings[at]
        field.wire = self._choice((VARINT, BITS_64, BYTES, GROUP_BEGIN, GROUP_END, BITS_32, 6, 7))
        if field.wire in (VARINT, BITS_64, BITS_32) and not isinstance(field.value, int):
            field.value = self._choice(NUMBERS)
        elif field.wire == BYTES and isinstance(field.value, int):
            field.value = self._choice(TEXTS)

    def _padding(self, siblings: list[Field], at: int) -> None:
        if self._random.random() < 0.5:
            siblings[at].key_padding = self._random.randint(1, 10)
        else:
            siblings[at].padding = self._random.randint(1, 10)

    def _length(self, siblings: list[Field], at: int) -> None:
        siblings[at].length_off = self._choice((-2, -1, 1, 2, 100, 2**31, 2**63))

    def _new_field(self, siblings: list[Field], at: int) -> None:
        """One that the message may have and has not."""
        known = siblings[at].descriptor
        if known is None or known.containing_type is None:
            return
        descriptor: FieldDescriptor = self._choice(list(known.containing_type.fields))
        if descriptor.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
            siblings.insert(at, Field(descriptor.number, BYTES, self._choice(TEXTS), descriptor))
        elif descriptor.message_type is not None:
            inner = [
                Field(each.number, VARINT, self._choice(NUMBERS), each)
                if each.cpp_type in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64)
                else Field(each.number, BYTES, self._choice(TEXTS), each)
                for each in descriptor.message_type.fields
                if each.message_type is None and self._random.random() < 0.7
            ]
            siblings.insert(at, Field(descriptor.number, BYTES, inner, descriptor))
        else:
            siblings.insert(at, Field(descriptor.number, VARINT, self._choice(NUMBERS), descriptor))

    def _many(self, siblings: list[Field], at: int) -> None:
        count = self._choice(LARGE_COUNTS if self._random.random() < 0.02 else COUNTS)
        field = siblings[at]
        once = field.encoded()
        siblings.insert(at, Field(0, AS_IS, once * min(count, 200_000 // max(1, len(once))), None))

    def _damaged(self, body: bytes) -> bytes:
        random, damaged = self._random, bytearray(body)
        for _ in range(random.randint(1, 3)):
            if not damaged:
                break
            at = random.randrange(len(damaged))
            match random.randrange(4):
                case 0:
                    damaged[at] = random.randrange(256)
                case 1:
                    del damaged[at]
                case 2:
                    damaged.insert(at, random.randrange(256))
                case _:
                    del damaged[at:]
        return bytes(damaged)
