"""Decoding of header blocks (HPACK, RFC 7541), without state wherever the peer allows it.

A server that announces SETTINGS_HEADER_TABLE_SIZE 0 lets its peer keep no table: each block can be decoded alone. A
peer shows that it has obeyed by a size update to 0 at the start of a block. From then on `split_block` decodes blocks
in place. Until then, and for peers that never obey, the `hpack` library decodes with the table they keep. The blocks
that this server sends use no table and no Huffman code: they are constants (`grpc_messages`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple

from hpack import Decoder
from hpack.exceptions import HPACKError, OversizedHeaderListError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from quarry_mq.protocol.h2.frames import ErrorCode, PeerError


class HuffmanCoded(bytes):
    """A value as it lies in the block, to be decoded on demand: that costs 40 ns per byte and is often not needed."""

    __slots__ = ()


STATIC_TABLE: Final = HeaderTable.STATIC_TABLE
STATIC_TABLE_LENGTH: Final = len(STATIC_TABLE)
FIELD_OVERHEAD: Final = 32
"""Bytes that a field counts for beside its own when a header list is measured (RFC 9113 §6.5.2)."""

FIELDS_MAX: Final = 512
"""Fields that one block may have; more are an attack with tiny fields. No client sends more than some twenty."""

_LARGE_INTEGER_BYTES: Final = 4
_CACHED_MAX: Final = 1_024
_CACHED_SIZE_MAX: Final = 256
"""Size of the largest cached value, so that the caches hold some 300 KiB each at most, whatever peers send."""

_FORBIDDEN_IN_VALUES: Final = re.compile(rb"[\x00\r\n]")


class Field(NamedTuple):
    """Hold one field of a block, and its position: `raw_name` is the encoded name, `end` the position after the field.

    The last two are empty if the library decoded the block.
    """

    name: bytes
    value: bytes
    raw_name: bytes = b""
    end: int = 0


class PartialBlock:
    """A header block whose end has not come yet."""

    __slots__ = ("block", "continuations", "flags", "stream_id")

    def __init__(self, stream_id: int, flags: int, block: bytes) -> None:
        self.stream_id = stream_id
        self.flags = flags
        self.block = bytearray(block)
        self.continuations = 0


class BlockDecoder:
    """The decoder of the header blocks of one connection.

    `size_max` bounds a decoded header list, in bytes as RFC 9113 §6.5.2 counts them.
    """

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._decoder: Decoder | None = Decoder(size_max)
        self._settings_acknowledged = False

    @property
    def is_stateless(self) -> bool:
        """Return whether the peer keeps no table any more; it must never do so again."""
        return self._decoder is None

    def settings_acknowledged(self) -> None:
        """Note that the peer knows our table size: from now on a table of size 0 stays empty for good."""
        self._settings_acknowledged = True

    def decode(self, block: bytes) -> list[Field]:
        """Return all fields of a block. Raises PeerError (COMPRESSION_ERROR, ENHANCE_YOUR_CALM), which ends the
        connection.
        """
        if self._decoder is None:
            return split_block(block, self._size_max)
        # The library copies the rest of the block for each field: 8,000 tiny ones before 200 KB cost it 140 ms.
        if len(block) > FIELDS_MAX and _is_crowded(block):
            raise PeerError(ErrorCode.ENHANCE_YOUR_CALM, f"more than {FIELDS_MAX} header fields")
        try:
            fields = [Field(bytes(name), bytes(value)) for name, value in self._decoder.decode(block, raw=True)]
        except OversizedHeaderListError as error:
            raise PeerError(ErrorCode.ENHANCE_YOUR_CALM, str(error)) from error
        except (HPACKError, IndexError) as error:
            raise PeerError(ErrorCode.COMPRESSION_ERROR, "a header block cannot be decoded") from error
        if len(fields) > FIELDS_MAX:
            raise PeerError(ErrorCode.ENHANCE_YOUR_CALM, f"more than {FIELDS_MAX} header fields")
        if self._settings_acknowledged and self._decoder.header_table_size == 0:
            self._decoder = None
        return fields


def size_of(fields: Iterable[Field]) -> int:
    """Return the bytes of a header list as RFC 9113 §6.5.2 counts them."""
    return sum(len(field.name) + len(field.value) + FIELD_OVERHEAD for field in fields)


def split_block(block: bytes, size_max: int) -> list[Field]:
    """Return the fields of a block that uses the static table only; values may still be Huffman coded.

    Raises PeerError as `BlockDecoder.decode` does.
    """
    fields: list[Field] = []
    position, end, size = 0, len(block), 0
    try:
        while position < end:
            start, first = position, block[position]
            if first & 0x80:
                index, position = integer(block, position, 0x7F)
                name, value = _static(index)
                name_end = position
            elif first & 0xE0 == 0x20:
                table_size, position = integer(block, position, 0x1F)
                if table_size or fields:
                    raise PeerError(ErrorCode.COMPRESSION_ERROR, "a table size update where none is allowed")
                continue
            else:
                # With indexing as well: an entry that is larger than the table empties it, and it is empty.
                index, position = integer(block, position, 0x3F if first & 0x40 else 0x0F)
                if index:
                    name = _static(index)[0]
                else:
                    raw_name, position = _string(block, position)
                    name = decoded(raw_name)
                name_end = position
                value, position = _string(block, position)
            size += len(name) + len(value) + FIELD_OVERHEAD
            fields.append(Field(name, value, block[start:name_end], position))
            if size > size_max or len(fields) > FIELDS_MAX:
                raise PeerError(ErrorCode.ENHANCE_YOUR_CALM, f"a header list above {size_max} bytes")
    except IndexError:
        raise PeerError(ErrorCode.COMPRESSION_ERROR, "a header block ends within a field") from None
    return fields


def _is_crowded(block: bytes) -> bool:
    """Return whether the block has more than `FIELDS_MAX` fields, counted up to where it ends. Raises PeerError."""
    position, count = 0, 0
    try:
        while position < len(block) and count <= FIELDS_MAX:
            first = block[position]
            count += 1  # size updates count as well: a valid block has two at most
            if first & 0x80:
                _, position = integer(block, position, 0x7F)
            elif first & 0xE0 == 0x20:
                _, position = integer(block, position, 0x1F)
            else:
                index, position = integer(block, position, 0x3F if first & 0x40 else 0x0F)
                for _ in range(1 if index else 2):
                    size, position = integer(block, position, 0x7F)
                    position += size
    except IndexError:
        return False
    return count > FIELDS_MAX


def decoded(value: bytes) -> bytes:
    """Return the bytes that a value stands for. Raises PeerError if it is not valid Huffman code."""
    if type(value) is not HuffmanCoded:
        return value
    return _decode_huffman(value) if len(value) > _CACHED_SIZE_MAX else _cached_huffman(value)


def text_of(value: bytes) -> str | None:
    """Return the value as text, or None if it is not valid in a header (RFC 9113 §8.2.1)."""
    return _text_of(value) if len(value) > _CACHED_SIZE_MAX else _cached_text(value, type(value))


def _text_of(value: bytes, _kind: type[bytes] = bytes) -> str | None:
    try:
        plain = decoded(value)
    except PeerError:
        return None
    if _FORBIDDEN_IN_VALUES.search(plain) or plain != plain.strip(b" \t"):
        return None
    return plain.decode("utf-8", "replace")


def encode_fields(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return a block of literals that enter no table, names and values as they are."""
    return b"".join(b"\0" + _encoded_string(name) + _encoded_string(value) for name, value in fields)


