"""The tiered index: items by hash and time, in files that are filled, sealed, compacted and uploaded.

It does not know what the items mean: each has a hash, a time and a small payload. There are three roles. Each may run
on a thread of its own, and none waits for another:

    put, flush              fill the newest file; a full one is sealed, and the next begun
    compact_one, rebuild    turn the oldest sealed file into a compacted one, and damaged ones into intact ones
    upload_one              copies the oldest compacted file to the object store, and may remove the local copy

Searches may run beside all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple, TypeVar

import numpy as np

from quarry_mq.protocol.clock import Clock, SystemClock
from quarry_mq.store.errors import StoreDamaged
from quarry_mq.store.fs import Disk
from quarry_mq.store.index.key_files import Answer, Unread
from quarry_mq.store.index.tiered.catalog import Catalog
from quarry_mq.store.index.tiered.chain_file import ChainedFile, Found, IndexItems, IndexShape
from quarry_mq.store.index.tiered.folders import (
    STAGES_AFTER_FILLING,
    Gap,
    IndexFolders,
    Stage,
    TieredFile,
    fill_up,
    find_gaps,
)
from quarry_mq.store.index.tiered.full_files import FullFile, FullFiles
from quarry_mq.store.index.tiered.layout import FileHeader, chain_shape
from quarry_mq.store.index.tiered.object_store.protocol import ObjectStore, SlotCache, UploadNote, upload
from quarry_mq.store.index.tiered.runs import Compaction
from quarry_mq.store.index.tiered.search import Search, Searchable
from quarry_mq.store.settings import SLOT_CACHE_BYTES

REMOTE_PATIENCE_S: Final = 10.0
"""A search that has taken this long begins no other file in the object store."""
REMOTE_READERS: Final = 8
"""Files in the object store that one search reads at a time."""

Wanted = TypeVar("Wanted")


class TieredState(NamedTuple):
    """The newest file and its header at one moment. They describe the whole index, as older files are full."""

    name: str
    header: FileHeader


class _Filling:
    """The file being filled, as a search sees it. The search may go on while items are added or the file is sealed."""

    is_remote = False

    def __init__(self, file: ChainedFile) -> None:
        self.name = file.path.name
        self.find = file.find


class TieredIndex:
    """Describe one folder of files.

    `put`, `flush`, `go_back` and `expire` belong to one thread at a time, as does `upload_one`. `compact_one` and
    `rebuild` wait for each other; searches wait for nothing.
    """

    def __init__(
        self,
        disk: Disk,
        root: Path,
        shape: IndexShape,
        *,
        objects: ObjectStore | None = None,
        keep_uploaded: bool = True,
        slot_cache_bytes: int = SLOT_CACHE_BYTES,
        writable: bool = True,
        clock: Clock | None = None,
    ) -> None:
        """Open the existing files. After a crash, or if `state` is not as saved, call `go_back` next.

        `keep_uploaded`: uploaded files also stay on this machine. Not `writable`: nothing is changed, and only searches
        and checks may follow. Raises OSError.
        """
        self._disk = disk
        self._shape = shape
        self.objects: Final = objects
        self._slot_cache = SlotCache(slot_cache_bytes)
        self._clock = clock or SystemClock()
        self._keep_uploaded = keep_uploaded
        self._folders = IndexFolders(disk, root, writable=writable)
        self._catalog = Catalog(disk, self._folders, keep_uploaded=keep_uploaded)
        self._full = FullFiles(disk, self._folders, self._catalog, shape, objects=objects, slots=self._slot_cache)
        self._filling: ChainedFile | None = None
        self._settled = ""
        self._regrouping = Lock()
        self._executor = ThreadPoolExecutor(REMOTE_READERS, thread_name_prefix="index-reader")
        self.rebuilt = 0
        """The number of damaged files that were rebuilt, or dropped because no items were left for them."""
        self.failure: str | None = None
        """The error of a failed flush or `go_back`: the newest file's content is unknown until a `go_back` succeeds."""
        filling = self._folders.names(Stage.FILLING)
        if filling:
            path = self._folders.path(Stage.FILLING, filling[-1])
            with suppress(StoreDamaged):  # a power cut tore it: `go_back` knows its header
                self._filling = ChainedFile.opened(disk.open_segment(path, writable=writable), self._shape)

    # -- what is there

    @property
    def files(self) -> list[TieredFile]:
        """Return all files, oldest first. The header of the file being filled is that of this moment."""
        files, filling = self._catalog.files, self._filling
        found = list(files.values())
        if filling is not None:
            found.append(TieredFile(filling.path.name, Stage.FILLING, filling.header, is_local=True))
        return found

    @property
    def damaged(self) -> list[Unread]:
        """Files that are unreadable, wholly or in part."""
        return [*self._catalog.damaged.values(), *self._catalog.doubtful.values()]

    @property
    def gaps(self) -> list[Gap]:
        """Damaged files that may be rebuilt, oldest first: `go_back` will not return to a state before them."""
        whole = {each.name: each for each in self.files if each.header.items}
        broken = {each.name for each in self.damaged if each.name < self._settled}
        return find_gaps(whole, broken)

    @property
    def state(self) -> TieredState | None:
        """The argument for a later `go_back`; None when there is no file."""
        files = self.files
        return TieredState(files[-1].name, files[-1].header) if files else None

    # -- filling

    def put(self, items: IndexItems) -> None:
        """Add items, the oldest first: all of them, or none when it raises OSError."""
        before = self.state
        try:
            begin = 0
            while begin < len(items):
                file = self._filling if self._filling is not None else self._begin()
                rest = items.rows(begin, len(items))
                count = file.room_for(rest)
                if not count:
                    self._seal(file)
                    continue
                file.add(rest.rows(0, count))
                begin += count
        except OSError:
            if self.failure is None:
                self.go_back(before)
            raise

    def _begin(self) -> ChainedFile:
        last = max([*self._catalog.files, *self._catalog.damaged], default="")
        name = self._folders.name_of(int(last or 0) + 1)
        size = chain_shape(*self._shape).file_size
        file = self._disk.create_segment(self._folders.path(Stage.FILLING, name), size)
        self._filling = ChainedFile.begin(file, self._shape)
        return self._filling

    def _seal(self, file: ChainedFile) -> None:
        """Make a full file durable and close it to further items."""
        file.seal()
        self._flush(file)
        name = file.path.name
        self._folders.advance(name, file.path, Stage.SEALED)
        self._catalog.enter(TieredFile(name, Stage.SEALED, file.header, is_local=True))
        self._filling = None
        file.close()

    def flush(self) -> None:
        """Make all added items durable. Raises OSError, which is then the `failure`, too."""
        if self._filling is not None:
            self._flush(self._filling)

    def _flush(self, file: ChainedFile) -> None:
        try:
            file.flush()
        except OSError as error:
            self.failure = str(error)
            raise

    def settle(self, state: TieredState | None) -> None:
        """Promise that `go_back` will not go to an earlier state than this: older files may be compacted."""
        self._settled = "" if state is None else state.name

    def go_back(self, state: TieredState | None) -> None:
        """Return to the content at this state, which must be durable, and remove everything else.

        Raises OSError, StoreDamaged, which are then the `failure`, too.
        """
        try:
            self._go_back(state)
        except (OSError, StoreDamaged) as error:
            self.failure = str(error)
            raise
        self.failure = None

    def _go_back(self, state: TieredState | None) -> None:
        last = "" if state is None else state.name
        filling, self._filling = self._filling, None
        if filling is not None:
            filling.close()
        for name in [*self._catalog.files, *self._catalog.damaged]:
            if name > last:
                self._delete(name)
        for name in self._folders.names(Stage.FILLING):
            if name > last:
                self._folders.remove(Stage.FILLING, name)
        if state is None:
            return
        path = self._folders.path(Stage.FILLING, last)
        before = self._catalog.files.get(last)
        if before is not None and before.stage is Stage.SEALED:
            with closing(self._full.open_sealed(last)) as sealed, self._full.doubting(before):
                sealed.check_items()
            self._folders.advance(last, self._folders.path(Stage.SEALED, last), Stage.FILLING)
            self._catalog.leave_out(last)
        if self._disk.exists(path):
            file = self._disk.open_segment(path, writable=True)
            self._filling = ChainedFile(file, self._shape, state.header)
            self._filling.restore(state.header)

    # -- moving on

    def compact_one(self) -> bool:
        """Compact the oldest settled sealed file; return whether there was one. Raises OSError, StoreDamaged."""
        with self._regrouping:
            file = self._catalog.oldest(Stage.SEALED)
            if file is None or file.name >= self._settled:
                return False
            with closing(self._full.open_sealed(file.name)) as source, self._full.doubting(file):
                source.check_items()
                self._compact(file.name, source)
            return True

    def _compact(self, name: str, source: ChainedFile) -> None:
        """Make the compacted form of a file, and let it replace the file."""
        making = self._folders.compacting(name)
        self._disk.remove(making)
        compaction = Compaction(source, self._shape)
        with closing(self._disk.create_segment(making, compaction.file_size)) as target:
            header = compaction.write(target)
            target.flush()
            compaction.check(target)
        self._folders.advance(name, making, Stage.COMPACTED)
        self._catalog.enter(TieredFile(name, Stage.COMPACTED, header, is_local=True))
        self._folders.remove(Stage.SEALED, name)

    def upload_one(self) -> bool:
        """Copy the oldest compacted file to the object store; return whether there was one.

        Expired objects are removed from there first. Raises OSError, StoreDamaged.
        """
        if self.objects is None:
            return False
        for retired in self._folders.retired():
            self.objects.remove(retired)
            self._slot_cache.evict(retired)
            self._folders.is_removed(retired)
        file = self._catalog.oldest(Stage.COMPACTED)
        if file is None:
            return False
        object_name = self._folders.object_name(file.name)
        path = self._folders.path(Stage.COMPACTED, file.name)
        with closing(self._disk.open_segment(path, writable=False)) as local:
            checksum = upload(self.objects, object_name, local.view())
        with self._catalog.changing:
            if not self._catalog.has(file) or file.name in self._catalog.doubtful:
                self._folders.retire(object_name)
                return True  # expired, rebuilt or found damaged meanwhile
            self._folders.note(file.name, UploadNote(object_name, checksum, file.header).pack())
            self._slot_cache.evict(object_name)
            uploaded = file._replace(stage=Stage.UPLOADED, is_local=self._keep_uploaded, object_name=object_name)
            self._catalog.enter(uploaded)
        if not self._keep_uploaded:
            self._folders.remove(Stage.COMPACTED, file.name)
        return True

    def expire(self, before: int) -> int:
        """Remove files whose items all have lower places; return how many. The file being filled stays.

        Raises OSError.
        """
        gone = [each.name for each in self._catalog.files.values() if each.header.end_place < before]
        gone += [name for name in self._catalog.damaged if name < max(gone, default="")]
        for name in gone:
            self._delete(name)
        return len(gone)

    def _delete(self, name: str) -> None:
        """Remove a full file in every stage."""
        file = self._catalog.files.get(name)
        if file is not None and file.stage is Stage.UPLOADED:
            self._folders.retire(file.object_name)
        elif file is None and self.objects is not None:
            self._folders.retire(self._folders.object_name(name))  # it may have been uploaded
        self._catalog.leave_out(name)
        self._folders.remove_damaged(name)
        for stage in STAGES_AFTER_FILLING:
            self._folders.remove(stage, name)

    # -- damaged files

    def check(self, name: str) -> None:
        """Read every byte of a full file, in the object store, too; a damaged file is marked as doubtful.

        Raises StoreDamaged; OSError where a file cannot be read.
        """
        self._full.check(name)

    def stored_items(self, name: str) -> Iterator[IndexItems]:
        """Yield all items of a file on this machine, in parts. Raises StoreDamaged, OSError."""
        filling = self._filling
        if filling is not None and filling.path.name == name:
            yield from filling.stored_items()
        elif name in self._catalog.files:
            yield from self._full.stored_items(self._catalog.files[name])

    def rebuild(self, gap: Gap, items: Callable[[], Iterator[IndexItems]]) -> None:
        """Rebuild the files of a gap, compacted.

        Each call of `items` yields all items from the gap's begin place to its end place, in order; those that the
        files beside the gap hold are left out. Raises OSError, StoreDamaged, and what `items` raises.
        """
        with self._regrouping:
            for name in gap.names:
                self._catalog.set_aside(name)
            self._fill(gap, items)
            self.rebuilt += len(gap.names)

    def _fill(self, gap: Gap, items: Callable[[], Iterator[IndexItems]]) -> None:
        left = sum(len(self._not_beside(gap, some)) for some in items())
        batches = (self._not_beside(gap, some) for some in items())
        rest: IndexItems | None = None
        for following, name in zip(reversed(range(len(gap.names))), gap.names, strict=True):
            if not left:
                self._delete(name)
                continue
            # one item is left for each of the other files, so that no name is missing
            path, shape = self._folders.rebuilding(name), self._shape._replace(items_max=max(1, left - following))
            self._disk.remove(path)
            size = chain_shape(*shape).file_size
            with closing(ChainedFile.begin(self._disk.create_segment(path, size), shape)) as file:
                rest = fill_up(file, rest, batches)
                left -= file.header.items
                self._compact(name, file)
            self._folders.remove_damaged(name)
            self._disk.remove(path)

    def _not_beside(self, gap: Gap, items: IndexItems) -> IndexItems:
        """Return the items that belong in the gap."""
        places = items.payloads[self._shape.place]
        keep = gap.covers(places)
        for beside, place in gap.edges:
            for row in np.flatnonzero(keep & (places == place)).tolist():
                keep[row] = not self._holds(beside, int(items.hashes[row]), place)
        return items.chosen(keep)

    def _holds(self, name: str, hashed: int, place: int) -> bool:
        filling, file = self._filling, self._catalog.files.get(name)
        if file is not None:
            found = self._full.find_in(file, hashed)
        elif filling is not None and filling.path.name == name:
            found = filling.find(hashed)
        else:
            return False
        return any(int(each.payload[self._shape.place]) == place for each in found)

    def close(self) -> None:
        filling, self._filling = self._filling, None
        if filling is not None:
            filling.close()
        self._executor.shutdown(cancel_futures=True)

    # -- searching

    def search(
        self,
        hashed: int,
        *,
        begin_ms: int,
        end_ms: int,
        limit: int,
        accept: Callable[[Found], Wanted | None],
    ) -> Answer[Wanted]:
        """Return the newest `limit` items with a hash, of [begin_ms, end_ms], for which `accept` returns a value.

        The result names files that could not be read. Raises what `accept` raises.
        """
        searched: list[Searchable] = []
        filling = self._filling
        if filling is not None and filling.header.may_hold(begin_ms, end_ms):
            searched.append(_Filling(filling))
        for file in reversed(list(self._catalog.files.values())):
            # a file that was sealed just now is searched as the one being filled
            is_new = filling is None or file.name != filling.path.name
            if is_new and file.header.may_hold(begin_ms, end_ms):
                searched.append(FullFile(self._full, file))
        late_s = self._clock.monotonic_s() + REMOTE_PATIENCE_S
        search = Search(
            hashed,
            begin_ms=begin_ms,
            end_ms=end_ms,
            limit=limit,
            accept=accept,
            is_late=lambda: self._clock.monotonic_s() > late_s,
        )
        answer = search.run(searched, self._executor, REMOTE_READERS)
        # a file that this search found to be damaged may have been set aside meanwhile
        found_unread = {each.name for each in answer.unread}
        answer.unread += [each for name, each in self._catalog.damaged.items() if name not in found_unread]
        return answer
