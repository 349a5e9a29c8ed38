"""RocketMQ's key index: a folder of files, the newest of which is added to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

from quarry_mq.protocol.clock import Clock
from quarry_mq.store.errors import StoreDamaged
from quarry_mq.store.fs import DirectoryEntry, Disk
from quarry_mq.store.index.chains import ChainShape
from quarry_mq.store.index.hash.file import HashHit, HashIndexFile
from quarry_mq.store.index.hash.layout import HashHeader
from quarry_mq.store.index.keys import KeyItems, key_hash
from quarry_mq.store.message import PhysicalOffset

NAME: Final = re.compile(r"[0-9]{17}", re.ASCII)
READ_AT_ONCE: Final = 1 << 18
"""Items read at once."""


class HashIndexState(NamedTuple):
    """A file and its header at one moment. The newest file's state describes the whole index: older files are full."""

    name: str
    header: HashHeader


def index_files(disk: Disk, directory: Path) -> list[DirectoryEntry]:
    """Return the files of an index, oldest first. Other names are not ours.

    A file is empty when a crash prevented its creation.
    """
    entries = disk.list_directory(directory)
    return [each for each in entries if not each.is_directory and NAME.fullmatch(each.name)]


class HashIndex:
    """The files of the index. One thread adds, flushes and removes; others may query meanwhile."""

    def __init__(self, disk: Disk, directory: Path, shape: ChainShape, clock: Clock, *, writable: bool = True) -> None:
        """Open the files as they are. If `writable`, make the directory and remove empty files; else change nothing.

        Raises StoreDamaged for a file whose size is not the shape's, OSError.
        """
        self._disk = disk
        self._directory = directory
        self.shape: Final = shape
        self._clock = clock
        # replaced, never changed: queries go through them meanwhile
        self._full: tuple[HashIndexState, ...] = ()
        self._newest: HashIndexFile | None = None
        self.failure: str | None = None
        """The error of a failed flush or `go_back`: the files' content is unknown until a `go_back` succeeds."""
        self._writable = writable
        if writable:
            disk.make_directories(directory)
            for each in index_files(disk, directory):
                if not each.size:
                    disk.remove(directory / each.name)
        self._load()

    def _load(self) -> None:
        files = tuple(self._state_of(each.name) for each in index_files(self._disk, self._directory) if each.size)
        if self._writable and files and files[-1].header.next_number <= self.shape.items_max:
            self._newest = self._open(files[-1].name, writable=True)
            files = files[:-1]
        self._full = files

    def _open(self, name: str, *, writable: bool = False) -> HashIndexFile:
        return HashIndexFile(self._disk.open_segment(self._directory / name, writable=writable), self.shape)

    def _state_of(self, name: str) -> HashIndexState:
        with closing(self._open(name)) as file:
            return HashIndexState(name, file.header)

    @property
    def files(self) -> tuple[HashIndexState, ...]:
        """Return all files, oldest first."""
        newest = self._newest
        return self._full if newest is None else (*self._full, HashIndexState(newest.path.name, newest.header))

    @property
    def full(self) -> tuple[HashIndexState, ...]:
        """The files that are full; they are durable."""
        return self._full

    @property
    def state(self) -> HashIndexState | None:
        """The argument for a later `go_back`; None when there is no file."""
        files = self.files
        return files[-1] if files else None

    @property
    def end_offset(self) -> PhysicalOffset:
        """The physical offset of the last record that has items, 0 when there is none."""
        files = self.files
        return PhysicalOffset(files[-1].header.end_offset if files else 0)

    def check(self, name: str) -> None:
        """Check every item of a full file, as the format has no checksums. Raises StoreDamaged, OSError."""
        if name in {each.name for each in self._full}:
            with closing(self._open(name)) as file:
                file.check()

    def stored_items(self, name: str) -> Iterator[KeyItems]:
        """Yield all items of one file, oldest first, in parts. Raises OSError."""
        with closing(self._open(name)) as file:
            end = file.header.next_number
            for begin in range(1, end, READ_AT_ONCE):
                yield file.stored(begin, min(begin + READ_AT_ONCE, end))

    # -- adding

    def put(self, items: KeyItems) -> None:
        """Add items, in log order. After an OSError, some of them may have been added."""
        begin = 0
        while begin < len(items):
            file = self._newest if self._newest is not None else self._begin_file()
            some = items.rows(begin, begin + file.room)
            file.add(some.hashes, some.physical_offset, some.stored_ms)
            begin += len(some)
            if not file.room:
                self._flush(file)
                self._full = self.files
                self._newest = None
                file.close()

    def _begin_file(self) -> HashIndexFile:
        name = self._free_name()
        file = HashIndexFile(self._disk.create_segment(self._directory / name, self.shape.file_size), self.shape)
        if self._full:
            file.go_on_from(self._full[-1].header)
        self._newest = file
        return file

    def _free_name(self) -> str:
        """Return the current time as RocketMQ writes it, or a little later: names are in the order of the files."""
        now = datetime.fromtimestamp(self._clock.wall_ms() / 1000)
        name = f"{now:%Y%m%d%H%M%S}{now.microsecond // 1000:03d}"
        last = self._full[-1].name if self._full else ""
        return name if name > last else f"{int(last) + 1:017d}"

    def flush(self) -> None:
        """Make all added items durable. Raises OSError, which is then the `failure`, too."""
        if self._newest is not None:
            self._flush(self._newest)

    def _flush(self, file: HashIndexFile) -> None:
        try:
            file.flush()
        except OSError as error:
            self.failure = str(error)
            raise

    # -- removing

    def go_back(self, state: HashIndexState | None) -> None:
        """Return to the content at this state, which must be durable, and remove everything else.

        Raises OSError, StoreDamaged, which are then the `failure`, too.
        """
        try:
            self._go_back(state)
        except (OSError, StoreDamaged) as error:
            self.failure = str(error)
            raise
        self.failure = None

    def _go_back(self, state: HashIndexState | None) -> None:
        last = "" if state is None else state.name
        self._remove(each.name for each in self.files if each.name > last)
        if state is not None and any(each.name == last for each in self.files):
            with closing(self._open(last, writable=True)) as file:
                file.restore(state.header)
                file.flush()
            self._load()

    def keep_until(self, end_ms: int) -> None:
        """Keep only full files that end at or before a store time, as RocketMQ does after its crash.

        A file that was being filled may end in the same millisecond as the last full one, and be torn.
        """
        whole = {each.name for each in self._full if each.header.end_ms <= end_ms}
        self._remove(each.name for each in self.files if each.name not in whole)

    def expire(self, minimum: PhysicalOffset) -> int:
        """Remove full files whose records all lie below an offset; return how many were removed. Raises OSError."""
        return self._remove(each.name for each in self._full if each.header.end_offset < minimum)

    def _remove(self, names: Iterable[str]) -> int:
        gone = set(names)
        for name in gone:
            self._disk.remove(self._directory / name)
        if gone:
            self.close()
            self._load()
        return len(gone)

    def close(self) -> None:
        newest, self._newest = self._newest, None
        if newest is not None:
            newest.close()

    # -- reading

    def hits(self, text: str, begin_ms: int, end_ms: int) -> Iterator[HashHit]:
        """Yield items that may be of a key text (`store.index.keys`), stored in [begin_ms, end_ms], newest first."""
        hashed = key_hash(text)
        newest, full = self._newest, self._full
        if newest is not None and newest.header.may_hold(begin_ms, end_ms):
            yield from newest.hits(hashed, begin_ms, end_ms)
        for name, header in reversed(full):
            # a file that became full just now was searched as the newest
            if header.may_hold(begin_ms, end_ms) and (newest is None or name != newest.path.name):
                yield from self._hits_of_full(name, hashed, begin_ms, end_ms)

    def _hits_of_full(self, name: str, hashed: int, begin_ms: int, end_ms: int) -> Iterator[HashHit]:
        try:
            file = self._open(name)
        except FileNotFoundError:
            return  # expired since the query began
        with closing(file):
            yield from file.hits(hashed, begin_ms, end_ms)
