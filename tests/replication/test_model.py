"""Stores that change the same names, exchange pages in any order, lose and repeat them, stop and crash.

In the end all tables agree byte for byte on the newest version of each row. No deletion is undone. Who lost a change is
told, and nobody is told of a loss that was none.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Final, NamedTuple

import hypothesis.strategies as st
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from quarry_mq.kv import KeyValueEngine
from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.protocol.clock import ManualClock
from quarry_mq.store.errors import Invalid
from quarry_mq.store.metadata import Group
from quarry_mq.store.replication import ChangePage, SharedKind, Version
from quarry_mq.store.replication.rows import Stamp
from quarry_mq.store.security.model import Action, Decision, Resource, Rule, Secret, User, UserKind
from tests.replication.members import SECRET, Member, gathered, in_memory, in_rocksdb

NAMES: Final = ("north", "east", "south", "west")
TOPICS: Final = ("orders", "%DLQ%billing", "%RETRY%billing")
USERS: Final = ("anna", "ben")
SUBJECTS: Final = ("CN=one", "CN=two")
ROWS: Final = [
    *((SharedKind.TOPIC, name) for name in TOPICS[:2]),
    (SharedKind.GROUP, "billing"),
    *((SharedKind.USER, name) for name in USERS),
    *((SharedKind.POLICY, name) for name in USERS),
    *((SharedKind.MEMBER, name) for name in NAMES),
]
RowId = tuple[str, str]

places = st.integers(0, len(NAMES) - 1)


class Written(NamedTuple):
    """A change as it was made."""

    parent: Version | None
    value: bytes | None


class InFlight(NamedTuple):
    """A page on its way."""

    reader: int
    source: str
    page: ChangePage


class SharedRowsMachine(RuleBasedStateMachine):
    """The members, and all that any of them has ever written."""

    in_rocksdb: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory() if self.in_rocksdb else None
        self.members = [Member(name, self._engine(name), ManualClock()) for name in NAMES]
        self.offsets_s = [0] * len(NAMES)
        self.history: dict[RowId, dict[Version, Written]] = {row: {} for row in ROWS}
        self.told: dict[RowId, set[Version]] = {row: set() for row in ROWS}
        self.pages: list[InFlight] = []
        self.serial = 0
        self.retry: dict[str, int] = {}
        self.newest: dict[tuple[str, RowId], Version] = {}  # that a member has written or heard of

    def _engine(self, name: str) -> Callable[[], KeyValueEngine]:
        return in_memory() if self.directory is None else in_rocksdb(Path(self.directory.name) / name)

    @rule(place=places, name=st.sampled_from(TOPICS), delete=st.booleans())
    def change_topic(self, place: int, name: str, delete: bool) -> None:
        member, topics = self.members[place], self.members[place].tables.topics
        with self._recorded(member):
            if delete and topics.stored(name) is not None:
                topics.delete(name)
                self.retry.pop(member.name + name, None)
            else:
                member.topic(name, self._next() % 8000 + 1)

    @rule(place=places, delete=st.booleans())
    def change_group(self, place: int, delete: bool) -> None:
        member, groups = self.members[place], self.members[place].tables.groups
        with self._recorded(member):
            row = Group("billing", max_attempts=self._next())
            if groups.get("billing") is None:
                groups.create(row, owner="anna")
            elif delete:
                groups.delete("billing")
            else:
                groups.update(row)

    @rule(place=places, name=st.sampled_from(USERS), subject=st.sampled_from(SUBJECTS), choice=st.integers(0, 3))
    def change_user(self, place: int, name: str, subject: str, choice: int) -> None:
        member, users = self.members[place], self.members[place].tables.users
        before = users.get_sealed(name)
        with self._recorded(member), suppress(Invalid):  # a subject may be taken
            if before is None:
                secret = Secret(1, SECRET, self._next())
                users.create(User(name=name, secrets=(secret,), certificates=(subject,), created_at_ms=self._next()))
            elif choice == 0:
                users.delete(name)
            elif choice == 1:
                users.update(User(name=name, kind=UserKind.SUPER, certificates=(subject,)))
            else:
                resource = Resource.parse(f"topic:t{self._next()}-*")
                rule_now = Rule(resource=resource, actions=frozenset(Action), decision=Decision.ALLOW)
                member.tables.policies.put_rule(name, rule_now)

    @rule(place=places)
    def change_member(self, place: int) -> None:
        member = self.members[place]
        with self._recorded(member):
            member.replicated.put(SharedKind.MEMBER, NAMES[self._next() % 4], b"%d" % self.serial)

    @rule(reader=places, source=places, limit=st.integers(1, 20))
    def send_page(self, reader: int, source: int, limit: int) -> None:
        if reader != source:
            other = self.members[source]
            self.pages.append(InFlight(reader, other.name, self.members[reader].asked(other, limit)))

    @rule(which=st.integers(0, 30), again=st.booleans())
    def deliver(self, which: int, again: bool) -> None:
        if self.pages:
            one = self.pages[which % len(self.pages)]
            if not again:
                self.pages.remove(one)
            self._take(self.members[one.reader], one.source, one.page)

    @rule(which=st.integers(0, 30))
    def lose(self, which: int) -> None:
        if self.pages:
            self.pages.pop(which % len(self.pages))

    @rule(reader=places, source=places)
    def pull(self, reader: int, source: int) -> None:
        if reader != source:
            other = self.members[source]
            self._take(self.members[reader], other.name, self.members[reader].asked(other, 1000))

    @rule(place=places, power_loss=st.booleans())
    def restart(self, place: int, power_loss: bool) -> None:
        member = self.members[place]
        member.engine.close()
        if power_loss and isinstance(member.engine, MemoryEngine):
            member.engine.crash(power_loss=True)
        member.open()

    @rule(place=places, offset_s=st.integers(-1500, 1500), passed_s=st.integers(0, 5))
    def set_clock(self, place: int, offset_s: int, passed_s: int) -> None:
        self.members[place].clock.jump(offset_s - self.offsets_s[place])
        self.offsets_s[place] = offset_s
        for each in self.members:
            each.clock.advance(passed_s / 100)

    def teardown(self) -> None:
        try:
            for _ in range(3):
                for member in self.members:
                    for other in self.members:
                        if other is not member:
                            self._take(member, other.name, member.asked(other, 1000))
            gathered(*self.members)
            self._check_end()
            for member in self.members:
                member.restart()
            assert len({tuple(sorted(member.content().items())) for member in self.members}) == 1
        finally:
            for member in self.members:
                member.engine.close()
            if self.directory is not None:
                self.directory.cleanup()

    def _check_end(self) -> None:
        expected = {}
        for row, versions in self.history.items():
            if versions:
                newest = max(versions)
                if versions[newest].value is not None:
                    expected[row] = versions[newest].value
                for version in versions:
                    assert self._is_ancestor(row, version, newest) or self._loss_was_told(row, version), (row, version)
        for member in self.members:
            assert member.content() == expected
            users = member.tables.users
            claims = [(subject, each.name) for each in users.list() for subject in each.certificates]
            for subject in SUBJECTS:
                owners = [name for taken, name in claims if taken == subject]
                found = users.by_certificate(subject)
                assert (found and found.name) == (owners[0] if len(owners) == 1 else None)
            retry = member.tables.topics.stored(TOPICS[2])
            assert (retry and retry.read_queues) == self.retry.get(member.name + TOPICS[2])
            assert member.tables.groups.count_of("anna") <= 1

    def _take(self, member: Member, source: str, page: ChangePage) -> None:
        before = self._stamps(member)
        applied = member.take(source, page)
        after = self._stamps(member)
        for each in page.rows:
            self._heard(member, (each.kind, each.name), each.version)
        told = {((each.kind, each.name), each.overwritten): each.kept for each in applied.conflicts}
        assert len(told) == len(applied.conflicts)
        for row, old in before.items():
            new = after[row]
            assert new.version >= old.version, "a version went back"
            if new.version == old.version:
                continue
            was_told = told.pop((row, old.version), None) == new.version
            assert not (was_told and self._is_ancestor(row, old.version, new.version)), "a loss that was none"
            values = self.history[row][old.version].value, self.history[row][new.version].value
            if was_told or values[0] == values[1]:
                self.told[row].add(old.version)
        assert not told
        self._check_values(member, after)

    def _check_values(self, member: Member, stamps: dict[RowId, Stamp]) -> None:
        member.check_whole()
        content = member.content()
        for row, stamp in stamps.items():
            assert content.get(row) == self.history[row][stamp.version].value
            assert stamp.version == self.newest[member.name, row]

    def _heard(self, member: Member, row: RowId, version: Version) -> None:
        self.newest[member.name, row] = max(version, self.newest.get((member.name, row), version))

    def _recorded(self, member: Member) -> _Recording:
        return _Recording(self, member)

    def _stamps(self, member: Member) -> dict[RowId, Stamp]:
        found = {row: member.change_log.stamp(*row) for row in ROWS}
        return {row: stamp for row, stamp in found.items() if stamp is not None}

    def _is_ancestor(self, row: RowId, version: Version, later: Version) -> bool:
        at: Version | None = later
        while at is not None and at != version:
            at = self.history[row][at].parent
        return at is not None

    def _loss_was_told(self, row: RowId, version: Version) -> bool:
        return any(self._is_ancestor(row, version, each) for each in self.told[row])

    def _next(self) -> int:
        self.serial += 1
        return self.serial


class _Recording:
    """Notes what a member writes meanwhile."""

    def __init__(self, machine: SharedRowsMachine, member: Member) -> None:
        self._machine, self._member = machine, member

    def __enter__(self) -> None:
        self._before = self._machine._stamps(self._member)

    def __exit__(self, *_: object) -> None:
        after, content = self._machine._stamps(self._member), self._member.content()
        for row, stamp in after.items():
            old = self._before.get(row)
            if old is None or old.version != stamp.version:
                assert old is None or stamp.version > max((old.version, *old.seen))
                parent = None if old is None else old.version
                self._machine.history[row][stamp.version] = Written(parent, content.get(row))
                self._machine._heard(self._member, row, stamp.version)
        retry = self._member.tables.topics.stored(TOPICS[2])
        if retry is not None:
            self._machine.retry[self._member.name + TOPICS[2]] = retry.read_queues


class RocksMachine(SharedRowsMachine):
    in_rocksdb = True


def test_stores_agree_in_the_end_whatever_happens_to_their_pages() -> None:
    run_state_machine_as_test(SharedRowsMachine, settings=_settings(40, 60))


def test_so_do_stores_in_rocksdb() -> None:
    run_state_machine_as_test(RocksMachine, settings=_settings(3, 40))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_stores_agree_after_very_many_histories() -> None:
    run_state_machine_as_test(SharedRowsMachine, settings=_settings(1500, 120))


def _settings(examples: int, steps: int) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        database=None,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
    )
