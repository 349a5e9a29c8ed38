"""List the files of key indexes, and check whether they are intact."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

import numpy as np

from quarry_mq.store.errors import StoreDamaged
from quarry_mq.store.index.indexes import KeyIndexes
from quarry_mq.store.index.keys import KeyItems
from quarry_mq.store.index.tiered.folders import Stage
from quarry_mq.store.index.tiered.tiered_index import TieredIndex


def items_in(indexes: KeyIndexes, file: IndexFile) -> Iterator[KeyItems]:
    """Yield the items of one file in no order, some hundred thousand at a time.

    The file must be on this machine and not damaged. Times in RocketMQ's files are those of the records to the second.
    Raises StoreDamaged, OSError.
    """
    if file.kind is IndexKind.HASH:
        assert indexes.hash_files is not None
        yield from indexes.hash_files.stored_items(file.name)
        return
    assert indexes.tiered is not None
    for items in indexes.tiered.stored_items(file.name):
        yield KeyItems(items.hashes, items.payloads["physical_offset"].astype(np.int64), items.times_ms)


class IndexKind(Enum):
    """The kinds of index files: RocketMQ's (`hash`) and ours (`tiered`)."""

    HASH = "hash"
    TIERED = "tiered"


DAMAGED = "damaged"
FULL = "full"


class IndexFile(NamedTuple):
    """Describe an index file. `stage` is the tiered index's, `filling` and `full` for RocketMQ's files, or `damaged`.

    Of a damaged one only the name is known. Times are ms since 1970, offsets those of the first and the last record.
    """

    kind: IndexKind
    name: str
    stage: str
    items: int = 0
    size_bytes: int = 0
    begin_ms: int = 0
    end_ms: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    is_local: bool = True
    damage: str = ""
    unread: str = ""
    """The reason why the file could not be read for a check."""

    @property
    def is_filled(self) -> bool:
        """True if the file still changes: then nothing can be checked."""
        return self.stage == Stage.FILLING.value


def index_files(indexes: KeyIndexes) -> list[IndexFile]:
    """Return all files, oldest first, RocketMQ's before those of the tiered index."""
    return [*_hash_files(indexes), *(() if indexes.tiered is None else _tiered_files(indexes.tiered))]


def checked(indexes: KeyIndexes, file: IndexFile) -> IndexFile:
    """Read every byte of the file and return it with the damage found."""
    index = indexes.hash_files if file.kind is IndexKind.HASH else indexes.tiered
    try:
        if index is not None:
            index.check(file.name)
    except StoreDamaged as error:
        return file._replace(damage=str(error))
    except OSError as error:
        return file._replace(unread=str(error))
    return file


def _hash_files(indexes: KeyIndexes) -> Iterator[IndexFile]:
    if indexes.hash_files is None:
        return
    full = {each.name for each in indexes.hash_files.full}
    for name, header in indexes.hash_files.files:
        yield IndexFile(
            kind=IndexKind.HASH,
            name=name,
            stage=FULL if name in full else Stage.FILLING.value,
            items=header.next_number - 1,
            size_bytes=indexes.hash_files.shape.file_size,
            begin_ms=header.begin_ms,
            end_ms=header.end_ms,
            begin_offset=header.begin_offset,
            end_offset=header.end_offset,
        )


def _tiered_files(tiered: TieredIndex) -> list[IndexFile]:
    damages = {each.name: each.reason for each in tiered.damaged}
    found = {
        file.name: IndexFile(
            kind=IndexKind.TIERED,
            name=file.name,
            stage=file.stage.value,
            items=file.header.items,
            size_bytes=file.header.file_size,
            begin_ms=file.header.begin_ms,
            end_ms=file.header.end_ms,
            begin_offset=file.header.begin_place,
            end_offset=file.header.end_place,
            is_local=file.is_local,
            damage=damages.pop(file.name, ""),
        )
        for file in tiered.files
    }
    for name, damage in damages.items():
        found[name] = IndexFile(IndexKind.TIERED, name, DAMAGED, damage=damage)
    return [found[name] for name in sorted(found)]
