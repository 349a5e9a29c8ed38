"""The messages that a reader asks for: those that a filter matches and whose body contains some bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from quarry_mq.protocol.messages.bodies import uncompressed_parts
from quarry_mq.protocol.messages.system_flag import compression
from quarry_mq.server.filters import MessageFilter, SqlFilter, TagFilter
from quarry_mq.server.filters.java_text import trimmed
from quarry_mq.server.tasks.time_slice import TimeSlice
from quarry_mq.store.errors import Invalid
from quarry_mq.store.record import StoredMessage

CONTAINED_MAX: Final = 256
"""Bytes of the text that is searched in bodies."""
PART_SIZE: Final = 256 * 1024
"""Bytes of a body that are searched in one go: a tenth of a millisecond."""


class MessageWish(NamedTuple):
    """A filter for messages. An empty `contained` matches any body.

    `may_see` excludes messages that the reader may not see; None: the reader may see all.
    """

    filter: MessageFilter
    contained: bytes = b""
    may_see: Callable[[StoredMessage], bool] | None = None

    @classmethod
    def of(cls, expression: str, *, is_sql: bool, contained: bytes) -> MessageWish:
        """Build a filter from a request. Raises Invalid that names the field."""
        if len(contained) > CONTAINED_MAX:
            raise Invalid(f"filter.body_contains: {len(contained)} bytes, at most {CONTAINED_MAX} are allowed")
        is_written = bool(trimmed(expression))
        if not is_written and not contained:
            return EVERYTHING
        try:
            is_sql = is_sql and is_written
            chosen: MessageFilter = SqlFilter.parse(expression) if is_sql else TagFilter.parse(expression)
        except Invalid as error:
            raise Invalid(f"filter.expression: {error}") from error
        return cls(chosen, contained)

    def may_match(self, tags_code: int) -> bool:
        """Return whether the record may match and has to be read."""
        return self.filter.may_match(tags_code)

    async def matches(self, message: StoredMessage, time_slice: TimeSlice) -> bool:
        if self.may_see is not None and not self.may_see(message):
            return False
        return self.filter.matches(message.properties) and (
            not self.contained or await contains(message, self.contained, time_slice)
        )


EVERYTHING: Final = MessageWish(TagFilter.parse(""))


async def contains(message: StoredMessage, contained: bytes, time_slice: TimeSlice) -> bool:
    """Return whether the uncompressed body contains the bytes. A body that cannot be uncompressed does not."""
    overlap = b""
    for part in _parts(message):
        looked_at = overlap + part
        if contained in looked_at:
            return True
        overlap = looked_at[-(len(contained) - 1) :] if len(contained) > 1 else b""
        await time_slice.pause()
    return False


def _parts(message: StoredMessage) -> Iterator[bytes]:
    try:
        method = compression(message.system_flag)
    except ValueError:
        return
    body = message.body
    if method is not None:
        yield from uncompressed_parts(bytes(body), method, PART_SIZE)
        return
    for begin in range(0, len(body), PART_SIZE):
        yield bytes(body[begin : begin + PART_SIZE])
