"""Tag filter expressions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from quarry_mq.protocol.messages.property_names import TAGS
from quarry_mq.server.filters.java_text import trimmed
from quarry_mq.server.filters.message_filter import LENGTH_MAX, remembering
from quarry_mq.server.filters.sql_nodes import IllegalExpression
from quarry_mq.store.record import java_hash

ALL: Final = "*"
SEPARATOR: Final = "||"


class TagFilter(NamedTuple):
    """A filter such as `A || B`: the tags, and their hashes as consume queue entries hold them. No tags match every
    message.

    The hash decides without reading the record; the exact tag decides in the end, since hashes collide.
    """

    tags: frozenset[str]
    codes: frozenset[int]

    @classmethod
    def parse(cls, expression: str) -> TagFilter:
        """Return the filter of an expression. Raises IllegalExpression if it is too long."""
        return _parse_tags(expression)

    @property
    def length(self) -> int:
        """Return the least number of characters that an expression of these tags has."""
        return sum(map(len, self.tags)) + len(SEPARATOR) * len(self.tags)

    @property
    def wants_all(self) -> bool:
        return not self.tags

    def may_match(self, tags_code: int) -> bool:
        return not self.tags or tags_code in self.codes

    def matches(self, properties: Mapping[str, str]) -> bool:
        return not self.tags or properties.get(TAGS) in self.tags


@remembering
def _parse_tags(expression: str) -> TagFilter:
    if len(expression) > LENGTH_MAX:
        raise IllegalExpression(f"a filter expression has at most {LENGTH_MAX} characters, not {len(expression)}")
    if trimmed(expression) in ("", ALL):
        return TagFilter(frozenset(), frozenset())
    tags = frozenset(tag for part in expression.split(SEPARATOR) if (tag := trimmed(part)))
    return TagFilter(tags, frozenset(java_hash(tag) for tag in tags))
