"""The contract between the key index and the files that hold its items, and the result of a search in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from quarry_mq.store.index.keys import KeyItems
from quarry_mq.store.message import PhysicalOffset

Wanted = TypeVar("Wanted")


class Unread(NamedTuple):
    """A file that could not be read, so that a search result may be incomplete."""

    name: str
    reason: str


@dataclass(slots=True)
class Answer(Generic[Wanted]):
    """The result of a search, the newest first. `files` is the number of searched files of the tiered index."""

    found: list[Wanted] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    files: int = 0


class KeyFiles(Protocol):
    """Keep one kind of index files. One thread changes them; any thread may query.

    A *state* describes the whole content at one moment, as a JSON value: None when there was nothing.
    """

    with_tags: bool
    """True if tags have items, too."""

    @property
    def failure(self) -> str | None:
        """The error of a failed flush or `go_back`: the content is unknown until a `go_back` succeeds."""

    @property
    def file_count(self) -> int: ...

    @property
    def state(self) -> object: ...

    def put(self, items: KeyItems) -> None:
        """Add items, in log order: all of them, or none when it raises OSError."""

    def flush(self) -> None:
        """Make all added items durable. Raises OSError."""

    def settle(self, state: object) -> None:
        """Promise that `go_back` will not be called with an earlier state than this."""

    def go_back(self, state: object) -> None:
        """Return to the content at this state, which must be durable, and remove everything else.

        Raises OSError; StoreDamaged when the content is not what it was.
        """

    def expire(self, minimum: PhysicalOffset) -> int:
        """Remove files whose records all lie below an offset; return how many were removed. Raises OSError."""

    def repair_one(self, read: Callable[[PhysicalOffset, PhysicalOffset], Iterator[KeyItems]]) -> bool:
        """Rebuild files that were found damaged; return whether there were any. Raises OSError, and what `read` raises.

        `read` yields the items of the records from one offset to another, both included, as far as the log has them.
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
        """Return the newest `limit` items of a key text for which `accept` returns a value: hashes may be shared.

        The times are store times of the records, to the second. An item may come twice. Raises what `accept` raises.
        """

    def close(self) -> None: ...
