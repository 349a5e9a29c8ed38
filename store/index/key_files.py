"""The contract between the key index and the files that hold its items, and the answer of a search in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from quarry_mq.store.index.items import KeyItems
from quarry_mq.store.offsets import PhysicalOffset

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


class KeyFiles(Protocol):
    """One kind of files. One thread changes them; any may ask.

    A *state* tells all that there was at a moment, as something JSON has: None when there was nothing.
    """

    with_tags: bool
    """Whether tags have items, too."""

    @property
    def failure(self) -> str | None:
        """A flush failed, or going back did: nobody knows what the files hold, until `go_back` to a state before it."""

    @property
    def file_count(self) -> int: ...

    @property
    def state(self) -> object: ...

    def put(self, items: KeyItems) -> None:
        """Add items, in log order: all of them, or none when it raises OSError."""

    def flush(self) -> None:
        """Make all that was put durable. Raises OSError."""

    def settle(self, state: object) -> None:
        """Nobody will go back further than to this."""

    def go_back(self, state: object) -> None:
        """Keep what there was when the state was this, and nothing else; it must be durable.

        Raises OSError; StoreDamaged when it is not what it was.
        """

    def expire(self, minimum: PhysicalOffset) -> int:
        """Remove files whose records all lie below an offset; returns how many. Raises OSError."""

    def repair_one(self, read: Callable[[PhysicalOffset, PhysicalOffset], Iterator[KeyItems]]) -> bool:
        """Make files that turned out to be damaged anew; whether there were any. Raises OSError, and what `read` does.

        `read` tells the items of the records from one offset to another, both included, as far as the log has them.
        """

    def find(
        self,
        text: str,
        *,
        begin_ms: int,
        end_ms: int,
        limit: int,
        accept: Callable[[PhysicalOffset], Wanted | None],
    ) -> Answer[Wanted]:
        """The newest `limit` items of a key text that `accept` makes something of: hashes may be shared.

        The times are of their records, to the second. An item may come twice. Raises what `accept` does.
        """

    def close(self) -> None: ...
