"""Find the newest items with a hash in many files, reading no further than necessary.

Files are searched from the newest to the oldest: local ones one after the other, remote ones several at a time. All
readers share one count. A reader stops as soon as it and the readers of newer files have found enough, and no further
file is begun once there is enough: items of older files would not be among the newest.

A silent remote store is not waited for file after file: when a search has taken long enough, the files that it has not
begun are reported as unread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from itertools import groupby
from threading import Lock
from typing import Generic, Protocol, TypeVar

from quarry_mq.store.errors import StoreDamaged
from quarry_mq.store.index.key_files import Answer, Unread
from quarry_mq.store.index.tiered.chain_file import Found

Wanted = TypeVar("Wanted")


class Searchable(Protocol):
    """Describe one file of the index."""

    @property
    def name(self) -> str: ...

    @property
    def is_remote(self) -> bool:
        """True if reading the file takes long, and costs this machine nothing meanwhile."""

    def find(self, hashed: int) -> Iterator[Found]:
        """Yield the items with a hash, the newest first. Raises OSError, StoreDamaged."""


class Search(Generic[Wanted]):
    """Run one search, over files from the newest to the oldest."""

    def __init__(
        self,
        hashed: int,
        *,
        begin_ms: int,
        end_ms: int,
        limit: int,
        accept: Callable[[Found], Wanted | None],
        is_late: Callable[[], bool] = lambda: False,
    ) -> None:
        """Search for the newest `limit` items of [begin_ms, end_ms] for which `accept` returns a value.

        `accept` is needed because hashes may be shared. Once `is_late` returns true, no other remote file is read.
        """
        self._hashed = hashed
        self._begin_ms = begin_ms
        self._end_ms = end_ms
        self._limit = limit
        self._accept = accept
        self._is_late = is_late
        self._lock = Lock()
        self._found: list[list[Wanted]] = []  # by file, in the order of the files; guarded by _lock
        self._unread: list[Unread] = []  # guarded by _lock

    def run(self, files: Sequence[Searchable], executor: Executor, concurrency: int) -> Answer[Wanted]:
        """Search the files. `executor` runs the readers of remote files."""
        for is_remote, group in groupby(files, key=lambda file: file.is_remote):
            if is_remote:
                self._run_beside_each_other(group, executor, concurrency)
                continue
            for file in group:
                if self._has_enough():
                    break
                self._look_into(file, self._begin())
        found = [each for some in self._found for each in some][: self._limit]
        return Answer(found, self._unread, len(self._found))

    def _run_beside_each_other(self, files: Iterator[Searchable], executor: Executor, concurrency: int) -> None:
        running: set[Future[None]] = set()
        try:
            while True:
                while len(running) < concurrency and not self._has_enough():
                    file = next(files, None)
                    if file is None:
                        break
                    if self._is_late():
                        with self._lock:
                            self._unread.append(Unread(file.name, "the search timed out before this file was read"))
                        continue
                    running.add(executor.submit(self._look_into, file, self._begin()))
                if not running:
                    return
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for each in done:
                    each.result()
        finally:
            wait(running)

    def _begin(self) -> int:
        """Return the position of the next file among all files."""
        with self._lock:
            self._found.append([])
            return len(self._found) - 1

    def _has_enough(self, up_to: int | None = None) -> bool:
        """Return whether the files before a position have enough items; without a position, whether all files have."""
        with self._lock:
            return sum(map(len, self._found[:up_to])) >= self._limit

    def _look_into(self, file: Searchable, place: int) -> None:
        items = file.find(self._hashed)
        while not self._has_enough(place + 1):
            try:
                item = next(items, None)
            except (OSError, StoreDamaged) as error:
                with self._lock:
                    self._unread.append(Unread(file.name, str(error)))
                return
            if item is None or item.time_ms < self._begin_ms:
                return  # those that follow are older
            wanted = self._accept(item) if item.time_ms <= self._end_ms else None
            if wanted is not None:
                with self._lock:
                    self._found[place].append(wanted)
