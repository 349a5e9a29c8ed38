"""Pages of names, on the table of topics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.protocol.clock import ManualClock
from quarry_mq.server.admin import pages as names_module
from quarry_mq.server.admin.pages import NamePage, NameSearch
from quarry_mq.server.observability.samples import NameCounts
from quarry_mq.server.tasks import TimeSlice
from quarry_mq.store.metadata import Group, GroupTable, Topic, TopicTable, TopicType
from quarry_mq.store.metadata.rows import NamesFound
from quarry_mq.store.metadata.topics import SYSTEM_ATTRIBUTE
from quarry_mq.store.state.identity import FAMILIES

NAMES = st.sets(st.text("aAbB_", min_size=1, max_size=4), max_size=40)


class Topics:
    """A table, and the pages of it."""

    def __init__(self, names: set[str], *, is_counted: bool = True) -> None:
        self.engine = MemoryEngine(FAMILIES, write_ahead_log=True)
        self.table = TopicTable(self.engine)
        self.table.add_missing(Topic(name, TopicType.NORMAL, 1, 1) for name in names)
        self.clock = ManualClock()
        self.looks = 0
        count: Callable[[], int | None] = (lambda: len(names)) if is_counted else (lambda: None)
        self.search = NameSearch(self._look, count, self.clock)

    def _look(self, after: str, limit: int, contains: str) -> NamesFound:
        self.looks += 1
        return self.table.names_after(after, limit, contains)

    def page(self, contains: str = "", after: str = "", limit: int = 10) -> NamePage:
        return asyncio.run(self.search.page(contains, after, limit, TimeSlice(self.clock)))


@given(
    names=NAMES,
    contains=st.text("aAbB_", max_size=2),
    limit=st.integers(1, 7),
    kept=st.integers(0, 9),
    is_counted=st.booleans(),
)
def test_pages_one_after_the_other_have_each_name_once(
    names: set[str], contains: str, limit: int, kept: int, is_counted: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(names_module, "ROWS_PER_STEP", 3)
        patch.setattr(names_module, "KEPT_NAMES", kept)
        topics = Topics(names, is_counted=is_counted)
        wanted = sorted(name for name in names if contains.lower() in name.lower())
        found: list[str] = []
        while True:
            page = topics.page(contains, found[-1] if found else "", limit)
            assert page.matching == len(wanted)
            assert len(page.names) <= limit
            found += page.names
            assert page.has_more == (len(found) < len(wanted))
            if not page.has_more:
                break
        assert found == wanted


def test_a_search_is_made_once_and_kept_for_a_while() -> None:
    topics = Topics({f"orders-{number:04d}" for number in range(2_000)})
    assert topics.page("-1234") == NamePage(["orders-1234"], False, 1)
    looks = topics.looks
    assert topics.page("-1234", after="orders-1234") == NamePage([], False, 1)
    assert topics.looks == looks
    topics.table.create(Topic("more-1234", TopicType.NORMAL, 1, 1))
    topics.clock.advance(names_module.KEPT_S)
    assert topics.page("-1234").names == ["more-1234", "orders-1234"]


def test_the_first_page_of_all_looks_at_no_more_than_it_shows() -> None:
    topics = Topics({f"orders-{number:05d}" for number in range(20_000)})
    page = topics.page(after="orders-00007", limit=2)
    assert page == NamePage(["orders-00008", "orders-00009"], True, 20_000)
    assert topics.looks == 1


def counted(counts: NameCounts) -> tuple[int | None, int | None]:
    for _ in counts.steps():
        pass
    return counts.topics, counts.groups


def test_topics_and_groups_are_counted_once_and_kept_right() -> None:
    engine = MemoryEngine(FAMILIES, write_ahead_log=True)
    topics, groups = TopicTable(engine), GroupTable(engine)
    for name in ("a", "b", "rmq_sys_own"):
        topics.create(Topic(name, TopicType.NORMAL, 1, 1), internal=True)
    topics.create(Topic("taken-over", TopicType.NORMAL, 1, 1, attributes={SYSTEM_ATTRIBUTE: "true"}))
    groups.create(Group("billing"))
    counts = NameCounts(topics, groups)
    assert (counts.topics, counts.groups) == (None, None)
    steps = counts.steps()
    next(steps, None)
    topics.create(Topic("c", TopicType.NORMAL, 1, 1))
    for _ in steps:
        pass
    assert (counts.topics, counts.groups) == (3, 1)
    topics.delete("a")
    topics.add_missing([Topic(name, TopicType.NORMAL, 1, 1) for name in ("b", "d", "e", "rmq_sys_other")])
    topics.update(Topic("b", TopicType.NORMAL, 2, 2))
    topics.update(Topic("d", TopicType.NORMAL, 1, 1, attributes={SYSTEM_ATTRIBUTE: "true"}))
    groups.create(Group("audit"))
    groups.delete("billing")
    assert (counts.topics, counts.groups) == (3, 1)
    assert counted(NameCounts(topics, groups)) == (3, 1)


def test_rows_that_another_member_changed_are_counted() -> None:
    engine = MemoryEngine(FAMILIES, write_ahead_log=True)
    topics = TopicTable(engine)
    for name in ("a", "b"):
        topics.create(Topic(name, TopicType.NORMAL, 1, 1))
    row = engine.family("topics").get(b"a")
    before = topics.changes
    topics.take_over(lambda _: {"a": row, "b": None, "c": row, "d": row, "nothing": None, "rmq_sys_x": row})
    assert topics.changes - before == 1
    assert [topic.name for topic in topics.list()] == ["a", "c", "d", "rmq_sys_x"]


def test_the_brokers_own_topics_are_found_when_they_are_wanted() -> None:
    topics = Topics({"orders"})
    topics.table.create(Topic("rmq_sys_own", TopicType.NORMAL, 1, 1), internal=True)
    topics.table.create(Topic("ours", TopicType.NORMAL, 1, 1, attributes={SYSTEM_ATTRIBUTE: "true"}))
    assert topics.table.names_after("", 10) == NamesFound(["orders"], None)
    assert topics.table.names_after("", 10, include_system=True).names == ["orders", "ours", "rmq_sys_own"]
    assert topics.table.names_after("", 2) == NamesFound(["orders"], "ours")
