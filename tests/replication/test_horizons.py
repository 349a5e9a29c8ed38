"""Deletions are forgotten, and who may have missed one is told apart from who has not. Real tables, real versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.store.metadata import Group
from quarry_mq.store.replication import DeletionsMissed, Horizons, PeerMissed, SharedKind
from tests.replication.members import Member, gathered, in_rocksdb, member

DAY_S = 86_400
KEPT_DAYS = 30


def passed(days: int, *members: Member) -> None:
    for each in members:
        each.clock.advance(days * DAY_S)


def delete_tombstones(*members: Member) -> int:
    return sum(each.replicated.delete_tombstones(each.clock.wall_ms() - KEPT_DAYS * DAY_S * 1000) for each in members)


def three() -> tuple[Member, Member, Member]:
    """All know `orders` and `old`."""
    here, there, away = (member(name, ManualClock()) for name in ("here", "there", "away"))
    here.topic("orders")
    here.topic("old")
    gathered(here, there, away)
    return here, there, away


def long_away() -> tuple[Member, Member, Member]:
    """`old` was deleted, and forgotten by both others, while one was away; that has made `mine`."""
    here, there, away = three()
    passed(1, here, there, away)
    here.tables.topics.delete("old")
    gathered(here, there)
    passed(KEPT_DAYS + 1, here, there, away)
    assert delete_tombstones(here, there, away) == 2
    away.topic("mine")
    return here, there, away


def topics(one: Member) -> list[str]:
    return [topic.name for topic in one.tables.topics.list()]


def rejoined(away: Member, other: Member) -> None:
    page = other.replicated.changes(0)
    gone, _ = away.replicated.unknown_to(page.rows, page.horizons)
    until = type(away.replicated.position(other.name) or pytest.fail("never read"))(page.incarnation, page.until)
    away.replicated.rejoin(page.rows, peer=other.name, until=until, told=page.horizons, gone=gone)


def test_a_member_that_was_away_for_too_long_brings_nothing_back_and_takes_nothing() -> None:
    here, there, away = long_away()
    for other in (here, there):
        with pytest.raises(DeletionsMissed, match=f"quarry cluster rejoin {other.name}"):
            away.pull(other)
        with pytest.raises(PeerMissed, match="member 'away' was away for longer than deletions are remembered"):
            other.pull(away)
    gathered(here, there)
    assert topics(here) == topics(there) == ["orders"]
    assert topics(away) == ["mine", "old", "orders"]


def test_a_member_that_came_meanwhile_knows_who_was_away() -> None:
    """It never heard of the deletion itself."""
    here, _, away = long_away()
    late = member("late", ManualClock(wall_ms=here.clock.wall_ms()))
    late.pull(here)
    with pytest.raises(PeerMissed):
        late.pull(away)
    with pytest.raises(DeletionsMissed):
        away.pull(late)
    assert topics(late) == ["orders"]


def test_what_a_new_member_has_of_one_that_was_away_goes_no_further() -> None:
    here, _, away = long_away()
    late = member("late", ManualClock(wall_ms=here.clock.wall_ms()))
    late.pull(away)
    assert "old" in topics(late)
    with pytest.raises(PeerMissed, match="member 'late'"):
        here.pull(late)
    with pytest.raises(DeletionsMissed):
        late.pull(here)
    assert topics(here) == ["orders"]


def test_a_member_that_reads_its_first_one_says_nothing_before_it_has_read_it() -> None:
    one, new = member("one"), member("new")
    for number in range(10):
        one.topic(f"t{number}")
    new.topic("mine")
    assert [row.name for row in new.replicated.changes(0).rows] == ["mine"]
    new.take(one.name, new.asked(one, limit=4))
    assert not new.replicated.changes(0).rows
    new.pull(one)
    assert len(new.replicated.changes(0).rows) == 11


def test_who_was_away_while_nothing_was_deleted_comes_back_as_ever() -> None:
    here, there, away = three()
    passed(10 * KEPT_DAYS, here, there, away)
    assert delete_tombstones(here, there, away) == 0
    here.topic("new")
    gathered(here, there, away)
    assert topics(away) == ["new", "old", "orders"]


def test_who_was_away_for_less_than_deletions_are_kept_hears_of_them() -> None:
    here, there, away = three()
    passed(1, here, there, away)
    here.tables.topics.delete("old")
    gathered(here, there)
    passed(KEPT_DAYS - 1, here, there, away)
    assert delete_tombstones(here, there, away) == 0
    gathered(here, there, away)
    assert topics(away) == ["orders"]
    passed(KEPT_DAYS + 1, here, there, away)
    assert delete_tombstones(here, there, away) == 3
    here.topic("later")
    gathered(here, there, away)
    assert topics(away) == ["later", "orders"]


def test_a_deletion_counts_from_when_it_was_heard_of() -> None:
    """A link that was down for long delivers old deletions: they are told on before they are forgotten."""
    here, there, away = three()
    here.tables.topics.delete("old")
    passed(KEPT_DAYS + 1, here, there, away)
    there.pull(here)
    assert delete_tombstones(there) == 0
    away.pull(there)
    assert topics(away) == ["orders"]


def test_members_that_hear_of_each_other_through_a_third_have_missed_nothing() -> None:
    here, there, away = three()
    for number in range(4):
        here.topic(f"passing {number}")
        here.tables.topics.delete(f"passing {number}")
        gathered(here, there)
        gathered(there, away)
        passed(20, here, there, away)
        delete_tombstones(here, there, away)
    assert here.replicated.horizons.forgotten
    away.pull(here)
    here.pull(away)
    assert topics(away) == topics(here)


def test_two_halves_that_were_apart_refuse_each_other() -> None:
    one, two, three_, four = (member(name, ManualClock()) for name in ("one", "two", "three", "four"))
    one.topic("old")
    one.topic("older")
    gathered(one, two, three_, four)
    passed(1, one, two, three_, four)
    two.tables.topics.delete("old")
    four.tables.topics.delete("older")
    gathered(one, two)
    gathered(three_, four)
    passed(KEPT_DAYS + 1, one, two, three_, four)
    assert delete_tombstones(one, two, three_, four) == 4
    with pytest.raises(PeerMissed):
        one.pull(three_)
    rejoined(three_, one)
    rejoined(four, two)
    gathered(one, two, three_, four)
    assert topics(one) == topics(two) == topics(three_) == topics(four) == ["older"]


def test_a_member_that_rejoins_loses_what_was_deleted_and_tells_what_it_has_made() -> None:
    here, there, away = long_away()
    away.tables.groups.create(Group("billing"))
    here.topic("orders", 5)
    here.topic("new")
    gathered(here, there)
    rejoined(away, there)
    assert topics(away) == ["mine", "new", "orders"]
    gathered(here, there, away)
    assert here.content() == there.content() == away.content()
    assert topics(here) == ["mine", "new", "orders"]
    orders = away.tables.topics.get("orders")
    assert orders is not None
    assert orders.read_queues == 5
    assert here.tables.groups.get("billing") is not None
    away.check_whole()


def test_a_member_that_dies_while_it_rejoins_still_has_to(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there, away = long_away()

    def dies(*_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(away.replicated._horizons, "replace", dies)
        with pytest.raises(ZeroDivisionError):
            rejoined(away, here)
    away.restart()
    with pytest.raises(DeletionsMissed):
        away.pull(here)
    rejoined(away, here)
    gathered(here, there, away)
    assert topics(away) == topics(here) == ["mine", "orders"]


def test_what_is_known_and_forgotten_outlives_a_restart(tmp_path: Path) -> None:
    clock = ManualClock()
    one, two = Member("one", in_rocksdb(tmp_path / "one"), clock), member("two", clock)
    two.topic("old")
    gathered(one, two)
    one.tables.topics.delete("old")
    passed(KEPT_DAYS + 1, one)
    assert delete_tombstones(one) == 1
    before = one.replicated.horizons
    assert before.forgotten.keys() == {"one"}
    one.restart()
    assert one.replicated.horizons.forgotten == before.forgotten
    # its last change is forgotten: it still knows what it has told once
    assert one.replicated.horizons.missed(before.forgotten) is None
    assert not one.replicated.changes(0).rows
    one.topic("new")
    assert [(row.kind, row.name) for row in one.replicated.changes(0).rows] == [(SharedKind.TOPIC, "new")]
    one.engine.close()


def test_who_knows_nobody_has_missed_nothing() -> None:
    assert Horizons().missed({"one": 5}) is None
    assert Horizons({"one": 5}).missed({"one": 5}) is None
    assert Horizons({"one": 4}).missed({"one": 5}) == "one"
    assert Horizons({"one": 9}).missed({"two": 0}) is None
