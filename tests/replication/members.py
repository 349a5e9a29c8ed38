"""Members of a cluster as their stores see it: tables and shared rows over an engine, and no network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from quarry_mq.kv import KeyRange, KeyValueEngine
from quarry_mq.kv.keys import prefix_range
from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.protocol.clock import ManualClock
from quarry_mq.store.metadata import Topic, TopicType
from quarry_mq.store.opening.open_store import StoreTables
from quarry_mq.store.replication import (
    Applied,
    ChangeLog,
    ChangePage,
    Conflict,
    Position,
    ReplicatedRows,
    SharedKind,
    SharedRow,
    is_shared,
)
from quarry_mq.store.replication.replicated_rows import TABLES
from quarry_mq.store.replication.rows import ORDER_RANGE, VALUES, VERSIONS, Stamp, parse_order_key, row_id
from quarry_mq.store.security.sealer import Sealer
from quarry_mq.store.state.identity import FAMILIES, open_state_engine

KEY = b"MDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDA="
SECRET = "correct-horse-battery"
ALL = KeyRange(b"", None)
Content = dict[tuple[str, str], bytes]


class Member:
    """One store of a cluster."""

    engine: KeyValueEngine
    change_log: ChangeLog
    tables: StoreTables
    replicated: ReplicatedRows

    def __init__(self, name: str, opened: Callable[[], KeyValueEngine], clock: ManualClock | None = None) -> None:
        self.name = name
        self.clock = clock or ManualClock()
        self._opened = opened
        self.open()

    def open(self) -> None:
        self.engine = self._opened()
        self.change_log = ChangeLog(self.engine, self.clock, self.name)
        self.tables = StoreTables(self.engine, Sealer([KEY]), self.change_log)
        self.replicated = self.tables.share(self.change_log)

    def open_alone(self, engine: KeyValueEngine) -> None:
        """As a store that never was in a cluster."""
        self.engine = engine
        self.tables = StoreTables(engine, Sealer([KEY]), None)

    def restart(self) -> None:
        self.engine.close()
        self.open()

    def topic(self, name: str, queues: int = 8) -> None:
        """Make it, or have it with so many queues."""
        row = Topic(name, TopicType.MIXED, queues, queues)
        if self.tables.topics.stored(name) is None:
            self.tables.topics.create(row, internal=True)
        else:
            self.tables.topics.update(row)

    def asked(self, other: Member, limit: int = 1000) -> ChangePage:
        """What the other one has changed since it was read last."""
        before = self.replicated.position(other.name)
        is_known = before is not None and before.incarnation == other.replicated.incarnation
        return other.replicated.changes(before.sequence if before is not None and is_known else 0, limit)

    def take(self, other: str, page: ChangePage) -> Applied:
        until = Position(page.incarnation, page.until)
        return self.replicated.apply(
            page.rows, peer=other, until=until, since=page.since, more=page.more, told=page.horizons
        )

    def pull(self, other: Member) -> Applied:
        """Everything there is to read of the other one."""
        changed: list[SharedRow] = []
        conflicts: list[Conflict] = []
        while True:
            page = self.asked(other)
            applied = self.take(other.name, page)
            changed += applied.changed
            conflicts += applied.conflicts
            if not page.more:
                return Applied(tuple(changed), tuple(conflicts))

    def content(self) -> Content:
        """All shared rows by the bytes of their tables."""
        found: dict[tuple[str, str], bytes | None] = {
            (SharedKind.MEMBER, row.name): row.value for row in self.replicated.list(SharedKind.MEMBER)
        }
        for kind, family in TABLES.items():
            found |= {(kind, key.decode()): value for key, value in self.engine.family(family).scan(ALL)}
        return {
            (kind, name): value for (kind, name), value in found.items() if value is not None and is_shared(kind, name)
        }

    def check_whole(self) -> None:
        """Each row has its version, each version its row, and each of them one place in the order."""
        order = {row: parse_order_key(key) for key, row in self.change_log.family.scan(ORDER_RANGE)}
        versions = {
            key.removeprefix(VERSIONS): Stamp.decode(data)
            for key, data in self.change_log.family.scan(prefix_range(VERSIONS))
        }
        assert order == {row: stamp.sequence for row, stamp in versions.items()}
        assert len(self.change_log.family.scan(ORDER_RANGE)) == len(order)
        unread = {row for row, each in versions.items() if each.unread}
        assert {key.removeprefix(VALUES) for key, _ in self.change_log.family.scan(prefix_range(VALUES))} >= unread
        read = {row for row, each in versions.items() if not each.deleted} - unread
        assert read <= {row_id(*row) for row in self.content()} <= read | unread

    def stamp(self, kind: SharedKind, name: str) -> Stamp:
        found = self.change_log.stamp(kind, name)
        assert found is not None
        return found


def member(name: str, clock: ManualClock | None = None) -> Member:
    return Member(name, in_memory(), clock)


def in_memory() -> Callable[[], MemoryEngine]:
    """Opens one engine again and again."""
    engine = MemoryEngine(FAMILIES, write_ahead_log=True)

    def opened() -> MemoryEngine:
        engine._closed = False
        return engine

    return opened


def in_rocksdb(directory: Path) -> Callable[[], KeyValueEngine]:
    return lambda: open_state_engine(directory, create=not directory.exists())


def gathered(*members: Member) -> None:
    """All read all, until there is nothing new."""
    pairs = [(one, other) for one in members for other in members if one is not other]
    while sum(len(one.pull(other).changed) for one, other in pairs):
        pass


def rows_of(one: Member) -> dict[tuple[str, str], SharedRow]:
    return {(row.kind, row.name): row for row in one.replicated.changes(0).rows}
