"""The database `quarry/` of a store: its families, the identity of the store, and the check that no change is lost.

The second database of a store, `<store>/quarry/`, holds metadata and delivery state and has a write-ahead log.
It never holds the only copy of a message. It has one column family per table:

| family     | owner                             | holds |
|------------|-----------------------------------|-------|
| `topics`   | store.metadata.topics             | topic name -> topic JSON |
| `groups`   | store.metadata.groups             | group name -> group JSON |
| `offsets`  | store.metadata.offsets            | group, topic, queue -> next queue offset |
| `inflight` | server.delivery.state.inflight    | group, topic, queue, offset -> one delivery not yet acknowledged |
| `meta`     | several, see below                | single rows and small tables that need no separate family |
| `users`    | store.security.users              | user name -> user JSON, secrets sealed |
| `policies` | store.security.policies           | user name -> JSON of its rules |
| `shared`   | store.replication                 | versions of topics, groups, users and rules in a cluster |
| `lite`     | store.metadata.lite               | which clients subscribe to which lite topics |

Rows of `meta` are written by store.state.identity (what this store is), store.state.jobs, store.state.deletions,
store.metadata.owners, store.migration.rows, store.verify.report, server.settings.live_settings and
server.cluster.handover. Each has its own keys.

A store that an older version made has no `users`, `policies`, `shared` or `lite`: they are added when it is opened for
writing, and a reading open goes without them.

The identity of a store is what it knows about itself: a few rows in the `meta` family.

| key               | value                   | meaning |
|-------------------|-------------------------|---------|
| `format`          | ASCII `1`               | layout of `quarry/`; another number is refused |
| `origin`          | ASCII name              | what the directory was when Quarry opened it first (`store.layout`) |
| `metadata`        | ASCII `imported`        | RocketMQ's topics, groups and offsets have been taken over |
| `flushed_up_to`   | i64                     | a lower bound of what is durable in the commit log |
| `log_begin`       | i64                     | the first byte of the log's first segment when this last changed |
| `seen_up_to`      | i64                     | with `async`: consumers may have seen what lies below it |
| `backfilled_to`   | i64                     | begun in mid-log: RocksDB queues are complete below this offset |
| `backfill_end`    | i64                     | where the backfill has to get to |
| `queue_phase`     | ASCII name              | where the consume queues are kept (`store.layout.queue_phase`) |
| `units_per_file`  | i64                     | how many entries a file of the file queues holds |
| `files_up_to`     | i64                     | the file queues hold all entries of records below, durably; 0: unknown |
| `files_emptied`   | ASCII `deleted`         | no queue file is left, and none has to be: all topics were deleted |
| `made_again`      | empty                   | queues are made again from the log; empty ones may go on too low |
| `queues_outdated` | empty                   | of a copy: its queues have to be rebuilt, to agree with its rows |
| `light_floor`     | i64                     | above the offsets of all light queues that were removed for being idle |
| `held_before`     | JSON                    | what RocketMQ had done with messages that wait (`store.pending`) |
| `hash_index`      | JSON                    | how far RocketMQ's index files are kept up (`store.index`) |
| `tiered_index`    | JSON                    | how far the tiered index is kept up (`store.index`) |
| `handle_key`      | 32 random bytes, i64    | proves what handles clients were given; from where in the log on |
| `log_begins`      | pairs of i64            | when (ms), and where the log began then (`store.commitlog.segments`) |
| `expired_files`   | i64                     | no queue file is left whose entries' records all lie below |
| `expired_rocksdb` | i64                     | the RocksDB queues hold no entries of records below it |
| `sparse_rocksdb`  | i64, i64                | entries gone since the tables were rewritten, and entries left then |

Rows of a migration: `store.migration.rows`.

How many changes of `quarry/` are durable is written down, and compared when the database is opened.

RocksDB treats a place in its write-ahead log that it cannot read as the torn end, and a missing log file as one that
never was: one flipped bit, and topics, committed offsets and deliveries of hours are lost without a message. Every
change has a number, so the number of the last one shows a loss.

    quarry/DURABLE      decimal number of a change that survived, and a line feed
"""

