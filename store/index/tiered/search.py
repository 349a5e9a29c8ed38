"""Looking for the newest items with a hash over many files, no further than is needed.

Files are looked through from the newest to the oldest: those on this machine one after the other, those far away
several at a time. All readers share one count. A reader stops as soon as it and those of newer files have found enough,
and no further file is begun once there is enough: what older ones have would not be among the newest.

A store far away that does not answer is not waited for file after file: when a search has taken long enough, those that
it has not begun with are told as not read.
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
    """One file of the index."""

    @property
    def name(self) -> str: ...

    @property
    def is_remote(self) -> bool:
        """Whether reading it takes long, and costs this machine nothing meanwhile."""

    def find(self, hashed: int) -> Iterator[Found]:
        """The items with a hash, the newest first. Raises OSError, StoreDamaged."""


class Search(Generic[Wanted]):
    """One search, over files from the newest to the oldest."""

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
        """For the newest `limit` items of [begin_ms, end_ms] that `accept` makes something of: hashes may be shared.

        Once `is_late`, no other file far away is looked into.
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
        """Look through the files. `executor` runs readers of files that are far away."""
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
                            self._unread.append(Unread(file.name, "the search took too long to ask for it"))
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
        """The place of the next file among all."""
        with self._lock:
            self._found.append([])
            return len(self._found) - 1

    def _has_enough(self, up_to: int | None = None) -> bool:
        """Whether the files before a place, all without one, have enough."""
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
