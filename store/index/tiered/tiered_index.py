"""The tiered index: items by hash and time, in files that are filled, sealed, compacted and uploaded.

It knows nothing of what the items are about: each has a hash, a time and a small payload. Three roles, each on a thread
of its own if wanted, and none waits for another:

    put, flush       fill the newest file; a full one is sealed, and the next begun
    compact_one      turns the oldest sealed file into a compacted one
    upload_one       copies the oldest compacted file to the object store, and lets go of it here if told to

Searches may run beside all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple, TypeVar

import structlog

from store.disk import Disk, SegmentFile
from store.errors import StoreDamaged
from store.index.answer import Answer, Unread
from store.index.tiered.compaction import Compaction
from store.index.tiered.filling import ChainedFile, Found, IndexItems, IndexShape, header_of
from store.index.tiered.folders import IndexFolders, Stage
from store.index.tiered.layout import FileHeader, Kind, chain_shape
from store.index.tiered.objects import ObjectStore, ObjectStoreError
from store.index.tiered.runs import CompactedFile
from store.index.tiered.search import Search, Searchable
from store.index.tiered.uploaded import RemoteReader, UploadNote, upload

log = structlog.get_logger(__name__)

REMOTE_READERS: Final = 8
"""Files in the object store that one search reads at a time."""

Wanted = TypeVar("Wanted")


class TieredState(NamedTuple):
    """The newest file at a moment, and its header then: it tells all that there was, as older ones are full."""

    name: str
    header: FileHeader


class TieredFile(NamedTuple):
    """A file of the index. One that is uploaded may be here, too (`is_local`)."""

    name: str
    stage: Stage
    header: FileHeader
    is_local: bool


class LocalReader:
    """The bytes of a file on this machine."""

    def __init__(self, file: SegmentFile) -> None:
        self.path = file.path
        self._view = file.view()

    def read(self, position: int, size: int) -> memoryview:
        return self._view[position : position + size]


class _Filling:
    """The file that is filled, as it is searched: what is added meanwhile does not matter, nor that it is sealed."""

    is_remote = False

    def __init__(self, file: ChainedFile) -> None:
        self.name = file.path.name
        self.find = file.find


class _Settled:
    """Another file, in the stage in which it was when the search began."""

    def __init__(self, index: TieredIndex, file: TieredFile) -> None:
        self._index = index
        self._file = file
        self.name = file.name
        self.is_remote = not file.is_local

    def find(self, hashed: int) -> Iterator[Found]:
        return self._index.find_in(self._file, hashed)


class TieredIndex:
    """One folder of files.

    `put`, `flush`, `go_back` and `expire` belong to one thread at a time, as do `compact_one` and `upload_one` to one
    each; searches to any.
    """

    def __init__(
        self,
        disk: Disk,
        root: Path,
        shape: IndexShape,
        *,
        objects: ObjectStore | None = None,
        keep_uploaded: bool = True,
    ) -> None:
        """Takes what is there; after a crash, or where `state` is not what it was, `go_back` is to follow.

        `keep_uploaded`: files stay here, too. Raises OSError.
        """
        self._disk = disk
        self._shape = shape
        self._objects = objects
        self._keep_uploaded = keep_uploaded
        self._folders = IndexFolders(disk, root)
        self._lock = Lock()  # who replaces the next two
        self._files: dict[str, TieredFile] = {}
        self._damaged: dict[str, Unread] = {}
        self._filling: ChainedFile | None = None
        self._settled = ""
        self._executor = ThreadPoolExecutor(REMOTE_READERS, thread_name_prefix="index-reader")
        self.failure: OSError | None = None
        """A flush failed: nobody knows what the newest file holds, until `go_back` to a state before it."""
        self._load()

    # -- what is there

    @property
    def files(self) -> list[TieredFile]:
        """Oldest first. The header of the one that is filled is that of this moment."""
        files, filling = self._files, self._filling
        found = list(files.values())
        if filling is not None:
            found.append(TieredFile(filling.path.name, Stage.FILLING, filling.header, is_local=True))
        return found

    @property
    def damaged(self) -> list[Unread]:
        """Files that cannot be read, so that items are missing from every answer."""
        return list(self._damaged.values())

    @property
    def state(self) -> TieredState | None:
        """What `go_back` takes; None when there is no file."""
        files = self.files
        return TieredState(files[-1].name, files[-1].header) if files else None

    def _load(self) -> None:
        files: dict[str, TieredFile] = {}
        for name in self._folders.names(Stage.SEALED):
            self._admit(files, name, Stage.SEALED, lambda name: self._header(Stage.SEALED, name, Kind.CHAINS))
        for name in self._folders.names(Stage.COMPACTED):
            self._admit(files, name, Stage.COMPACTED, lambda name: self._header(Stage.COMPACTED, name, Kind.RUNS))
        for name in self._folders.names(Stage.UPLOADED):
            self._admit(files, name, Stage.UPLOADED, lambda name: self._note(name).header)
        self._files = dict(sorted(files.items()))
        filling = self._folders.names(Stage.FILLING)
        if filling:
            path = self._folders.path(Stage.FILLING, filling[-1])
            with suppress(StoreDamaged):  # a power cut tore it: `go_back` knows what it was
                self._filling = ChainedFile.opened(self._disk.open_segment(path, writable=True), self._shape)

    def _admit(
        self, files: dict[str, TieredFile], name: str, stage: Stage, read_header: Callable[[str], FileHeader]
    ) -> None:
        """Enter a file in a stage, which it has reached for good: it leaves the stage before."""
        try:
            header = read_header(name)
        except StoreDamaged as damage:
            log.error("a file of the key index is damaged", error=str(damage))
            if name not in files:
                self._damaged[name] = Unread(name, str(damage))
            return
        before = files.get(name)
        if stage is Stage.COMPACTED and before is not None:
            self._folders.remove(Stage.SEALED, name)
        is_local = stage is not Stage.UPLOADED
        if stage is Stage.UPLOADED and before is not None:
            is_local = self._keep_uploaded
            if not is_local:
                self._folders.remove(Stage.COMPACTED, name)
        self._damaged.pop(name, None)
        files[name] = TieredFile(name, stage, header, is_local=is_local)

    def _header(self, stage: Stage, name: str, kind: Kind) -> FileHeader:
        """Raises StoreDamaged."""
        path = self._folders.path(stage, name)
        with closing(self._disk.open_segment(path, writable=False)) as file:
            header = header_of(file)
            if header.kind is not kind or header.file_size != file.size:
                raise StoreDamaged(path, f"{header.kind} of {header.file_size} bytes, but it has {file.size}")
        return header

    def _note(self, name: str) -> UploadNote:
        """Raises StoreDamaged."""
        path = self._folders.path(Stage.UPLOADED, name)
        try:
            return UploadNote.unpack(self._disk.read(path))
        except (ValueError, KeyError, TypeError) as error:
            raise StoreDamaged(path, f"no note of an uploaded file: {error}") from error

    def _enter(self, file: TieredFile | None, *, without: str = "") -> None:
        with self._lock:
            files = {name: each for name, each in self._files.items() if name != without}
            if file is not None:
                files[file.name] = file
            self._files = dict(sorted(files.items()))

    # -- filling

    def put(self, items: IndexItems) -> None:
        """Add items, the oldest first: all, or none when it raises OSError."""
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
        last = max([*self._files, *self._damaged, ""])
        name = self._folders.name_of(int(last or 0) + 1)
        size = chain_shape(*self._shape).file_size
        file = self._disk.create_segment(self._folders.path(Stage.FILLING, name), size)
        self._filling = ChainedFile.begin(file, self._shape)
        return self._filling

    def _seal(self, file: ChainedFile) -> None:
        """A full file becomes durable, and no more is added to it."""
        self._flush(file)
        name = file.path.name
        self._folders.advance(name, file.path, Stage.SEALED)
        self._enter(TieredFile(name, Stage.SEALED, file.header, is_local=True))
        self._filling = None
        file.close()

    def flush(self) -> None:
        """Make all that was put durable. Raises OSError, and from then on `failure` is that."""
        if self._filling is not None:
            self._flush(self._filling)

    def _flush(self, file: ChainedFile) -> None:
        try:
            file.flush()
        except OSError as error:
            self.failure = error
            raise

    def settle(self, state: TieredState | None) -> None:
        """Nobody will go back further than to this: older files may be compacted."""
        self._settled = "" if state is None else state.name

    def go_back(self, state: TieredState | None) -> None:
        """Keep what there was when the state was this, and nothing else; it must be durable.

        Raises OSError, StoreDamaged.
        """
        last = "" if state is None else state.name
        filling, self._filling = self._filling, None
        if filling is not None:
            filling.close()
        for stage in Stage:
            for name in self._folders.names(stage):
                if name > last:
                    self._folders.remove(stage, name)
                    self._enter(None, without=name)
        if state is None:
            return
        path = self._folders.path(Stage.FILLING, last)
        if last in self._files and self._files[last].stage is Stage.SEALED:
            self._folders.advance(last, self._folders.path(Stage.SEALED, last), Stage.FILLING)
            self._enter(None, without=last)
        if self._disk.exists(path):
            file = self._disk.open_segment(path, writable=True)
            self._filling = ChainedFile(file, self._shape, state.header)
            self._filling.restore(state.header)

    # -- moving on

    def compact_one(self) -> bool:
        """Compact the oldest sealed file that is settled; whether there was one. Raises OSError, StoreDamaged."""
        name = next((each.name for each in self._files.values() if self._may_be_compacted(each)), None)
        if name is None:
            return False
        making = self._folders.compacting(name)
        self._disk.remove(making)
        with closing(self._open_sealed(name)) as source:
            compaction = Compaction(source, self._shape)
            with closing(self._disk.create_segment(making, compaction.file_size)) as target:
                header = compaction.write(target)
                target.flush()
                compaction.check(target)
        self._folders.advance(name, making, Stage.COMPACTED)
        self._enter(TieredFile(name, Stage.COMPACTED, header, is_local=True))
        self._folders.remove(Stage.SEALED, name)
        return True

    def _may_be_compacted(self, file: TieredFile) -> bool:
        return file.stage is Stage.SEALED and file.name < self._settled

    def _open_sealed(self, name: str) -> ChainedFile:
        file = self._disk.open_segment(self._folders.path(Stage.SEALED, name), writable=False)
        return ChainedFile.opened(file, self._shape)

    def upload_one(self) -> bool:
        """Copy the oldest compacted file to the object store; whether there was one. Raises OSError, StoreDamaged."""
        file = next((each for each in self._files.values() if each.stage is Stage.COMPACTED), None)
        if file is None or self._objects is None:
            return False
        path = self._folders.path(Stage.COMPACTED, file.name)
        with closing(self._disk.open_segment(path, writable=False)) as local:
            checksum = upload(self._objects, file.name, local.view())
        self._folders.note(file.name, UploadNote(file.name, checksum, file.header).pack())
        self._enter(file._replace(stage=Stage.UPLOADED, is_local=self._keep_uploaded))
        if not self._keep_uploaded:
            self._folders.remove(Stage.COMPACTED, file.name)
        return True

    def expire(self, before: int) -> int:
        """Remove files all of whose items have lower places; returns how many. The one that is filled stays.

        Raises OSError.
        """
        gone = [each for each in self._files.values() if each.header.end_place < before]
        for file in gone:
            if file.stage is Stage.UPLOADED and self._objects is not None:
                self._objects.remove(file.name)
            self._enter(None, without=file.name)
            for stage in (Stage.SEALED, Stage.COMPACTED, Stage.UPLOADED):
                self._folders.remove(stage, file.name)
        return len(gone)

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
        """The newest `limit` items with a hash, of [begin_ms, end_ms], that `accept` makes something of.

        Files that could not be read are named in the answer. Raises what `accept` does.
        """
        searched: list[Searchable] = []
        filling = self._filling
        if filling is not None and filling.header.may_hold(begin_ms, end_ms):
            searched.append(_Filling(filling))
        for file in reversed(self._files.values()):
            # one that was sealed just now is looked at as the one that is filled
            is_new = filling is None or file.name != filling.path.name
            if is_new and file.header.may_hold(begin_ms, end_ms):
                searched.append(_Settled(self, file))
        search = Search(hashed, begin_ms=begin_ms, end_ms=end_ms, limit=limit, accept=accept)
        answer = search.run(searched, self._executor, REMOTE_READERS)
        answer.unread += self.damaged
        return answer

    def find_in(self, file: TieredFile, hashed: int) -> Iterator[Found]:
        """The items with a hash in one file, the newest first. Raises OSError, StoreDamaged."""
        while True:
            try:
                yield from self._find_in_stage(file, hashed)
            except FileNotFoundError:
                now = self._files.get(file.name)
                if now is None:
                    return  # expired meanwhile
                if now == file:
                    raise
                file = now  # it has moved on
            else:
                return

    def _find_in_stage(self, file: TieredFile, hashed: int) -> Iterator[Found]:
        if file.stage is Stage.SEALED:
            with closing(self._open_sealed(file.name)) as chains:
                yield from chains.find(hashed)
        elif file.is_local:
            path = self._folders.path(Stage.COMPACTED, file.name)
            with closing(self._disk.open_segment(path, writable=False)) as local:
                yield from CompactedFile(LocalReader(local), self._shape, file.header).find(hashed)
        else:
            if self._objects is None:
                raise ObjectStoreError(f"file {file.name} was uploaded, and no object store is set")
            yield from CompactedFile(RemoteReader(self._objects, file.name), self._shape, file.header).find(hashed)