from __future__ import annotations

from pathlib import Path
from secrets import token_bytes
from struct import Struct
from typing import Final, NamedTuple

import structlog

from quarry_mq.kv import KeyValueEngine, KvError, WriteBatch
from quarry_mq.kv.options import FamilyOptions
from quarry_mq.kv.rocks import RocksEngine, list_families
from quarry_mq.store.errors import NotAStore, StoreDamaged
from quarry_mq.store.fs import Disk
from quarry_mq.store.message import PhysicalOffset, QueueOffset
from quarry_mq.store.pending import PendingBefore

TOPICS: Final = "topics"
GROUPS: Final = "groups"
OFFSETS: Final = "offsets"
INFLIGHT: Final = "inflight"
QUEUES_OUTDATED: Final = b"queues_outdated"
META: Final = "meta"
USERS: Final = "users"
POLICIES: Final = "policies"
SHARED: Final = "shared"
LITE: Final = "lite"
FAMILIES: Final = (TOPICS, GROUPS, OFFSETS, INFLIGHT, META, USERS, POLICIES, SHARED, LITE)
ADDED_FAMILIES: Final = frozenset({USERS, POLICIES, SHARED, LITE})
"""The families that a store of an older version lacks."""


log = structlog.get_logger(__name__)


def open_state_engine(directory: Path, *, create: bool, read_only: bool = False) -> RocksEngine:
    """Open `<store>/quarry/`. Raises kv.EngineMissing, kv.EngineLocked or kv.EngineCorrupt."""
    missing = frozenset[str]() if create else frozenset(FAMILIES).difference(list_families(directory))
    is_older = bool(missing) and missing <= ADDED_FAMILIES
    names = [name for name in FAMILIES if name not in missing or not (is_older and read_only)]
    engine = RocksEngine.open(
        directory,
        {name: FamilyOptions() for name in names},
        create=create or (is_older and not read_only),
        read_only=read_only,
        write_ahead_log=True,
    )
    for unread in engine.unread_changes:
        log.warning("the last changes of topics, groups and positions are lost", directory=str(directory), cause=unread)
    return engine


FORMAT: Final = b"1"
HANDLE_KEY_SIZE: Final = 32
_OFFSET: Final = Struct(">q")
_COUNTS: Final = Struct(">qq")


def check_format(engine: KeyValueEngine, directory: Path) -> None:
    """Raise NotAStore for a layout that this version does not know. Writes nothing."""
    found = engine.family(META).get(b"format")
    if found not in {None, FORMAT}:
        stamp = (found or b"").decode(errors="replace")
        raise NotAStore(
            directory,
            f"written by a newer Quarry (format {stamp}; this one supports {FORMAT.decode()}): use the newer version",
        )


def refuse_newer(directory: Path) -> None:
    """Run `check_format` on the database in a directory. A missing or damaged database passes.

    Raises NotAStore.
    """
    try:
        engine = open_state_engine(directory, create=False, read_only=True)
    except KvError:
        return
    try:
        check_format(engine, directory)
    finally:
        engine.close()


class EntryCounts(NamedTuple):
    """The counts of entries in RocksDB's tables: removed ones that still take space, and those that were left then."""

    gone: int
    kept: int

    @property
    def gone_ratio(self) -> float:
        return self.gone / max(1, self.gone + self.kept)


