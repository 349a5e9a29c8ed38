"""The keys by which a message is found, and their hashes (docs/formats/key-index.md).

The input of an index is items: for each key of each message its hash, and where the record lies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from quarry_mq.protocol.messages.property_names import KEYS, TAGS, UNIQUE_KEY
from quarry_mq.store.message import DispatchRequest, PhysicalOffset
from quarry_mq.store.record.properties import java_hash

Hashes = NDArray[np.int32]

TOPIC_END: Final = "#"
"""The separator of topic and key in the hashed text. Topic names cannot contain it, keys may."""
TAG_KIND: Final = "T"
KEY_END: Final = " "
"""The separator of the keys of one message."""
_HASHED_AT_ONCE_MAX: Final = 256
"""Characters of a text up to which many are hashed at once. Longer texts are hashed one by one, since the short ones
would be padded to their length.
"""
_INTEGER_MIN: Final = -(2**31)


def keys_of(properties: Mapping[str, str]) -> Iterator[str]:
    """Yield the keys of a message in the order in which RocketMQ indexes them: its id, then the sender's keys.

    A key that a sender gave twice comes twice.
    """
    unique = properties.get(UNIQUE_KEY)
    if unique:
        yield unique
    for key in properties.get(KEYS, "").split(KEY_END):
        if key:
            yield key


def key_text(topic: str, key: str) -> str:
    """Return the text to hash for a key: it names the topic, so a key is found in one topic only."""
    return f"{topic}{TOPIC_END}{key}"


def tag_text(topic: str, tag: str) -> str:
    """Return the text to hash for a tag, which RocketMQ 5.5 indexes, too."""
    return f"{topic}{TOPIC_END}{TAG_KIND}{TOPIC_END}{tag}"


def key_hash(text: str) -> int:
    """Return the stored hash of a text: the absolute value of Java's, or 0 where that does not fit in 32 bits."""
    value = java_hash(text)
    return 0 if value == _INTEGER_MIN else abs(value)


def key_hashes(texts: Sequence[str]) -> Hashes:
    """Return `key_hash` of each text: shape (n,), never negative. Many at once take a tenth of the time."""
    hashes = np.zeros(len(texts), np.int32)
    longest = max(map(len, texts), default=0)
    if longest > _HASHED_AT_ONCE_MAX:
        short = [number for number, text in enumerate(texts) if len(text) <= _HASHED_AT_ONCE_MAX]
        for number in set(range(len(texts))).difference(short):
            hashes[number] = key_hash(texts[number])
        hashes[short] = key_hashes([texts[number] for number in short])
        return hashes
    if not longest:
        return hashes
    entries = _entries(texts)
    powers = np.ones(entries.shape[1], np.uint32)
    np.cumprod(np.full(entries.shape[1] - 1, 31, np.uint32), out=powers[1:])
    # the padding stands in front and adds nothing to the sum
    values: Hashes = (entries * powers[::-1]).sum(axis=1, dtype=np.uint32).view(np.int32)
    values[values == _INTEGER_MIN] = 0
    np.abs(values, out=values)
    return values


def _entries(texts: Sequence[str]) -> NDArray[np.uint32]:
    """Return the UTF-16 units of the texts, each with zeros in front of it: shape (n, most units)."""
    if all(map(str.isascii, texts)):
        encoded, width = [text.encode("ascii") for text in texts], 1
    else:
        encoded, width = [text.encode("utf-16-le", "surrogatepass") for text in texts], 2
    longest = max(map(len, encoded))
    joined = b"".join([text.rjust(longest, b"\0") for text in encoded])
    return np.frombuffer(joined, f"<u{width}").reshape(len(texts), -1).astype(np.uint32)


Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class KeyItems:
    """Keys of messages in log order; every array has the shape (n,). A message with k keys has k rows."""

    hashes: Hashes
    physical_offset: Integers
    stored_ms: Integers

    def __len__(self) -> int:
        return len(self.hashes)

    def rows(self, begin: int, end: int) -> KeyItems:
        """Return a range of the rows."""
        return KeyItems(
            self.hashes[begin:end],
            self.physical_offset[begin:end],
            self.stored_ms[begin:end],
        )

    def after(self, up_to: PhysicalOffset) -> KeyItems:
        """Return the rows of records at or above an offset."""
        return self.rows(int(np.searchsorted(self.physical_offset, up_to)), len(self.hashes))


def items_of(requests: Iterable[DispatchRequest], *, with_tags: bool) -> KeyItems:
    """Return the items of the requests' messages; `with_tags`: also one for each message's tag, if it has one."""
    texts: list[str] = []
    places: list[tuple[int, int]] = []
    for request in requests:
        topic = request.topic
        place = request.physical_offset, request.store_timestamp_ms
        for key in keys_of(request.properties):
            texts.append(key_text(topic, key))
            places.append(place)
        tag = request.properties.get(TAGS) if with_tags else None
        if tag:
            texts.append(tag_text(topic, tag))
            places.append(place)
    columns = np.array(places, np.int64).reshape(-1, 2)
    return KeyItems(key_hashes(texts), *columns.T)