def _encoded_string(text: bytes) -> bytes:
    size = len(text)
    if size < 0x7F:
        return bytes((size,)) + text
    head = bytearray((0x7F,))
    size -= 0x7F
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head) + text


def integer(block: bytes, position: int, mask: int) -> tuple[int, int]:
    """Return an integer that begins in the bits `mask` of a byte, and the position after it (RFC 7541 §5.1).

    Raises IndexError at the end of the block, PeerError for an absurdly large integer.
    """
    value = block[position] & mask
    position += 1
    if value < mask:
        return value, position
    for shift in range(0, 7 * _LARGE_INTEGER_BYTES, 7):
        byte = block[position]
        position += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise PeerError(ErrorCode.COMPRESSION_ERROR, "an integer in a header block is too large")


def _string(block: bytes, position: int) -> tuple[bytes, int]:
    is_huffman = block[position] & 0x80
    size, position = integer(block, position, 0x7F)
    end = position + size
    if end > len(block):
        raise PeerError(ErrorCode.COMPRESSION_ERROR, "a header block ends within a field")
    text = block[position:end]
    return (HuffmanCoded(text) if is_huffman else text), end


def _static(index: int) -> tuple[bytes, bytes]:
    if not 1 <= index <= STATIC_TABLE_LENGTH:
        raise PeerError(ErrorCode.COMPRESSION_ERROR, f"index {index} is not in the tables")
    return STATIC_TABLE[index - 1]


def _decode_huffman(coded: bytes) -> bytes:
    try:
        return bytes(decode_huffman(coded))
    except HPACKError as error:
        raise PeerError(ErrorCode.COMPRESSION_ERROR, "a string is not a valid Huffman code") from error


_cached_huffman = lru_cache(maxsize=_CACHED_MAX)(_decode_huffman)
_cached_text = lru_cache(maxsize=_CACHED_MAX)(_text_of)
"""Cache of values as text, by their type as well: coded and plain bytes may be equal."""
