"""Tag expressions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from store.record import java_hash
from store.record.properties import TAGS

ALL: Final = "*"
SEPARATOR: Final = "||"


class TagFilter(NamedTuple):
    """`A || B`: the tags wanted, and their hashes as consume queue entries hold them. No tags: every message.

    The hash decides without reading the record; the exact tag decides in the end, since hashes collide.
    """

    tags: frozenset[str]
    codes: frozenset[int]

    @classmethod
    def parse(cls, expression: str) -> TagFilter:
        return _parse(expression)

    def may_match(self, tags_code: int) -> bool:
        return not self.tags or tags_code in self.codes

    def matches(self, properties: Mapping[str, str]) -> bool:
        return not self.tags or properties.get(TAGS) in self.tags


@lru_cache(maxsize=1024)
def _parse(expression: str) -> TagFilter:
    if expression.strip() in ("", ALL):
        return TagFilter(frozenset(), frozenset())
    tags = frozenset(tag for part in expression.split(SEPARATOR) if (tag := part.strip()))
    return TagFilter(tags, frozenset(java_hash(tag) for tag in tags))
