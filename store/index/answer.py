"""What a search in an index has found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

Wanted = TypeVar("Wanted")


class Unread(NamedTuple):
    """A file that could not be read, so that something may be missing from an answer."""

    name: str
    reason: str


@dataclass(slots=True)
class Answer(Generic[Wanted]):
    """The newest first. `files` is how many of the tiered index were looked into."""

    found: list[Wanted] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    files: int = 0
