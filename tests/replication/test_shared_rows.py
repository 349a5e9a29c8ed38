"""Versions, pages, positions, conflicts and deletions of shared rows."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.store.errors import Invalid
from quarry_mq.store.metadata import Group, Topic, TopicType
from quarry_mq.store.metadata.topics import encode_topic
from quarry_mq.store.replication import (
    AHEAD_MAX_MS,
    PAGE_BYTES_MAX,
    PAGE_ROWS_MAX,
    PeerAhead,
    Position,
    RowRefused,
    SharedKind,
    SharedRow,
    Version,
    is_shared,
    member_id,
)
from quarry_mq.store.replication.change_log import HybridClock
from quarry_mq.store.replication.rows import COUNTER_MAX, SEEN_MAX, VERSIONS, Stamp, order_key, row_id
from quarry_mq.store.security.model import Action, Decision, Resource, Rule, Secret, User
from tests.replication.members import SECRET, Member, gathered, in_memory, member, rows_of

TOPIC, GROUP, USER, POLICY, MEMBER = SharedKind
RULE = Rule(resource=Resource.parse("topic:*"), actions=frozenset(Action), decision=Decision.ALLOW)


def user(name: str = "anna", *certificates: str) -> User:
    return User(name=name, secrets=(Secret(1, SECRET, 1),), certificates=certificates)


def test_versions_sort_as_their_bytes_do() -> None:
    versions = [
        Version(time, counter, each * 8) for time in (0, 255, 256) for counter in (0, 9) for each in (b"a", b"b")
    ]
    assert sorted(versions) == sorted(versions, key=Version.encode) == versions
    assert [Version.decode(each.encode()) for each in versions] == versions
    with pytest.raises(Invalid, match="19"):
        Version.decode(bytes(19))


def test_the_clock_goes_on_when_the_machines_clock_is_set_back_and_when_its_counter_ends() -> None:
    wall = ManualClock()
    clock = HybridClock(wall, b"x" * 8)
    first = clock.next()
    wall.jump(-86_400)
    assert clock.next() > first
    clock.saw(first.time_ms + 5, COUNTER_MAX)
    assert clock.next() == Version(first.time_ms + 6, 0, b"x" * 8)


def test_a_change_reaches_the_others_with_the_same_bytes() -> None:
    one, two, three = (member(name) for name in ("one", "two", "three"))
    one.topic("orders", 4)
    one.tables.groups.create(Group("billing"), owner="anna")
    one.tables.users.create(user())
    one.tables.policies.put_rule("anna", RULE)
    one.replicated.put(MEMBER, "one", b"here")
    two.pull(one)
    three.pull(two)  # what was taken over is told on
    assert one.content() == two.content() == three.content()
    assert len(three.content()) == 5
    assert rows_of(one) == rows_of(three)
    found = three.tables.users.get("anna")
    assert found is not None
    assert found.secrets[0].text == SECRET
    assert SECRET not in repr(rows_of(three))
    assert rows_of(three)[USER, "anna"].value is not None
    assert b"sealed" in (rows_of(three)[USER, "anna"].value or b"")


def test_what_is_taken_over_is_seen_at_once_where_it_was_remembered() -> None:
    one, two = member("one"), member("two")
    one.topic("orders", 4)
    one.tables.users.create(user("anna", "CN=anna"))
    two.pull(one)
    assert two.tables.users.by_certificate("CN=anna") is not None
    before = two.tables.users.generation, two.tables.policies.generation
    assert two.tables.topics.get("orders") == one.tables.topics.get("orders")
    one.topic("orders", 5)
    one.tables.users.update(user("anna", "CN=other"))
    one.tables.policies.put_rule("anna", RULE)
    two.pull(one)
    assert two.tables.topics.get("orders") == one.tables.topics.get("orders")
    assert two.tables.users.by_certificate("CN=anna") is None
    assert two.tables.users.by_certificate("CN=other") is not None
    assert two.tables.policies.get("anna").rules
    assert two.tables.users.generation > before[0]
    assert two.tables.policies.generation > before[1]


def test_a_row_that_changed_again_comes_once_at_its_newest_place() -> None:
    one = member("one")
    for name in ("a", "b", "a"):
        one.topic(name)
    page = one.replicated.changes(0)
    assert [row.name for row in page.rows] == ["b", "a"]
    assert not page.more
    assert not one.replicated.changes(page.until).rows


def test_pages_are_bounded_in_rows_and_bytes() -> None:
    one, two = member("one"), member("two")
    for number in range(150):
        one.topic(f"t{number}")
    page = one.replicated.changes(0, 70)
    assert (len(page.rows), page.more) == (70, True)
    rest = one.replicated.changes(page.until, 1000)
    assert (len(rest.rows), rest.more) == (80, False)
    for number in range(5):
        one.replicated.put(MEMBER, f"m{number}", bytes(PAGE_BYTES_MAX // 2 - 200))
    pages = [len(one.replicated.changes(rest.until).rows)]
    assert pages == [2]
    two.pull(one)
    assert two.content() == one.content()


def test_a_page_that_begins_after_what_was_read_leaves_the_position() -> None:
    """Otherwise a page that was lost would never be asked for again."""
    one, two = member("one"), member("two")
    for number in range(3):
        one.topic(f"t{number}")
    first = two.asked(one, 1)
    second = one.replicated.changes(first.until, 1)
    third = one.replicated.changes(second.until, 1)
    two.take("one", second)
    assert two.replicated.position("one") is None
    two.take("one", first)
    two.take("one", third)
    assert two.replicated.position("one") == Position(one.replicated.incarnation, first.until)
    two.take("one", second)
    assert two.replicated.position("one") == Position(one.replicated.incarnation, second.until)
    two.take("one", first)
    assert two.replicated.position("one") == Position(one.replicated.incarnation, first.until)  # from 0: read anew
    two.pull(one)
    assert two.content() == one.content()


def test_a_position_beyond_all_changes_starts_again() -> None:
    one = member("one")
    one.topic("orders")
    page = one.replicated.changes(one.replicated.sequence + 1)
    assert (page.since, len(page.rows)) == (0, 1)


def test_a_change_that_knew_of_the_other_is_no_conflict() -> None:
    one, two, three = (member(name) for name in ("one", "two", "three"))
    one.topic("orders", 1)
    gathered(one, two, three)
    two.topic("orders", 2)
    one.pull(two)
    one.topic("orders", 3)
    one.topic("orders", 4)
    assert not three.pull(one).conflicts  # which has neither heard of 2 nor of 3
    assert not two.pull(one).conflicts
    assert three.tables.topics.get("orders") == one.tables.topics.get("orders")


def test_a_change_that_is_overwritten_unknown_is_told_where_it_was_made() -> None:
    one, two = member("one"), member("two")
    one.topic("orders", 1)
    two.pull(one)
    one.topic("orders", 2)
    one.clock.advance(1)
    two.clock.advance(2)
    two.topic("orders", 3)
    two.topic("orders", 4)
    lost, kept = one.stamp(TOPIC, "orders").version, two.stamp(TOPIC, "orders").version
    assert not two.pull(one).changed
    (conflict,) = one.pull(two).conflicts
    assert (conflict.kind, conflict.name) == (TOPIC, "orders")
    assert (conflict.overwritten, conflict.kept) == (lost, kept)
    assert (lost.member, kept.member) == (member_id("one"), member_id("two"))
    assert not one.pull(two).conflicts


def test_the_same_row_made_twice_is_no_conflict() -> None:
    one, two = member("one"), member("two")
    one.topic("orders", 8)
    two.topic("orders", 8)
    gathered(one, two)
    assert one.stamp(TOPIC, "orders").version == two.stamp(TOPIC, "orders").version


def test_a_deletion_is_not_undone_by_who_has_not_heard_of_it() -> None:
    one, two, three = (member(name) for name in ("one", "two", "three"))
    one.topic("orders")
    two.pull(one)
    old = one.replicated.changes(0)
    one.tables.topics.delete("orders")
    three.pull(one)
    three.take("two", old)
    assert three.tables.topics.get("orders") is None
    two.pull(three)
    assert two.tables.topics.get("orders") is None


def test_a_deletion_by_another_store_counts_for_the_owner() -> None:
    one, two = member("one"), member("two")
    one.tables.groups.create(Group("billing"), owner="anna")
    assert one.tables.groups.count_of("anna") == 1
    two.pull(one)
    assert two.tables.groups.count_of("anna") == 0
    two.tables.groups.delete("billing")
    one.pull(two)
    assert one.tables.groups.count_of("anna") == 0
    one.restart()
    assert one.tables.groups.count_of("anna") == 0


def test_a_user_goes_with_its_rules_everywhere_and_a_new_one_of_its_name_has_none() -> None:
    one, two = member("one"), member("two")
    one.tables.users.create(user())
    one.tables.policies.put_rule("anna", RULE)
    two.pull(one)
    two.tables.users.delete("anna")
    one.clock.advance(1)
    one.tables.policies.put_rule("anna", RULE)  # has not heard of the deletion, and is later than it
    gathered(one, two)
    assert one.tables.users.get("anna") is None
    two.tables.users.create(user())
    assert not two.tables.policies.get("anna").rules
    gathered(one, two)
    assert one.content() == two.content()
    assert not one.tables.policies.get("anna").rules


def test_a_certificate_that_two_users_claim_stands_for_neither_until_one_gives_it_up() -> None:
    one, two = member("one"), member("two")
    one.tables.users.create(user("anna", "CN=shop"))
    two.tables.users.create(user("ben", "CN=shop"))
    assert one.tables.users.by_certificate("CN=shop") is not None
    gathered(one, two)
    for each in (one, two):
        assert each.tables.users.by_certificate("CN=shop") is None
        assert each.tables.users.disputed_subjects == {"CN=shop"}
    one.tables.users.delete("anna")
    gathered(one, two)
    for each in (one, two):
        found = each.tables.users.by_certificate("CN=shop")
        assert found is not None
        assert found.name == "ben"
        assert not each.tables.users.disputed_subjects


def test_old_deletions_can_be_forgotten() -> None:
    one, two = member("one"), member("two")
    for name in ("early", "late", "stays"):
        one.topic(name)
    one.tables.topics.delete("early")
    one.clock.advance(10)
    one.tables.topics.delete("late")
    assert one.replicated.delete_tombstones(one.clock.wall_ms()) == 1
    assert [row.name for row in one.replicated.changes(0).rows] == ["stays", "late"]
    assert one.replicated.delete_tombstones(one.clock.wall_ms()) == 0
    two.pull(one)
    assert two.content() == one.content()


@pytest.mark.parametrize("name", ["%RETRY%billing", "%RETRY%billing_orders", "SCHEDULE_TOPIC_XXXX", "rmq_sys_x"])
def test_what_belongs_to_the_messages_of_one_store_stays_there(name: str) -> None:
    one = member("one")
    one.topic(name)
    assert not one.replicated.changes(0).rows
    assert not is_shared(TOPIC, name)
    assert is_shared(TOPIC, "%DLQ%billing")


def _bad(kind: SharedKind, name: str, value: bytes | None) -> SharedRow:
    return SharedRow(kind, name, Version(1, 0, bytes(8)), None, value)


BAD = {
    "no JSON": (_bad(TOPIC, "bad", b"{"), "topic 'bad' from member 'two'.*JSON"),
    "deep": (_bad(TOPIC, "bad", b"[" * 100_000), "topic 'bad'"),
    "queues": (_bad(TOPIC, "bad", encode_topic(Topic("bad", TopicType.MIXED, -1, 1))), "-1 and 1 queues"),
    "user": (_bad(USER, "bad", b'"gAAAA"'), "not a valid row of a user"),
    "rules": (_bad(POLICY, "bad", b"[]"), "policy 'bad'"),
    "kind": (SharedRow("Zone!", "east", Version(1, 0, bytes(8)), None, b""), "the name of the kind is not valid"),
    "name": (_bad(USER, "a/b", None), "not a user name"),
    "local": (_bad(TOPIC, "%RETRY%billing", None), "belong to one member"),
    "unprintable": (_bad(TOPIC, "a\nb", None), "not printable"),
    "surrogate": (_bad(MEMBER, "\ud800", b""), "not printable"),
    "long": (_bad(MEMBER, "x" * 256, b""), "255 bytes"),
    "large": (_bad(MEMBER, "x", bytes(2**20 + 1)), "1048577 bytes"),
    "member": (SharedRow(MEMBER, "x", Version(1, 0, b"short"), None, b""), "a version is not valid"),
    "later": (SharedRow(MEMBER, "x", Version(1, 0, bytes(8)), Version(1, 0, bytes(8)), b""), "version later than"),
}


@pytest.mark.parametrize(("row", "text"), BAD.values(), ids=BAD)
def test_a_bad_row_is_refused_with_all_that_came_with_it(row: SharedRow, text: str) -> None:
    one, two = member("one"), member("two")
    two.topic("orders")
    page = two.replicated.changes(0)
    before = one.replicated.changes(0)
    with pytest.raises(RowRefused, match=text) as refused:
        one.replicated.apply((*page.rows, row), peer="two", until=Position(page.incarnation, page.until))
    assert "gAAAA" not in str(refused.value)
    assert len(str(refused.value)) < 500
    assert one.replicated.changes(0) == before
    assert one.tables.topics.get("orders") is None
    assert one.replicated.position("two") is None


def test_a_peer_whose_clock_is_far_ahead_is_not_followed() -> None:
    one, two = member("one"), member("two")
    two.clock.jump(AHEAD_MAX_MS / 1000)
    two.topic("orders")
    one.pull(two)
    one.topic("orders", 3)
    assert one.stamp(TOPIC, "orders").version > two.stamp(TOPIC, "orders").version
    two.clock.jump(1)
    two.topic("late")
    with pytest.raises(PeerAhead, match="topic 'late' from member 'two' was written 3601000 ms ahead"):
        one.pull(two)
    assert one.tables.topics.get("late") is None


def test_rows_of_members_are_put_read_and_removed() -> None:
    one = member("one")
    row = one.replicated.put(MEMBER, "one", b"1")
    assert one.replicated.get(MEMBER, "one") == row
    assert list(one.replicated.list(MEMBER)) == [row]
    assert one.replicated.remove(MEMBER, "one")
    assert not one.replicated.remove(MEMBER, "one")
    assert one.replicated.get(MEMBER, "one") is None
    assert not list(one.replicated.list(MEMBER))
    assert one.replicated.own_changes == 2
    with pytest.raises(Invalid, match="through their table"):
        one.replicated.put(TOPIC, "orders", b"{}")
    with pytest.raises(Invalid, match="printable"):
        one.replicated.put(MEMBER, "", b"")


def test_rows_of_many_members_are_listed_in_order() -> None:
    one = member("one")
    for number in range(150):
        one.replicated.put(MEMBER, f"m{number:03}", b"")
    one.topic("orders")
    assert [row.name for row in one.replicated.list(MEMBER)] == [f"m{number:03}" for number in range(150)]
    assert [row.name for row in one.replicated.list(TOPIC)] == ["orders"]


def _older(change: Callable[[Member], object]) -> Member:
    """A member that had rows before it was one."""
    opened = in_memory()
    before = Member.__new__(Member)
    before.clock, before.name = ManualClock(), "alone"
    before.open_alone(opened())
    change(before)
    before.engine.close()
    return Member("older", opened)


def test_rows_from_before_a_cluster_give_way_to_any_change_in_one() -> None:
    older = _older(lambda alone: alone.topic("orders", 1))
    assert older.stamp(TOPIC, "orders").version == Version(0, 0, member_id("older"))
    other = member("other", ManualClock(1))
    other.topic("orders", 2)
    (conflict,) = older.pull(other).conflicts
    assert conflict.overwritten.time_ms == 0
    other.pull(older)
    assert older.content() == other.content()
    found = older.tables.topics.get("orders")
    assert found is not None
    assert found.read_queues == 2


def test_rows_get_their_first_version_once() -> None:
    older = _older(lambda alone: alone.topic("orders", 1))
    older.topic("orders", 2)
    before = older.replicated.changes(0)
    older.restart()
    assert older.replicated.changes(0) == before
    assert older.replicated.own_changes == 0


def test_ten_thousand_topics_are_enabled_and_exchanged_in_seconds() -> None:
    """No figure, but a look that nothing grows with the square."""

    def topics(alone: Member) -> None:
        for number in range(10_000):
            alone.topic(f"topic-{number:05}")

    older, fresh = _older(topics), member("fresh")
    fresh.pull(older)
    assert len(fresh.content()) == 10_000
    assert fresh.content() == older.content()


def test_the_clock_is_not_after_what_was_seen_before_a_restart() -> None:
    one, two = member("one"), member("two")
    two.clock.jump(1800)
    two.topic("orders", 1)
    one.pull(two)
    one.restart()
    one.topic("orders", 2)
    assert one.stamp(TOPIC, "orders").version > two.stamp(TOPIC, "orders").version
    assert [row.name for row in two.pull(one).changed] == ["orders"]


def test_who_reads_while_several_threads_write_misses_nothing() -> None:
    one, two, other = member("one"), member("two"), member("other")
    for number in range(100):
        other.topic(f"other-{number}")

    def topics() -> None:
        for number in range(100):
            one.topic(f"topic-{number}")

    def groups() -> None:
        for number in range(100):
            one.tables.groups.create(Group(f"group-{number}"))

    def users() -> None:
        for number in range(50):
            one.tables.users.create(user(f"user-{number}"))
            one.tables.policies.put_rule(f"user-{number}", RULE)

    with ThreadPoolExecutor(4) as pool:
        writing = [pool.submit(each) for each in (topics, groups, users, lambda: one.pull(other))]
        while not all(each.done() for each in writing):
            two.take("one", two.asked(one, 7))
        for each in writing:
            each.result()
    two.pull(one)
    one.check_whole()
    assert len(one.content()) == 400
    assert two.content() == one.content()


PAGE = (Path(__file__).parents[2] / "docs" / "formats" / "shared-rows.md").read_text(encoding="utf-8")
MADE_MS = 1763800000000


def test_the_example_is_what_is_stored() -> None:
    made, changed = Version(MADE_MS, 0, member_id("shard-0")), Version(MADE_MS + 1000, 2, member_id("shard-1"))
    stamp = Stamp(changed, made, (), deleted=False, sequence=(MADE_MS + 2000) * 1000)
    row = row_id(SharedKind.TOPIC, "orders")
    assert f"\n{(VERSIONS + row).hex()} -> {stamp.encode().hex()}\n" in PAGE
    assert f"\n{order_key(stamp.sequence).hex()} -> {row.hex()}\n" in PAGE


def test_versions_that_were_seen_are_read_again() -> None:
    seen = tuple(Version(number, 0, member_id(str(number))) for number in range(SEEN_MAX))
    stamp = Stamp(Version(99, 1, bytes(8)), None, seen, deleted=True, sequence=7)
    assert Stamp.decode(stamp.encode()) == stamp


def test_limits_and_kinds_are_as_on_the_page() -> None:
    assert f"0 to {SEEN_MAX} |" in PAGE
    assert f"at most {PAGE_ROWS_MAX} rows" in PAGE
    assert all(f"`{kind.value}`" in PAGE for kind in SharedKind)
