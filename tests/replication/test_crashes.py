"""The machine dies at each write of a store's life in a cluster; what comes back is whole, and agrees in the end."""

from __future__ import annotations

from contextlib import suppress

import pytest

from quarry_mq.kv.engine import WriteBatch
from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.protocol.clock import ManualClock
from quarry_mq.store.errors import Invalid
from quarry_mq.store.metadata import Group
from quarry_mq.store.replication import SharedKind
from quarry_mq.store.replication import replicated_rows as shared_rows
from quarry_mq.store.security.model import Action, Decision, Resource, Rule, Secret, User
from quarry_mq.store.state.identity import FAMILIES
from tests.replication.members import SECRET, Member, gathered, member

RULE = Rule(resource=Resource.parse("topic:*"), actions=frozenset(Action), decision=Decision.ALLOW)


class MachineDied(Exception):
    """No more is written."""


class DyingEngine(MemoryEngine):
    """Dies at a write: before it, or right after it, when nobody was told yet."""

    def __init__(self) -> None:
        super().__init__(FAMILIES, write_ahead_log=True)
        self.writes_left: int | None = None
        self.is_late = False

    def write(self, batch: WriteBatch, *, sync: bool = False) -> None:
        if self.writes_left == 0:
            if self.is_late:
                super().write(batch, sync=sync)
            raise MachineDied
        if self.writes_left is not None:
            self.writes_left -= 1
        super().write(batch, sync=sync)

    def opened(self) -> DyingEngine:
        self._closed = False
        return self


def _prepared() -> tuple[DyingEngine, Member]:
    """A store with some rows that never was in a cluster, and a member that knows other ones."""
    engine = DyingEngine()
    alone = Member.__new__(Member)
    alone.open_alone(engine)
    for number in range(5):
        alone.topic(f"old-{number}")
    other = member("other", ManualClock())
    for number in range(3, 9):
        other.topic(f"old-{number}", 3)
    other.tables.users.create(User(name="anna", secrets=(Secret(1, SECRET, 1),)))
    other.tables.policies.put_rule("anna", RULE)
    other.replicated.put(SharedKind.MEMBER, "other", b"here")
    return engine, other


def _life(engine: DyingEngine, other: Member) -> None:
    """As far as it gets; what is there already is passed over."""
    one = Member("one", engine.opened, ManualClock())
    one.pull(other)
    with suppress(Invalid):
        one.tables.groups.create(Group("billing"), owner="anna")
    one.topic("old-0", 5)
    with suppress(Invalid):
        one.tables.topics.delete("old-8")
    with suppress(Invalid):
        one.tables.users.delete("anna")
    one.replicated.remove(SharedKind.MEMBER, "other")
    other.clock.advance(1)
    other.topic("old-0", 6)
    one.pull(other)
    one.replicated.delete_tombstones(1)


@pytest.mark.parametrize("is_late", [False, True], ids=["before the write", "after it"])
def test_a_store_is_whole_whenever_its_machine_dies(is_late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_rows, "PAGE_ROWS_MAX", 2)
    monkeypatch.setattr(shared_rows, "APPLIED_AT_ONCE", 2)
    deaths = 0
    while True:
        engine, other = _prepared()
        engine.writes_left, engine.is_late = deaths, is_late
        try:
            _life(engine, other)
        except MachineDied:
            engine.writes_left = None
            engine.crash(power_loss=True)
        else:
            break
        again = Member("one", engine.opened, ManualClock())
        again.check_whole()
        gathered(again, other)
        _life(engine, other)
        again.restart()
        gathered(again, other)
        again.restart()
        again.check_whole()
        assert again.content() == other.content()
        assert again.tables.users.get("anna") is None
        assert again.tables.topics.get("old-8") is None
        deaths += 1
    assert deaths > 15


def test_a_first_start_that_dies_leaves_a_store_that_never_was_in_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """So what is changed until the next one has the lowest version, too."""
    monkeypatch.setattr(shared_rows, "PAGE_ROWS_MAX", 2)
    engine, _ = _prepared()
    engine.writes_left = 3
    with pytest.raises(MachineDied):
        Member("one", engine.opened, ManualClock())
    engine.writes_left = None
    alone = Member.__new__(Member)
    alone.open_alone(engine.opened())
    alone.tables.topics.delete("old-0")
    alone.topic("new")
    one = Member("one", engine.opened, ManualClock())
    one.check_whole()
    assert {row.version.time_ms for row in one.replicated.changes(0).rows} == {0}
