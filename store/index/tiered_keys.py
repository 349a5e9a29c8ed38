"""Keep message keys in the tiered index: `store.index.key_files` implemented for it. The payload is an offset."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar, cast

import numpy as np

from quarry_mq.store.errors import StoreDamaged
from quarry_mq.store.index.key_files import Answer
from quarry_mq.store.index.keys import KeyItems, key_hash
from quarry_mq.store.index.tiered.chain_file import Found, IndexItems
from quarry_mq.store.index.tiered.layout import FileHeader, Kind
from quarry_mq.store.index.tiered.tiered_index import TieredIndex, TieredState
from quarry_mq.store.message import PhysicalOffset

PLACE: Final = np.dtype([("physical_offset", ">i8")])
"""The payload of an item: where its record lies."""

Wanted = TypeVar("Wanted")


class TieredKeyFiles:
    """Implements `KeyFiles`. A state is the name of the newest file and its header's fields."""

    with_tags = False
    """Tags get no items: millions of messages have the same tag, so it does not find one message."""

    def __init__(self, index: TieredIndex) -> None:
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
        return None if state is None else [state.name, state.header.kind.name, *state.header[1:]]

    @staticmethod
    def newest_of(state: object) -> str:
        """Return the name of a state's newest file, "" if there is none; older files are unchanged since that state."""
        return "" if state is None else str(cast("list[object]", state)[0])

    def put(self, items: KeyItems) -> None:
        self.index.put(_as_stored(items))

    def flush(self) -> None:
        self.index.flush()

    def settle(self, state: object) -> None:
        self.index.settle(_parsed(state))

    def go_back(self, state: object) -> None:
        self.index.go_back(_parsed(state))

    def expire(self, minimum: PhysicalOffset) -> int:
        return self.index.expire(minimum)

    def repair_one(self, read: Callable[[PhysicalOffset, PhysicalOffset], Iterator[KeyItems]]) -> bool:
        gap = next(iter(self.index.gaps), None)
        if gap is None:
            return False
        begin, end = PhysicalOffset(gap.begin_place), PhysicalOffset(gap.end_place)
        self.index.rebuild(gap, lambda: map(_as_stored, read(begin, end)))
        return True

    def find(
        self,
        text: str,
        *,
        begin_ms: int,
        end_ms: int,
        limit: int,
        accept: Callable[[PhysicalOffset], Wanted | None],
    ) -> Answer[Wanted]:
        def accepted(item: Found) -> Wanted | None:
            return accept(PhysicalOffset(int(item.payload["physical_offset"])))

        return self.index.search(key_hash(text), begin_ms=begin_ms, end_ms=end_ms, limit=limit, accept=accepted)

    def close(self) -> None:
        self.index.close()


def _as_stored(items: KeyItems) -> IndexItems:
    places = np.empty(len(items), PLACE)
    places["physical_offset"] = items.physical_offset
    return IndexItems(items.hashes, items.stored_ms, places)


def _parsed(state: object) -> TieredState | None:
    """Parse a state. Raises StoreDamaged for one of an earlier layout, whose headers had fewer fields."""
    if state is None:
        return None
    name, kind, *numbers = cast("list[object]", state)
    if len(numbers) != len(FileHeader._fields) - 1:
        raise StoreDamaged(Path(str(name)), "the saved progress has an older layout")
    return TieredState(str(name), FileHeader(Kind[str(kind)], *cast("list[int]", numbers)))
