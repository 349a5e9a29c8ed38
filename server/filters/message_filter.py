"""What delivery asks of a filter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class MessageFilter(Protocol):
    """Decides in two steps: by the consume queue entry, which costs nothing, then by the record."""

    @property
    def length(self) -> int:
        """Characters of its expression, more or less: it takes up to 160 bytes of memory for each."""

    @property
    def wants_all(self) -> bool:
        """Whether every message is wanted, so that nobody need look at any."""

    def may_match(self, tags_code: int) -> bool:
        """Whether a message with this tags code can be wanted; the record is read only then."""

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Whether the message with these stored properties is wanted."""
