"""Keep message keys in RocketMQ's index files: `store.index.key_files` implemented for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar, cast

from quarry_mq.store.index.hash.index import HashIndex, HashIndexState
from quarry_mq.store.index.hash.layout import HashHeader
from quarry_mq.store.index.key_files import Answer
from quarry_mq.store.index.keys import KeyItems
from quarry_mq.store.message import PhysicalOffset

Wanted = TypeVar("Wanted")


class HashKeyFiles:
    """Implements `KeyFiles`. A state is the name of the newest file and its header's fields."""

    with_tags = True

    def __init__(self, index: HashIndex) -> None:
        self.index = index

    @property
    def failure(self) -> str | None:
        return self.index.failure

    @property
    def file_count(self) -> int:
        return len(self.index.files)

    @property
    def state(self) -> list[object] | None:
        state = self.index.state
        return None if state is None else [state.name, *state.header]

    def put(self, items: KeyItems) -> None:
        before = self.index.state
        try:
            self.index.put(items)
        except OSError:
            if self.index.failure is None:
                self.index.go_back(before)
            raise

    def flush(self) -> None:
        self.index.flush()

    def settle(self, state: object) -> None:
        """Do nothing: full files stay as they are."""

    def go_back(self, state: object) -> None:
        if state is None:
            self.index.go_back(None)
            return
        name, *header = cast("list[object]", state)
        self.index.go_back(HashIndexState(str(name), HashHeader(*cast("list[int]", header))))

    def expire(self, minimum: PhysicalOffset) -> int:
        return self.index.expire(minimum)

    def repair_one(self, read: Callable[[PhysicalOffset, PhysicalOffset], Iterator[KeyItems]]) -> bool:  # noqa: ARG002
        """Return False: these files hold nothing that shows damage."""
        return False

    def find(
        self,
        text: str,
        *,
        begin_ms: int,
        end_ms: int,
        limit: int,
        accept: Callable[[PhysicalOffset], Wanted | None],
    ) -> Answer[Wanted]:
        answer: Answer[Wanted] = Answer()
        for hit in self.index.hits(text, begin_ms, end_ms):
            if len(answer.found) >= limit:
                break
            wanted = accept(hit.physical_offset)
            if wanted is not None:
                answer.found.append(wanted)
        return answer

    def close(self) -> None:
        self.index.close()