class StoreIdentity:
    """The object reads and writes the rows of a store's identity, each in its own write."""

    def __init__(self, engine: KeyValueEngine, directory: Path) -> None:
        self._engine = engine
        self._family = engine.family(META)
        check_format(engine, directory)
        if self._family.get(b"format") is None:
            self._put(b"format", FORMAT)

    @property
    def origin(self) -> str | None:
        value = self._family.get(b"origin")
        return None if value is None else value.decode()

    @origin.setter
    def origin(self, value: str) -> None:
        self._put(b"origin", value.encode())

    def handle_key(self, log_end: PhysicalOffset) -> tuple[bytes, PhysicalOffset]:
        """Return the key that proves that handles are the store's own, and where the log ended when it was made.

        The key is made durably at the first call.
        """
        row = self._family.get(b"handle_key")
        if row is None:
            row = token_bytes(HANDLE_KEY_SIZE) + _OFFSET.pack(log_end)
            self._put(b"handle_key", row)
        return row[:HANDLE_KEY_SIZE], PhysicalOffset(_OFFSET.unpack(row[HANDLE_KEY_SIZE:])[0])

    @property
    def metadata_imported(self) -> bool:
        return self._family.get(b"metadata") is not None

    def set_metadata_imported(self) -> None:
        self._put(b"metadata", b"imported")

    @property
    def flushed_up_to(self) -> PhysicalOffset | None:
        return self._offset(b"flushed_up_to")

    @flushed_up_to.setter
    def flushed_up_to(self, offset: PhysicalOffset) -> None:
        self._put(b"flushed_up_to", _OFFSET.pack(offset))

    @property
    def log_begin(self) -> PhysicalOffset | None:
        return self._offset(b"log_begin")

    @log_begin.setter
    def log_begin(self, offset: PhysicalOffset) -> None:
        self._put(b"log_begin", _OFFSET.pack(offset))

    @property
    def seen_up_to(self) -> PhysicalOffset | None:
        return self._offset(b"seen_up_to")

    @seen_up_to.setter
    def seen_up_to(self, offset: PhysicalOffset) -> None:
        self._put(b"seen_up_to", _OFFSET.pack(offset))

    def stage_seen_up_to(self, batch: WriteBatch, offset: PhysicalOffset) -> None:
        """Add the row to the batch of those changes that depend on what was seen."""
        batch.put(self._family, b"seen_up_to", _OFFSET.pack(offset))

    @property
    def backfilled_to(self) -> PhysicalOffset | None:
        return self._offset(b"backfilled_to")

    @backfilled_to.setter
    def backfilled_to(self, offset: PhysicalOffset) -> None:
        self._put(b"backfilled_to", _OFFSET.pack(offset))

    @property
    def backfill_end(self) -> PhysicalOffset | None:
        return self._offset(b"backfill_end")

    @backfill_end.setter
    def backfill_end(self, offset: PhysicalOffset) -> None:
        self._put(b"backfill_end", _OFFSET.pack(offset))

    @property
    def queue_phase(self) -> str | None:
        value = self._family.get(b"queue_phase")
        return None if value is None else value.decode()

    @queue_phase.setter
    def queue_phase(self, value: str) -> None:
        self._put(b"queue_phase", value.encode())

    @property
    def units_per_file(self) -> int | None:
        return self._offset(b"units_per_file")

    @units_per_file.setter
    def units_per_file(self, value: int) -> None:
        self._put(b"units_per_file", _OFFSET.pack(value))

    @property
    def files_up_to(self) -> PhysicalOffset | None:
        return self._offset(b"files_up_to")

    @property
    def files_emptied(self) -> bool:
        return self._family.get(b"files_emptied") is not None

    def set_files_up_to(self, offset: PhysicalOffset, *, emptied: bool) -> None:
        batch = self._engine.batch()
        batch.put(self._family, b"files_up_to", _OFFSET.pack(offset))
        if emptied:
            batch.put(self._family, b"files_emptied", b"deleted")
        else:
            batch.delete(self._family, b"files_emptied")
        self._engine.write(batch, sync=True)

    @property
    def files_expired_below(self) -> PhysicalOffset | None:
        return self._offset(b"expired_files")

    @files_expired_below.setter
    def files_expired_below(self, offset: PhysicalOffset) -> None:
        self._put(b"expired_files", _OFFSET.pack(offset))

    @property
    def rocksdb_expired_below(self) -> PhysicalOffset | None:
        return self._offset(b"expired_rocksdb")

    @rocksdb_expired_below.setter
    def rocksdb_expired_below(self, offset: PhysicalOffset) -> None:
        self._put(b"expired_rocksdb", _OFFSET.pack(offset))

    @property
    def rocksdb_entries(self) -> EntryCounts:
        value = self._family.get(b"sparse_rocksdb")
        return EntryCounts(0, 0) if value is None else EntryCounts(*_COUNTS.unpack(value))

    @rocksdb_entries.setter
    def rocksdb_entries(self, counts: EntryCounts) -> None:
        self._put(b"sparse_rocksdb", _COUNTS.pack(*counts))

    @property
    def queues_made_again(self) -> bool:
        """Return whether queues are made again from the log, and empty ones may go on too low."""
        return self._family.get(b"made_again") is not None

    @queues_made_again.setter
    def queues_made_again(self, value: bool) -> None:
        if value:
            self._put(b"made_again", b"")
        else:
            self._delete(b"made_again")

    @property
    def queues_outdated(self) -> bool:
        """Return whether the queues of a copy have to be rebuilt before it goes on."""
        return self._family.get(QUEUES_OUTDATED) is not None

    def queues_rebuilt(self) -> None:
        """Note that the queues of a copy follow from its log and its rows again."""
        self._delete(QUEUES_OUTDATED)

    def clear_file_progress(self) -> None:
        """Note that the file queues are gone, or about to be removed: the whole log is to be put again."""
        self.set_files_up_to(PhysicalOffset(0), emptied=False)

    @property
    def light_floor(self) -> QueueOffset | None:
        value = self._family.get(b"light_floor")
        return None if value is None else QueueOffset(_OFFSET.unpack(value)[0])

    def set_light_floor(self, offset: QueueOffset) -> None:
        self._put(b"light_floor", _OFFSET.pack(offset))

    @property
    def pending_before(self) -> PendingBefore | None:
        value = self._family.get(b"held_before")
        return None if value is None else PendingBefore.unpack(value)

    @pending_before.setter
    def pending_before(self, before: PendingBefore) -> None:
        self._put(b"held_before", before.pack())

    def index_row(self, name: str) -> bytes | None:
        return self._family.get(name.encode())

    def set_index_row(self, name: str, packed: bytes) -> None:
        self._put(name.encode(), packed)

    def delete_index(self, name: str) -> None:
        """Delete the row of an index, so that existing index files are rebuilt."""
        self._delete(name.encode())

    @property
    def log_begins(self) -> bytes:
        return self._family.get(b"log_begins") or b""

    def set_log_begins(self, packed: bytes) -> None:
        self._put(b"log_begins", packed)

    def _offset(self, key: bytes) -> PhysicalOffset | None:
        value = self._family.get(key)
        return None if value is None else PhysicalOffset(_OFFSET.unpack(value)[0])

    def _delete(self, key: bytes) -> None:
        batch = self._engine.batch()
        batch.delete(self._family, key)
        self._engine.write(batch, sync=True)

    def _put(self, key: bytes, value: bytes) -> None:
        batch = self._engine.batch()
        batch.put(self._family, key, value)
        self._engine.write(batch, sync=True)


FILE_NAME: Final = "DURABLE"


class DurableState:
    """The object reads and writes the file `DURABLE` of one open database."""

    def __init__(self, disk: Disk, directory: Path, engine: KeyValueEngine) -> None:
        self._disk = disk
        self._path = directory / FILE_NAME
        self._engine = engine

    @property
    def changes(self) -> int:
        """Return the number of the last change, which is durable once a later synchronous write has returned."""
        return self._engine.sequence()

    def check(self) -> None:
        """Raise StoreDamaged when changes are missing."""
        try:
            text = self._disk.read(self._path)
        except FileNotFoundError:
            return
        if not text.strip().isdigit():
            raise StoreDamaged(self._path, "does not contain a number; remove the file to go on without the check")
        durable, found = int(text), self.changes
        if found < durable:
            raise StoreDamaged(
                self._path,
                f"the database ends with change {found}, but {durable} were durable: its write-ahead log or manifest "
                "is damaged; restore the directory, or remove this file to go on without these changes",
            )

    def save(self, changes: int) -> None:
        """Write down that this many changes are durable. Raises OSError."""
        self._disk.replace_atomically(self._path, b"%d\n" % changes)
